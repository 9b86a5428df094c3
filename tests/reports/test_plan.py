"""The arithmetic of a run by hand, and the words for what is in force."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnpoint.config import parse_recipe
from turnpoint.reports.plan import AdapterFacts, ModelFacts, Plan, make_plan, prompt_lines

MODEL = ModelFacts(
    name="tiny",
    parameters=134_515_008,
    dtype="bfloat16",
    device="cpu",
    context_length=8192,
    adapter=None,
)


def plan_of(
    *, prompt_lengths: tuple[int, ...] = (61, 57, 66), model: ModelFacts = MODEL, **sections: Any
) -> Plan:
    tasks = {"kind": "reasoning_gym", "name": "chain_sum"}
    return make_plan(
        parse_recipe({"tasks": tasks, **sections}),
        model=model,
        data=["chain_sum: 500 rows"],
        num_train=400,
        num_eval=64,
        prompt_lengths=prompt_lengths,
        first_prompt="<|user|>3 + 4 =\n<|assistant|>",
        folder=Path("runs/demo"),
        workers=1,
        threads=2,
    )


def lines(plan: Plan, label: str) -> tuple[str, ...]:
    return dict(plan.entries)[label]


def test_sizes_by_hand() -> None:
    plan = plan_of(rollout={"prompts_per_step": 8, "samples_per_prompt": 8}, training={"steps": 20})
    assert (plan.steps, plan.rollouts_per_step, plan.max_tokens_per_step) == (20, 64, 64 * 256)
    assert plan.micro_batches == 5  # (8 * 61.3 + 64 * 256) / 4096 = 4.1
    assert lines(plan, "step") == (
        "8 prompts x 8 samples -> 64 rollouts -> 1 update",
        "up to 16,384 new tokens (256 each), trained in up to about 5 micro-batches of at most 4,096 tokens",
    )
    assert lines(plan, "run")[0] == "20 steps = 160 prompts = 0.4 passes over the data; seed 0"


def test_updates_are_counted_in_rollouts() -> None:
    plan = plan_of(training={"mini_batches": 4, "epochs": 2})
    assert lines(plan, "step")[0] == (
        "8 prompts x 8 samples -> 64 rollouts -> 4 updates of 16 in each of 2 passes"
    )


def test_one_of_each() -> None:
    plan = plan_of(
        rollout={"prompts_per_step": 1, "samples_per_prompt": 2},
        sampling={"max_new_tokens": 16},
        training={"steps": 1},
    )
    assert lines(plan, "step") == (
        "1 prompt x 2 samples -> 2 rollouts -> 1 update",
        "up to 32 new tokens (16 each), trained in up to about 1 micro-batch of at most 4,096 tokens",
    )


def test_a_rollout_beyond_the_micro_batch_is_announced() -> None:
    plan = plan_of(training={"micro_batch_tokens": 300})
    assert lines(plan, "step")[-1] == (
        "a rollout of more than training.micro_batch_tokens = 300 (possible: 322) is a micro-batch of its own"
    )


def test_layers_computed_again_are_announced() -> None:
    plan = plan_of(training={"recompute": True})
    assert lines(plan, "step")[-1].endswith("of at most 4,096 tokens, layers computed again in backward")


def test_the_default_objective_in_words() -> None:
    assert lines(plan_of(), "objective") == (
        "advantage = reward - group mean, not divided by std; temperature 1",
        "PPO clip 0.2/0.28; loss = mean over all tokens of the update; no KL",
        "1 update per batch: on-policy, ratio = 1 up to rounding",
    )


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"advantage": {"baseline": "leave_one_out"}}, "reward - mean of the others in the group"),
        ({"advantage": {"scale": "std"}}, "divided by the group's std"),
        ({"loss": {"aggregation": "sequence"}}, "loss = mean over rollouts of their token means"),
        ({"loss": {"aggregation": "constant"}}, "loss = sum over tokens / (64 rollouts x 256)"),
        ({"loss": {"clip_high": 0.4}}, "PPO clip 0.2/0.4"),
        ({"loss": {"dual_clip": 3}}, "PPO clip 0.2/0.28, dual clip 3"),
        (
            {"loss": {"kind": "gspo"}},
            "GSPO: one ratio per rollout, clip 0.0003/0.0004; loss = mean over rollouts",
        ),
        ({"loss": {"kind": "cispo"}}, "CISPO: ratio as a weight, at most 1.28; loss = mean over all tokens"),
        ({"loss": {"kind": "cispo", "clip_low": 0.4}}, "CISPO: ratio as a weight, 0.6 to 1.28"),
        ({"kl": {"coef": 0.04}}, "+ 0.04 KL(policy || the policy as it starts)"),
        (
            {"kl": {"coef": 0.04, "divergence": "forward", "reference": {"kind": "model", "path": "old"}}},
            "+ 0.04 KL(old || policy)",
        ),
        (
            {"advantage": {"overlong": {"buffer_tokens": 16}}},
            "reward - up to 1 over the last 16 tokens before the",
        ),
        (
            {"advantage": {"overlong": {"kind": "mask"}}},
            "reward of rollouts that were not truncated - group mean",
        ),
        (
            {"training": {"mini_batches": 2, "epochs": 3}},
            "6 updates per batch, 3 x 2: off-policy after the first",
        ),
        (
            {"loss": {"aggregation": "constant"}, "training": {"mini_batches": 2}},
            "sum over tokens / (32 rollouts x",
        ),
        ({"correction": {"cap": 3}}, "importance weights trainer / engine per token, at most 3"),
        (
            {"rollout": {"refill": {"rounds": 4}}},
            "groups with equal rewards replaced, 4 rounds at most (when too few:",
        ),
        ({"engine": {"draft": {"heads": "h"}}}, "drafts of 3 tokens a round by h, verified by token"),
        ({"sampling": {"temperature": 0.7}}, "temperature 0.7"),
        ({"optimizer": {"learning_rate": 2e-5, "schedule": "cosine"}}, "learning rate 2e-05 cosine"),
        ({"optimizer": {"warmup_steps": 3}}, "warm-up 3 steps"),
        ({"optimizer": {"weight_decay": 0.1}}, "weight decay 0.1"),
        ({"prompt": {"kind": "few_shot", "shots": 3}}, "3 solved examples as plain text"),
        ({"prompt": {"kind": "chat", "system": "Be\nbrief."}}, 'system message "Be\u21b5brief."'),
        ({"prompt": {"kind": "chat", "thinking": True}}, "chat template of the model, thinking"),
        ({"prompt": {"kind": "chat", "suffix": "Box it."}}, 'question + "Box it."'),
        ({"verifier": {"kind": "reasoning_gym"}}, "the generator's own scorer"),
        ({"verifier": {"kind": "function", "path": "a.py:f"}}, "your function a.py:f"),
        ({"verifier": {"kind": "math", "timeout": 3}}, "3 s at most"),
        ({"training": {"save_every": 5}}, "checkpoints every 5 steps and at the end"),
        (
            {"evaluation": {"every": 10}},
            "evaluation before and after, every 10 steps: 64 problems, greedy + 4",
        ),
        ({"evaluation": {"samples": 0}}, "64 problems, greedy each"),
        ({"evaluation": None}, "no evaluation: the run will not say whether the model got better"),
    ],
)
def test_every_choice_is_named(sections: dict[str, Any], words: str) -> None:
    page = "\n".join(line for _, entry in plan_of(**sections).entries for line in entry)
    assert words in page


def test_model_data_and_prompts() -> None:
    plan = plan_of()
    assert lines(plan, "model") == ("tiny: 134,515,008 parameters, bfloat16 on cpu, context 8,192 tokens",)
    assert lines(plan, "data") == ("chain_sum: 500 rows", "400 to train on, 64 to evaluate")
    assert lines(plan, "prompt")[1] == (
        "57 to 66 tokens, median 61; longest + 256 new = 322 of 8,192 in the context"
    )
    assert plan.first_prompt == ("<|user|>3 + 4 =\u21b5", "<|assistant|>")
    assert plan.first_prompt_tokens == 61


@pytest.mark.parametrize(("ranks", "words"), [((16,), "rank 16"), ((4, 8, 16), "rank 4 to 16")])
def test_an_adapter_says_how_little_trains(ranks: tuple[int, ...], words: str) -> None:
    adapter = AdapterFacts(ranks=ranks, matrices=210, parameters=4_884_480)
    assert lines(plan_of(model=replace(MODEL, adapter=adapter)), "model") == (
        "tiny: 134,515,008 parameters, bfloat16 on cpu, context 8,192 tokens",
        f"LoRA {words} on 210 matrices: 4,884,480 parameters train, those of the model are frozen",
    )


def test_a_plan_needs_prompts() -> None:
    with pytest.raises(ValueError, match="prompts"):
        plan_of(prompt_lengths=())


def test_a_long_prompt_keeps_its_ends() -> None:
    shown = prompt_lines("\n".join(f"line {index}" for index in range(100)))
    assert len(shown) == 13
    assert shown[0] == "line 0\u21b5"
    assert shown[6] == "... 88 more lines ..."
    assert shown[-1] == "line 99"


def test_one_huge_line_is_cut_in_its_middle() -> None:
    (shown,) = prompt_lines("\x1b" + "a" * 100_000 + "b")
    assert len(shown) == 500
    assert shown.startswith("\\x1baaa")
    assert shown.endswith("aaab")
