"""What a teacher in this process holds in memory, beside the policy."""

from __future__ import annotations

from dataclasses import dataclass

from turnpoint.diagnosis.memory import gigabytes
from turnpoint.engine.span import CacheShape
from turnpoint.models.decoder import Decoder
from turnpoint.models.packed import packed_bytes
from turnpoint.models.twin import own_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherMemory:
    """Bytes of its own, by what they are for."""

    name: str
    weights: int
    shares: bool  # whether it has other weights in common with the policy, not counted here
    averages: int  # in float32, where the weights themselves are of another type
    packed: int  # the linear layers once more, for this CPU
    cache: int  # prefixes, at most
    visits: bool  # it is there only while it speaks

    @property
    def total(self) -> int:
        """Bytes while it speaks."""
        return self.weights + self.averages + self.packed + self.cache

    def line(self) -> str:
        """Says it for a plan."""
        parts = [f"{gigabytes(self.weights)} of weights" + (" beside the policy's" if self.shares else "")]
        parts += [f"{gigabytes(self.averages)} of averages in float32"] if self.averages else []
        parts += [f"{gigabytes(self.packed)} of them packed for this CPU"] if self.packed else []
        while_it = ", while it speaks" if self.visits else ""
        return f"{self.name}: {', '.join(parts)}, prefixes of at most {gigabytes(self.cache)}{while_it}"


def memory_of_model(name: str, decoder: Decoder, *, cached: int, visits: bool) -> TeacherMemory:
    """Returns what a model of its own holds, with at most `cached` tokens in its prefix cache."""
    return TeacherMemory(
        name=name,
        weights=sum(weight.nbytes for weight in decoder.model.parameters()),
        shares=False,
        averages=0,
        packed=packed_bytes(decoder),
        cache=cached * CacheShape.of(decoder).token_bytes,
        visits=visits,
    )


def memory_of_twin(name: str, decoder: Decoder, *, cached: int, averaged: bool) -> TeacherMemory:
    """Returns what a twin of the policy holds; `averaged`: it follows the policy."""
    own = own_weights(decoder).values()
    return TeacherMemory(
        name=name,
        weights=sum(weight.nbytes for weight in own),
        shares=len(own) < len(list(decoder.model.parameters())),
        averages=sum(4 * weight.numel() for weight in own if weight.element_size() != 4) if averaged else 0,
        packed=0,
        cache=cached * CacheShape.of(decoder).token_bytes,
        visits=False,
    )
