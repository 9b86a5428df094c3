"""MTP heads in the engine draft what they would draft alone, on whatever rows; the law is the policy's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.serve import ask, asks, decode, generate, logprobs_of, prompt
from tests.models.mtp_models import random_heads
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import DepthRule, FixedDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.errors import ModelError
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_attention import DraftCache
from turnpoint.models.mtp_fresh import fit_projection, fresh_heads
from turnpoint.models.mtp_host import host_of
from turnpoint.models.mtp_layout import mtp_layout
from turnpoint.types import TokenIds

OWN = mtp_layout("turnpoint").names


def test_rows_that_join_while_drafts_wait_for_their_verification_take_nothing_away() -> None:
    """The first row is alone until the rest of the others' prompts is through, and drafts meanwhile."""
    decoder = tiny_decoder()
    for seed in range(8, 12):
        engine = TorchEngine(  # a new one, whose storage has to grow
            decoder,
            decode=decode,
            context_length=CONTEXT,
            speculation=Speculation(drafter=MtpDrafter(fresh_heads(decoder)), depth=FixedDepth(2)),
        )
        requests = [
            ask(
                f"{text}/{sample}",
                [9, 10, 11, 20 + 5 * (seed - 8) + text, 12, 13, 7, 7],
                max_tokens=8,
                seed=seed,
            )
            for text in range(4)
            for sample in range(4)
        ]
        for request, completion in zip(requests, generate(engine, *requests), strict=True):
            ids = np.concatenate([request.prompt_ids, completion.token_ids])
            exact = logprobs_of(tiny_decoder(), ids, len(request.prompt_ids))
            np.testing.assert_allclose(completion.logprobs, exact, atol=2e-4)


class Alone:
    """A drafter that computes each row's chain with the heads' own cache, anew each time, and compares."""

    def __init__(self, heads: MtpHeads, decoder: Decoder) -> None:
        self.heads, self.decoder = heads, decoder
        self.drafter = MtpDrafter(heads)
        self.states: dict[int, Tensor] = {}
        self.ids: dict[int, list[int]] = {}
        self.compared = 0

    def propose(self, *, draw: Callable[[Tensor], Tensor], **given: Any) -> None:
        rows: Sequence[int] = given["rows"]
        for row, start, states, ids in zip(
            rows, given["starts"], given["hidden"], given["token_ids"], strict=True
        ):
            known = self.states[row][:start] if start else states[:0]
            self.states[row] = torch.cat([known, self.heads.fed_by(states)])
            self.ids[row] = [*(self.ids[row] if start else []), *map(int, ids)]
        seen: list[Tensor] = []
        drawn: list[Tensor] = []

        def watched(logits: Tensor) -> Tensor:
            seen.append(logits)
            drawn.append(draw(logits))
            return drawn[-1]

        self.drafter.propose(draw=watched, **given)
        for at, row in enumerate(rows):
            for depth, logits in enumerate(self.chain(row, drawn, given["depths"], at)):
                place = sum(most > depth for most in given["depths"][:at])
                torch.testing.assert_close(seen[depth][place], logits, atol=1e-4, rtol=1e-4)
                self.compared += 1

    def chain(self, row: int, drawn: list[Tensor], depths: Sequence[int], at: int) -> list[Tensor]:
        """Returns the logits of each depth, by the heads' own cache over the whole sequence."""
        cache, count = DraftCache(self.heads.layout.slots(max(depths))), len(self.ids[row])
        carried, read, found = self.states[row], list(self.ids[row]), list[Tensor]()
        for depth in range(1, depths[at] + 1):
            if depth > 1:
                place = sum(most >= depth - 1 for most in depths[:at])
                read.append(int(drawn[depth - 2][place]))
            slot, again = self.heads.slot(depth), self.heads.extends(depth)
            carried = carried[-1:] if again else carried
            positions = torch.arange(count - len(carried), count) + depth - 1
            step = self.heads.step(
                depth=depth,
                hidden=carried,
                token_ids=torch.tensor(read)[positions],
                positions=positions,
                layout=cache.extend(slot, positions=positions)
                if again
                else cache.write(slot, anchor=0, positions=positions),
            )
            carried = step.carried
            found.append(self.decoder.logits(step.hidden[-1:])[0])
        return found

    def move(self, row: int, to: int) -> None:
        self.drafter.move(row, to)
        self.states[to], self.ids[to] = self.states.pop(row), self.ids.pop(row)

    def clear(self) -> None:
        self.drafter.clear()


def engine_with(drafter: Any, decoder: Decoder, *, depth: DepthRule | None = None) -> TorchEngine:
    return TorchEngine(
        decoder,
        decode=decode,
        context_length=CONTEXT,
        speculation=Speculation(drafter=drafter, depth=depth or FixedDepth(3)),
    )


def heads_like(family: str, decoder: Decoder, **changes: Any) -> MtpHeads:
    """Returns random heads wired like a family's, whatever the decoder's norms are stored as."""
    return random_heads(host_of(decoder), replace(mtp_layout(family), names=OWN), **changes)


def up_and_down(*depths: int) -> DepthRule:
    """Returns a rule under which rounds go to `depths`, over and over."""
    rule, again = FixedDepth(max(depths)), itertools.cycle(depths)
    rule.depth = lambda *, rows: next(again)  # type: ignore[method-assign]
    return rule


@pytest.mark.parametrize(
    ("architecture", "family", "layers", "attention"),
    [
        ("llama", "turnpoint", 1, "first_use"),
        ("gemma", "turnpoint", 1, "first_use"),
        ("llama", "deepseek_v3", 1, "first_use"),
        ("gemma", "deepseek_v3", 2, "first_use"),  # used again, with a window
        ("llama", "turnpoint", 2, "first_use"),
        ("llama", "mimo", 3, "first_use"),
        ("gpt2", "mimo", 1, "first_use"),  # norms that take away the mean, too
        ("gemma", "turnpoint", 2, "same_depth"),
        ("llama", "deepseek_v3", 1, "same_depth"),
    ],
)
@torch.no_grad()
def test_rows_draft_as_each_would_alone(architecture: str, family: str, layers: int, attention: str) -> None:
    """Members of two groups of different lengths, which end at different times and fork afterwards."""
    decoder = tiny_decoder(architecture)
    for weight in host_of(decoder).norm.parameters():  # no norm that passes on what it is given
        weight.add_(0.5 * torch.randn_like(weight))
    alone = Alone(heads_like(family, decoder, layers=layers, attention=attention), decoder)
    engine = engine_with(alone, decoder, depth=up_and_down(5, 1, 0, 3, 2))
    requests = [*asks(2, prompt(40), max_tokens=17), *asks(2, prompt(5, 1), max_tokens=9)]
    for at, request in enumerate(requests):
        object.__setattr__(request, "id", f"r{at}")
    roots = generate(engine, *requests)
    path: TokenIds = np.concatenate([prompt(40), roots[0].token_ids[:9]])
    forks = generate(engine, *asks(2, path, max_tokens=7))
    assert alone.compared > 50
    for fork in forks:
        exact = logprobs_of(decoder, np.concatenate([path, fork.token_ids]), len(path))
        np.testing.assert_allclose(fork.logprobs, exact, atol=5e-4)


@torch.no_grad()
def test_heads_fitted_to_the_policys_text_are_accepted_more_often() -> None:
    decoder = tiny_decoder()
    plain = TorchEngine(decoder, decode=decode, context_length=CONTEXT)
    texts = [it.token_ids for it in generate(plain, *asks(8, prompt(1), max_tokens=200, temperature=0.3))]
    heads = fresh_heads(decoder)
    accepted: list[float] = []
    for fit in (False, True):
        if fit:
            lengths = [len(text) for text in texts]
            fit_projection(
                heads,
                decoder,
                token_ids=torch.from_numpy(np.concatenate(texts).astype(np.int64)),
                positions=torch.cat([torch.arange(length) for length in lengths]),
                lengths=lengths,
            )
        engine = engine_with(MtpDrafter(heads), decoder)
        generate(engine, *asks(8, prompt(1), max_tokens=60, temperature=0.3))
        accepted.append(engine.stats.accepted / engine.stats.drafted)
    assert accepted[1] > accepted[0]


def test_a_final_norm_that_leaves_no_trace_is_refused_where_states_before_it_are_needed() -> None:
    decoder = tiny_decoder()
    with torch.no_grad():
        host_of(decoder).norm.weight[3] = 0  # type: ignore[index]
    MtpDrafter(heads_like("turnpoint", decoder))
    with pytest.raises(ModelError, match="weights next to 0"):
        MtpDrafter(heads_like("deepseek_v3", decoder))


def test_causal_layout_is_what_one_sequence_sees() -> None:
    """Depth 1 over a whole sequence, by the drafter's storage, is plain causal attention."""
    decoder = tiny_decoder()
    heads, drafter = fresh_heads(decoder), MtpDrafter(fresh_heads(decoder))
    states, ids = torch.randn(30, 32), np.arange(8, 38, dtype=np.int32)
    seen: list[Tensor] = []

    def draw(logits: Tensor) -> Tensor:
        seen.append(logits)
        return logits.argmax(-1)

    with torch.no_grad():
        drafter.propose(
            rows=[0], starts=[0], hidden=[states], token_ids=[ids], depths=[1], head=decoder.logits, draw=draw
        )
        places = torch.arange(30)
        step = heads.step(
            depth=1,
            hidden=states,
            token_ids=torch.from_numpy(ids.astype(np.int64)),
            positions=places,
            layout=CausalLayout(),
        )
        torch.testing.assert_close(seen[0], decoder.logits(step.hidden[-1:]), atol=1e-5, rtol=1e-5)
