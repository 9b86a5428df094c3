"""Recipes: what is accepted comes back the same, what is refused is refused in one line with a way out."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin

import pytest
from pydantic import BaseModel

from turnpoint import config
from turnpoint.config import all_keys, dump_recipe, load_recipe, parse_recipe
from turnpoint.errors import RecipeError

MINIMAL: dict[str, Any] = {"tasks": {"kind": "jsonl", "path": "tasks.jsonl"}}

# One valid value per key that has no default or whose default is None.
FULL: dict[str, Any] = {
    "name": "full",
    "tasks": {"kind": "hub", "path": "gsm8k", "subset": "main", "split": "test", "limit": 5},
    "prompt": {"kind": "few_shot", "shots": 2, "template": "{question}: {answer}", "separator": "\n#\n"},
    "verifier": {"kind": "function", "path": "judge.py:grade"},
    "sampling": {"temperature": 0.7, "stop": ["\n\n", "Q:"]},
    "optimizer": {"learning_rate": 3e-4, "schedule": "cosine", "warmup_steps": 3, "betas": [0.8, 0.9]},
    "training": {"steps": 20, "save_every": 5, "mini_batches": 2},
    "evaluation": {"tasks": 8, "every": 4},
    "model": {"adapter": {"kind": "new", "rank": 4, "modules": ["q_proj"]}},
    "rollout": {
        "refill": {"rounds": 2, "when_short": "stop"},
        "branching": {"continuations": [2, 1], "rule": {"direction": "signed"}},
    },
    "advantage": {"overlong": {"buffer_tokens": 16}},
    "loss": {"kind": "ppo_clip", "dual_clip": 3.0},
    "kl": {"coef": 0.1, "divergence": "forward", "reference": {"kind": "model", "path": "other"}},
    "correction": {"cap": 3.0},
    "distill": {"teachers": {"big": {"path": "large", "coef": 0.5}}, "key": "expert", "loss": {"clip": 5.0}},
    "engine": {"draft": {"heads": "drafts/mine/heads", "training": {"every": 2}}},
    "trackers": {"tensorboard": {}, "trackio": {}, "wandb": {"mode": "offline"}},
}


def refusal(tree: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as error:
        parse_recipe(tree)
    assert "\n" not in str(error.value)
    return str(error.value)


def changed(**sections: Any) -> dict[str, Any]:
    """Returns the minimal recipe with other values; a dict is merged into the section of that name."""
    tree = copy.deepcopy(MINIMAL)
    for name, value in sections.items():
        old = tree.get(name)
        tree[name] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
    return tree


# --- accepted -----------------------------------------------------------------------------------


def test_defaults_are_the_stated_method() -> None:
    recipe = parse_recipe(MINIMAL)
    assert recipe.advantage == config.GroupAdvantageConfig(baseline="mean", scale="none")
    assert (recipe.loss.clip_low, recipe.loss.clip_high, recipe.loss.aggregation) == (0.2, 0.28, "token")
    assert (recipe.sampling.temperature, recipe.optimizer.learning_rate) == (1.0, 1e-6)
    assert recipe.evaluation is None


@pytest.mark.parametrize("tree", [MINIMAL, FULL])
def test_yaml_round_trip(tmp_path: Path, tree: dict[str, Any]) -> None:
    recipe = parse_recipe(tree)
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(path) == recipe
    assert dump_recipe(load_recipe(path)) == dump_recipe(recipe)


def test_the_resolved_form_names_every_key() -> None:
    tree = parse_recipe(FULL).model_dump(mode="json")
    for key in all_keys():
        node: Any = tree
        *sections, last = key.replace("NAME", "big").split(".")
        for section in sections:
            node = node[section]
        mine = type_at(sections, parse_recipe(FULL)).model_fields
        assert (last in node) == (last in mine), key


def type_at(names: list[str], recipe: Any) -> type[BaseModel]:
    for name in names:
        recipe = recipe["big"] if name == "big" else getattr(recipe, name)
    return cast(type[BaseModel], type(recipe))


def test_numbers_as_people_write_them_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("tasks: {kind: jsonl, path: a}\noptimizer: {learning_rate: 1e-6}\n", encoding="utf-8")
    assert load_recipe(path, ["loss.clip_high=3e-1"]).optimizer.learning_rate == 1e-6
    assert load_recipe(path, ["loss.clip_high=3e-1"]).loss.clip_high == 0.3


def test_recipes_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_recipe(MINIMAL).training.steps = 3  # type: ignore[misc]


# --- keys and sections --------------------------------------------------------------------------

SECTIONS = [
    section
    for name in config.__all__
    if isinstance(section := getattr(config, name), type)
    and issubclass(section, config.Recipe)
    and section not in (config.Recipe, config.SftConfig, config.SftTrainingConfig, config.StepConfig)
    and section.__module__ != config.DraftConfig.__module__  # of a command of its own
]
KEYS = sorted({name for section in SECTIONS for name in section.model_fields})


def sample(annotation: Any) -> Any:
    """Returns some value of a field's type, to get past its own validation."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    return {int: 3, float: 0.5, str: "x", bool: True}.get(annotation)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_is_accepted_by_exactly_its_section(section: type[BaseModel]) -> None:
    own = {name: sample(info.annotation) for name, info in section.model_fields.items()}
    for key in [*KEYS, "nonsense"]:
        with pytest.raises(ValueError, match=r".*") as error:
            section.model_validate({**own, key: object(), "surely_unknown": 1})
        unknown = {d["loc"][0] for d in error.value.errors() if d["type"] == "extra_forbidden"}  # type: ignore[attr-defined]
        assert (key in unknown) == (key not in section.model_fields), key


def test_all_keys_are_all_keys() -> None:
    keys = all_keys()
    assert len(keys) == len(set(keys))
    assert {key.rpartition(".")[2] for key in keys} == set(KEYS)
    assert {"tasks.subset", "tasks.options", "prompt.shots", "verifier.timeout", "evaluation.every"} <= set(
        keys
    )


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainig": {"steps": 3}}, "trainig: unknown key; did you mean training?"),
        ({"training": {"step": 3}}, "training.step: unknown key; did you mean training.steps?"),
        ({"learning_rate": 1}, "learning_rate: unknown key; did you mean optimizer.learning_rate?"),
        ({"learning-rate": 1}, "learning-rate: unknown key; did you mean optimizer.learning_rate?"),
        ({"task": MINIMAL["tasks"]}, "task: unknown key; did you mean tasks?"),
        ({"evaluation": {"task": 3}}, "evaluation.task: unknown key; did you mean evaluation.tasks?"),
        ({"path": "x"}, "path: unknown key; did you mean model.path?"),
        ({"zzz": 1}, "zzz: unknown key"),
        ({"tasks": {"subset": "x"}}, "tasks.subset: unknown key of kind jsonl; it belongs to kind hub"),
        (
            {"prompt": {"kind": "few_shot", "thinking": True}},
            "prompt.thinking: unknown key of kind few_shot; it belongs to kind chat",
        ),
        (
            {"verifier": {"kind": "function", "path": "a:b", "workers": 2}},
            "verifier.workers: unknown key of kind function; it belongs to kind math or code",
        ),
        ({"tasks": {"subsett": "x"}}, "tasks.subsett: unknown key; did you mean tasks.subset?"),
        # keys that are called like a kind
        ({"hub": 3}, "hub: unknown key"),
        ({"tasks": {"hub": 3}}, "tasks.hub: unknown key"),
        ({"parquet": {"a": 1}}, "parquet: unknown key"),
    ],
)
def test_unknown_keys_come_with_a_way_out(sections: dict[str, Any], message: str) -> None:
    assert refusal(changed(**sections)) == message


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_is_refused_with_the_reason(key: str) -> None:
    assert refusal(changed(sampling={key: 1})) == (
        f"sampling.{key}: unknown key (the training law would differ from the sampled one; rollouts are "
        "drawn from the whole law)"
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"training": {"mini_batches": 3}},
            "training.mini_batches = 3 does not divide rollout.prompts_per_step = 8: every update takes its "
            "share of the step's prompts",
        ),
        (
            {"advantage": {"overlong": {"buffer_tokens": 300}}},
            "advantage.overlong.buffer_tokens = 300 is more than sampling.max_new_tokens = 256",
        ),
        (
            {"kl": {"coef": 0.1, "reference": {"kind": "base"}}},
            "kl.reference.kind = base is the model without its adapter, and there is no model.adapter; "
            "kind = start is the model as it was",
        ),
        (
            {"kl": {"coef": 0.1, "divergence": "k1"}},
            "kl.divergence = 'k1': Input should be 'reverse' or 'forward'",
        ),
        (
            {"rollout": {"samples_per_prompt": 10**9}},
            "rollout.prompts_per_step x rollout.samples_per_prompt = 8000000000 rollouts in one step, "
            "which are all alive at once; at most 65536",
        ),
        (
            {"evaluation": {"samples": 10**9}},
            "evaluation.samples = 1000000000: Input should be less than or equal to 4096",
        ),
        (
            {"model": {"adapter": {"rank": 10**9}}},
            "model.adapter.rank = 1000000000: Input should be less than or equal to 65536",
        ),
        (
            {"model": {"adapter": {"alpha": 1e30}}},
            "model.adapter.alpha = 1e+30: Input should be less than or equal to 65536",
        ),
        ({"kl": {"coef": 1e30}}, "kl.coef = 1e+30: Input should be less than or equal to 1000000"),
        (
            {"rollout": {"branching": {}}},
            "rollout.branching: 2 x (1 + 4 + 3) = 16 rollouts, and rollout.samples_per_prompt = 8; set "
            "samples_per_prompt = 16, or continuations = [2, 1]",
        ),
        (
            {"rollout": {"branching": {"roots": 3}}},
            "rollout.branching: 3 x (1 + 4 + 3) = 24 rollouts, and rollout.samples_per_prompt = 8; set "
            "samples_per_prompt = 24",
        ),
        (
            {"rollout": {"branching": {"roots": 9}}},
            "rollout.branching: 9 x (1 + 4 + 3) = 72 rollouts, and rollout.samples_per_prompt = 8; set "
            "samples_per_prompt = 72",
        ),
        (
            {
                "rollout": {"samples_per_prompt": 16, "branching": {"rule": {"base": "decode"}}},
                "sampling": {"temperature": 0.7},
            },
            "rollout.branching.rule.base = decode needs sampling.temperature = 1, not 0.7: roots are scored "
            "at temperature 1; use base = prefill",
        ),
        (
            {"rollout": {"samples_per_prompt": 16, "branching": {"min_gap": 10**18}}},
            "rollout.branching: 2 points 1000000000000000000 tokens apart, behind the first 1 and before the "
            "last 0, never fit into sampling.max_new_tokens = 256; lower min_gap, skip_first or skip_last",
        ),
        ({"kl": {"coef": 0.0}}, "kl.coef = 0.0: Input should be greater than 0"),
        ({"loss": {"dual_clip": 1.1}}, "loss: dual_clip = 1.1 is inside the clip of 1 + clip_high = 1.28"),
        (
            {"tasks": {"kind": "json"}},
            "tasks.kind = 'json': it is one of jsonl, parquet, hub, reasoning_gym, humaneval",
        ),
        (
            {"tasks": {"kind": None}},
            "tasks.kind = None: it is one of jsonl, parquet, hub, reasoning_gym, humaneval",
        ),
        ({"prompt": {"shots": 3}}, "prompt.shots: unknown key of kind chat; it belongs to kind few_shot"),
        ({"tasks": 3}, "tasks = 3: expected keys and values"),
        ({"training": None}, "training = None: expected keys and values"),
        ({"training": {"steps": 0}}, "training.steps = 0: Input should be greater than 0"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature = 0: Input should be greater than 0"),
        ({"sampling": {"stop": "\n"}}, r"sampling.stop = '\n': expected a list"),
        ({"sampling": {"stop": ["a", 3]}}, "sampling.stop.1 = 3: Input should be a valid string"),
        ({"loss": {"clip_low": 1.5}}, "loss.clip_low = 1.5: Input should be less than or equal to 1"),
        ({"loss": {"objective": "gspo"}}, "loss.objective: unknown key; it is loss.kind now"),
        ({"loss": {"kind": "grpo"}}, "loss.kind = 'grpo': it is one of ppo_clip, gspo, cispo, reinforce"),
        (
            {"loss": {"kind": "gspo", "aggregation": "token"}},
            "loss.aggregation: unknown key of kind gspo; it belongs to kind ppo_clip or cispo or reinforce",
        ),
        (
            {"optimizer": {"learning_rate": float("nan")}},
            "optimizer.learning_rate = nan: Input should be a finite number",
        ),
        (
            {"optimizer": {"betas": [0.9, 1.0]}},
            "optimizer: betas must lie in [0, 1), got [0.9, 1.0]",
        ),
        ({"verifier": {"kind": "function"}}, "verifier.path: missing"),
        (
            {"prompt": {"kind": "few_shot", "template": "{question}"}},
            "prompt: template must contain {question} and end with {answer}",
        ),
        ({"name": "a/b"}, "name = 'a/b': String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'"),
        (
            {"rollout": {"samples_per_prompt": 1}},
            "rollout.samples_per_prompt = 1: a group of one has no baseline to be compared with and every "
            "advantage is 0; use 2 or more",
        ),
        (
            {"verifier": {"kind": "reasoning_gym"}},
            "verifier.kind = reasoning_gym scores only reasoning_gym tasks, not jsonl",
        ),
        (
            {"optimizer": {"warmup_steps": 100}},
            "optimizer.warmup_steps = 100 leaves nothing of the 100 updates of training.steps = 100",
        ),
        (
            {"tasks": {"limit": 0, "no": 1}},
            "tasks.limit = 0: Input should be greater than 0; tasks.no: unknown key",
        ),
    ],
)
def test_bad_values_are_named(sections: dict[str, Any], message: str) -> None:
    assert refusal(changed(**sections)) == message


def test_what_is_missing_is_named() -> None:
    assert refusal({}) == "tasks: missing"
    assert refusal({"tasks": {"kind": "jsonl"}}) == "tasks.path: missing"


def test_odd_keys_stay_on_one_line() -> None:
    assert refusal(changed(**{"a\nb": 1})) == "a b: unknown key"
    assert refusal({**MINIMAL, 3: 4}) == "3 = 3: Keys should be strings"  # type: ignore[dict-item]


def test_a_section_without_default_kind_names_its_kinds() -> None:
    message = "tasks.kind: missing; it is one of jsonl, parquet, hub, reasoning_gym, humaneval"
    assert refusal({"tasks": {"path": "a"}}) == message


def test_importing_stays_light() -> None:
    code = "import sys, turnpoint.config; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    source = str(Path(config.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_yes_is_no_number() -> None:
    assert "training.steps: True" in refusal(changed(training={"steps": True}))
    assert "optimizer.learning_rate: True" in refusal(changed(optimizer={"learning_rate": True}))
    assert "tasks.limit: False" in refusal(changed(tasks={"limit": False}))


def test_a_path_that_no_file_can_have_is_refused() -> None:
    for path in ("a\0b", "\ud800"):
        assert refusal(changed(tasks={"path": path})).startswith("tasks.path: ")
        assert refusal(changed(output_dir=path)).startswith("output_dir")
    assert refusal(changed(model={"path": "a\0b"})).startswith("model.path: ")


@pytest.mark.parametrize(
    "sections",
    [
        {"sampling": {"temperature": 1e-7}},
        {"sampling": {"temperature": 1e300}},
        {"sampling": {"stop": [""]}},
        {"optimizer": {"learning_rate": 1.5}},
        {"optimizer": {"weight_decay": 1e30}},
        {"verifier": {"kind": "math", "timeout": 1e300}},
        {"training": {"head_chunk_tokens": 10**30}},
    ],
)
def test_a_number_that_breaks_the_arithmetic_is_refused(sections: dict[str, Any]) -> None:
    section, values = next(iter(sections.items()))
    assert f"{section}.{list(values)[-1]}" in refusal(changed(**sections))
