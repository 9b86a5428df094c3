"""Speculative decoding in the engine: the same law and ends, true log-probabilities, any mixture of rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tests.engine.bent import Bent, always
from tests.engine.guesses import Guesses
from tests.engine.serve import ask, asks, decode, encode, generate, law, logprobs_of, prompt
from tests.tiny import CONTEXT, tiny_decoder, tiny_model
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import DepthRule, FixedDepth, GoodputDepth, Survival
from turnpoint.engine.speculation import Speculation
from turnpoint.engine.verification import MODES, verify_chains
from turnpoint.errors import EngineError
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Drafter
from turnpoint.types import FinishReason


def engine_with(
    drafter: Drafter, *, depth: DepthRule | None = None, mode: str = "token", decoder: Decoder | None = None
) -> TorchEngine:
    return TorchEngine(
        tiny_decoder() if decoder is None else decoder,
        decode=decode,
        context_length=CONTEXT,
        speculation=Speculation(drafter=drafter, depth=depth or FixedDepth(3), mode=mode),
    )


def test_drafts_fit_the_protocol() -> None:
    assert isinstance(Guesses(tiny_decoder()), Drafter)


@pytest.mark.parametrize("mode", MODES)
def test_logprobs_are_those_of_the_target_recomputed(mode: str) -> None:
    """Rows of different lengths and temperatures, one of them greedy, some sharing their prompt."""
    engine = engine_with(Guesses(tiny_decoder(seed=0)), mode=mode)
    requests = [
        *asks(4, prompt(30), max_tokens=21),
        ask("short", prompt(3, 1), max_tokens=5),
        ask("warm", prompt(9, 2), temperature=1.4, max_tokens=17),
        ask("one", prompt(9, 3), max_tokens=1),
    ]
    for request, completion in zip(requests, generate(engine, *requests), strict=True):
        assert len(completion.token_ids) == request.max_tokens
        ids = np.concatenate([request.prompt_ids, completion.token_ids])
        exact = logprobs_of(tiny_decoder(), ids, len(request.prompt_ids), request.temperature)
        np.testing.assert_allclose(completion.logprobs, exact, atol=2e-4)
    stats = engine.stats
    assert stats.drafted > stats.accepted > 0
    assert stats.sampled == sum(request.max_tokens for request in requests)


@pytest.mark.parametrize("mode", MODES)
def test_the_likeliest_text_is_that_of_plain_decoding(mode: str) -> None:
    asked = asks(3, prompt(12), max_tokens=30, temperature=0.0)
    plain = generate(TorchEngine(tiny_decoder(), decode=decode, context_length=CONTEXT), *asked)
    for drafts in (tiny_decoder(), tiny_decoder(seed=5)):
        for left, right in zip(generate(engine_with(Guesses(drafts), mode=mode), *asked), plain, strict=True):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)
            assert not left.logprobs.any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_no_token(temperature: float) -> None:
    """Where the likeliest token is looked for, the place of NaN would be found: here that of a stop."""
    bent = Bent()
    real = bent.decoder.finish

    def finish(scores: torch.Tensor) -> torch.Tensor:  # the first token is drawn without drafts
        logits = real(scores)
        return logits.index_fill(1, torch.tensor([3]), torch.nan) if bent.calls > 1 else logits

    bent.decoder.finish = finish
    engine = engine_with(Guesses(tiny_decoder()), decoder=bent.decoder)
    with pytest.raises(EngineError, match="NaN"):
        generate(engine, ask(temperature=temperature, stop_ids=frozenset({3})))


def test_a_draft_that_is_nearly_perfect_saves_steps() -> None:
    """Drafts see all but the first token."""
    engine = engine_with(Guesses(tiny_decoder()))
    generate(engine, *asks(10, (20,), max_tokens=40))
    assert engine.stats.accepted > 0.4 * engine.stats.drafted
    assert engine.stats.steps < 30


@pytest.mark.parametrize("mode", MODES)
def test_two_tokens_have_their_joint_law(mode: str) -> None:
    """Over a vocabulary of two letters, the first and second of many draws; p and q differ."""
    bent = Bent(always("ab")).decoder
    engine = engine_with(Guesses(Bent(always("ab"), seed=3).decoder), mode=mode, decoder=bent)
    asked = asks(1000, prompt(4), max_tokens=3)
    seen = Counter(tuple(it.token_ids[:2].tolist()) for it in generate(engine, *asked))
    ids = [int(token) for token in encode("ab")]
    first = law(bent, prompt(4))[-1].exp()
    for left in ids:
        second = law(bent, [*prompt(4).tolist(), left])[-1].exp()
        for right in ids:
            expected = float(first[left] * second[right])
            spread = 4 * (expected * (1 - expected) / len(asked)) ** 0.5
            assert seen[left, right] / len(asked) == pytest.approx(expected, abs=spread)
    assert engine.stats.accepted < engine.stats.drafted


def test_depth_zero_is_the_plain_step_bit_for_bit() -> None:
    asked = asks(6, prompt(10), max_tokens=12)
    plain = TorchEngine(tiny_decoder(), decode=decode, context_length=CONTEXT)
    idle = engine_with(Guesses(tiny_decoder()), depth=FixedDepth(0))
    for left, right in zip(generate(plain, *asked), generate(idle, *asked), strict=True):
        np.testing.assert_array_equal(left.token_ids, right.token_ids)
        np.testing.assert_array_equal(left.logprobs, right.logprobs)
    assert idle.stats.steps == plain.stats.steps
    assert idle.stats.drafted == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_text_is_the_same_beside_rows_that_go_deeper(mode: str) -> None:
    """Of 5 tokens the last rounds are shallow; the coins of a depth do not depend on how deep others go."""
    short = [ask(f"s{at}", prompt(6), max_tokens=5, temperature=0.7) for at in range(12)]
    long = asks(2, prompt(6, 3), max_tokens=12)
    alone = generate(engine_with(Guesses(tiny_decoder()), mode=mode), *short)
    beside = generate(engine_with(Guesses(tiny_decoder()), mode=mode), *short, *long)
    for left, right in zip(alone, beside, strict=False):
        np.testing.assert_array_equal(left.token_ids, right.token_ids)


def test_the_last_token_is_not_drafted() -> None:
    engine = engine_with(Guesses(tiny_decoder()))
    generate(engine, ask(max_tokens=2))
    assert engine.stats.drafted == 0
    generate(engine, ask(max_tokens=3))
    assert engine.stats.drafted == 1


def test_a_stop_as_the_first_draft_is_all_that_its_round_gives() -> None:
    """The policy says `a` once, then nothing but `#`, which the drafter knows."""
    bent = Bent()
    real, stop = bent.decoder.finish, int(encode("#")[0])
    bent.decoder.finish = lambda scores: real(scores) + always("a" if bent.calls == 1 else "#")
    engine = engine_with(Guesses(Bent(always("#")).decoder), decoder=bent.decoder)
    (found,) = generate(engine, ask(max_tokens=30, stop_ids=frozenset({stop})))
    assert found.token_ids.tolist() == [int(encode("a")[0]), stop]
    assert found.finish is FinishReason.STOP
    np.testing.assert_allclose(found.logprobs, 0, atol=1e-6)
    stats = engine.stats
    assert (stats.rounds, stats.drafted, stats.accepted) == (1, 3, 0), (
        "what it gained beside any pass's token"
    )


def test_what_is_accepted_is_what_texts_gained() -> None:
    """Drafts are perfect: of five tokens one is drawn plainly, a round gives four."""
    bent = Bent(always("a")).decoder
    engine = engine_with(Guesses(bent), decoder=bent)
    generate(engine, ask(max_tokens=5))
    assert (engine.stats.sampled, engine.stats.rounds, engine.stats.accepted) == (5, 1, 3)
    generate(engine, ask("s", max_tokens=5, stop_strings=("aaa",)))
    assert engine.stats.sampled == 8
    assert (engine.stats.rounds, engine.stats.accepted) == (2, 4), (
        "aaa: of three drafts two, the second beside"
    )


@pytest.mark.parametrize("most", [1, 3, 9])
def test_how_deep_a_row_goes_does_not_depend_on_how_many_there_are(most: int) -> None:
    """In a step of 9 tokens two rows go to 3; in one of 3 tokens, one row to 2."""

    def texts(*ids: str) -> list[list[int]]:
        engine = TorchEngine(
            tiny_decoder(),
            decode=decode,
            context_length=CONTEXT,
            max_step_tokens=most,
            speculation=Speculation(drafter=Guesses(tiny_decoder(seed=2)), depth=FixedDepth(3)),
        )
        found = generate(engine, *[ask(it, prompt(6), max_tokens=12) for it in ids])
        assert (engine.stats.drafted > 0) == (most > 1)
        assert engine.stats.decoded <= most * engine.stats.steps
        return [it.token_ids.tolist() for it in found]

    assert texts("a", "b", "c", "d") == [*texts("a"), *texts("b"), *texts("c"), *texts("d")]


def test_logits_of_minus_infinity_are_tokens_that_are_never_drawn() -> None:
    """The policy never says `b`, the drafter never `a`; a draft of no token at all is no law."""
    bent = Bent(always("ac")).decoder
    engine = engine_with(Guesses(Bent(always("bc")).decoder), decoder=bent)
    found = generate(engine, *asks(20, prompt(4), max_tokens=9))
    allowed = set(encode("ac").tolist())
    assert {token for it in found for token in it.token_ids.tolist()} == allowed
    assert all(np.isfinite(it.logprobs).all() for it in found)
    assert engine.stats.accepted > 0
    nothing = Bent(torch.full((tiny_decoder().vocab_size,), -torch.inf)).decoder
    with pytest.raises(EngineError, match="not finite"):
        generate(engine_with(Guesses(nothing), decoder=bent), ask(max_tokens=9))


def test_a_stop_inside_an_accepted_block_ends_there() -> None:
    bent = Bent(always("ab#")).decoder
    stop = int(encode("#")[0])
    engine = engine_with(Guesses(bent), decoder=bent)
    for completion in generate(engine, *asks(30, prompt(5), stop_ids=frozenset({stop}), max_tokens=100)):
        assert completion.finish is FinishReason.STOP
        assert completion.token_ids[-1] == stop
        assert (completion.token_ids[:-1] != stop).all()
        assert len(completion.logprobs) == len(completion.token_ids)
    for completion in generate(engine, *asks(30, prompt(6), stop_strings=("abba", "bb"), max_tokens=200)):
        whole = decode(completion.token_ids)
        assert whole.endswith(("abba", "bb"))
        assert "abba" not in completion.text
        assert "bb" not in completion.text
    assert engine.stats.accepted > 0


def test_a_fork_reads_what_was_accepted_from_the_cache() -> None:
    engine = engine_with(Guesses(tiny_decoder()))
    root = generate(engine, ask("root", prompt(20), max_tokens=20))[0]
    path = np.concatenate([prompt(20), root.token_ids[:11]])
    before = engine.stats
    fork = generate(engine, ask("fork", path, max_tokens=9))[0]
    assert (engine.stats - before).prefilled == 0
    exact = logprobs_of(tiny_decoder(), np.concatenate([path, fork.token_ids]), len(path))
    np.testing.assert_allclose(fork.logprobs, exact, atol=2e-4)


def test_new_weights_drop_what_was_drafted_with_the_old_ones() -> None:
    decoder, drafter = tiny_decoder(), Guesses(tiny_decoder())
    engine = engine_with(drafter, decoder=decoder)
    generate(engine, *asks(3, prompt(9), max_tokens=12))
    assert drafter.texts
    engine.load_weights(dict(tiny_model(seed=7).named_parameters()), 1)
    assert not drafter.texts
    (after,) = generate(engine, ask("new", prompt(9), max_tokens=12))
    exact = logprobs_of(tiny_decoder(seed=7), np.concatenate([prompt(9), after.token_ids]), 9)
    np.testing.assert_allclose(after.logprobs, exact, atol=2e-4)


@pytest.mark.parametrize("architecture", ["gemma", "gpt2"])
def test_windows_and_other_positions(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    engine = engine_with(Guesses(tiny_decoder(architecture, seed=1)), decoder=decoder)
    for completion in generate(engine, *asks(5, prompt(25), max_tokens=25)):
        exact = logprobs_of(decoder, np.concatenate([prompt(25), completion.token_ids]), 25)
        np.testing.assert_allclose(completion.logprobs, exact, atol=5e-4)
    assert engine.stats.accepted > 0


# --- how deep -----------------------------------------------------------------------------------


def shown(rule: GoodputDepth, alphas: list[float], times: int = 200) -> None:
    for _ in range(times):
        rule.observe(Survival(reached=np.ones(len(alphas)), overlaps=np.array(alphas)))


def costing(rule: GoodputDepth, rows: int, *, flat: int, draft: float = 0.05) -> None:
    """Verifying costs 1 up to `flat` tokens, and in proportion beyond."""
    for tokens in (rows * (1 + depth) for depth in range(rule.deepest + 1)):
        for _ in range(3):
            rule.spent(rows=rows, depth=0, tokens=tokens, drafting=0, verifying=max(1.0, tokens / flat))
    for _ in range(3):
        rule.spent(rows=rows, depth=1, tokens=rows, drafting=draft, verifying=max(1.0, rows / flat))


@pytest.mark.parametrize(
    ("alphas", "rows", "best"),
    [
        ([0.8, 0.7, 0.6], 1, 3),  # memory-bound: as deep as it goes
        ([0.8, 0.7, 0.6], 64, 0),  # every token costs: none
        ([0.8, 0.1, 0.1], 1, 1),  # the second hardly ever counts
        ([0.02, 0.02, 0.02], 1, 0),  # less than a draft costs
    ],
)
def test_the_depth_with_most_tokens_per_second(alphas: list[float], rows: int, best: int) -> None:
    rule = GoodputDepth(3)
    shown(rule, alphas)
    costing(rule, rows, flat=16)
    assert rule.depth(rows=rows) == best


def test_depth_is_decided_anew_as_the_batch_shrinks() -> None:
    rule = GoodputDepth(3)
    shown(rule, [0.8, 0.7, 0.6])
    for rows in (64, 32, 16, 8, 4, 2, 1):
        costing(rule, rows, flat=16)
    assert [rule.depth(rows=rows) for rows in (64, 16, 4, 1)] == [0, 0, 3, 3]


def test_what_nobody_measured_is_tried_a_few_times_if_it_could_pay() -> None:
    rule = GoodputDepth(2)
    tried = 0
    for _ in range(60):
        depth = rule.depth(rows=4)
        tried += depth > 0
        rule.spent(
            rows=4, depth=depth, tokens=4 * (1 + depth), drafting=0.1 * depth, verifying=1.0 + 3 * depth
        )
        if depth:
            rule.observe(Survival(reached=np.full(depth, 4.0), overlaps=np.full(depth, 0.4)))
    assert 1 <= tried <= 6
    assert rule.depth(rows=4) == 0


def test_survival_counts_what_was_reached() -> None:
    target = torch.tensor([[[0.5, 0.5], [1.0, 0.0]], [[0.9, 0.1], [0.5, 0.5]]])
    drafts = torch.tensor([[[0.5, 0.5], [0.2, 0.8]], [[0.1, 0.9], [0.5, 0.5]]])
    found = Survival.of(target, drafts, lengths=np.array([2, 1]), accepted=torch.tensor([1, 0]))
    np.testing.assert_allclose(found.reached, [2, 1])
    np.testing.assert_allclose(found.overlaps, [1.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_survival_is_how_many_are_accepted(mode: str) -> None:
    """Laws that depend on what was drafted; every third chain is shorter."""
    draws, n, size = torch.Generator().manual_seed(0), 20_000, 4
    lengths = np.where(np.arange(n) % 3, 3, 2)
    target, drafts = torch.zeros(n, 4, size), torch.zeros(n, 3, size)
    ids = torch.zeros(n, 3, dtype=torch.long)
    place = torch.zeros(n, dtype=torch.long)  # what was drafted, as a number
    for at in range(4):
        tables = 1.5 * torch.randn(2, size**at, size, generator=draws)
        target[:, at] = tables[0, place].softmax(-1)
        if at < 3:
            law = (tables[0] + 0.7 * tables[1])[place].softmax(-1)
            drafts[:, at] = law if mode != "target_only" else law.ge(law.amax(-1, keepdim=True)).float()
            ids[:, at] = torch.multinomial(drafts[:, at], 1, generator=draws).squeeze(1)
            place = size * place + ids[:, at]
    accepted, _ = verify_chains(
        target_probs=target,
        draft_probs=drafts,
        draft_ids=ids,
        lengths=torch.from_numpy(lengths),
        uniforms=torch.rand(n, 4, generator=draws, dtype=torch.float64),
        mode=mode,
    )
    rule, laws = GoodputDepth(3), (target[:, :3], drafts)
    rule.observe(
        Survival.of_blocks(*laws, ids, lengths=lengths)
        if mode == "block"
        else Survival.of(*laws, lengths=lengths, accepted=accepted)
    )
    whole = accepted[torch.from_numpy(lengths) == 3]
    counted = [float((whole > at).double().mean()) for at in range(3)]
    assert rule.survival == pytest.approx(counted, abs=0.015)


@pytest.mark.parametrize(("rule", "depth"), [(FixedDepth, -1), (GoodputDepth, 0)])
def test_impossible_depths_are_refused(rule: type[FixedDepth] | type[GoodputDepth], depth: int) -> None:
    with pytest.raises(ValueError, match=str(depth)):
        rule(depth)
