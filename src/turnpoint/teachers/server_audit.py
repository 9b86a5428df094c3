"""Whether ids mean the same to a server: all of them through its own decoder, special ones back again.

A log-probability says nothing about the text that an id stands for; a server of another model answers as
readily. Asking costs one question for each thousand ids, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnpoint.errors import ModelError
from turnpoint.rollout.concurrency import all_of
from turnpoint.teachers.server import Server

_AT_ONCE = 1024  # ids in one question


async def check_ids(
    server: Server,
    *,
    name: str,
    ids: Sequence[int],
    special_ids: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    encode: Callable[[str], Sequence[int]],
) -> None:
    """Raises ModelError unless the server reads `ids` as `decode` does, and special ones as one id each.

    `decode` keeps special tokens, `encode` adds none. EngineError when it cannot be asked.
    """
    parts = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]

    async def agrees(part: Sequence[int]) -> bool:
        return await server.text(part) == decode(part)

    for part, same in zip(parts, await all_of(agrees(part) for part in parts), strict=True):
        if not same:
            await _name_first(server, part, name=name, decode=decode)
    for token in special_ids:
        word = decode([token])
        mine, theirs = list(encode(word)), await server.ids(word, special=False)
        if mine != theirs:
            raise ModelError(
                f"{name} reads {word!r} as the ids {theirs}, and the policy as {mine}: they do not agree on "
                f"what is special; a teacher needs the policy's tokenizer"
            )


async def _name_first(
    server: Server, part: Sequence[int], *, name: str, decode: Callable[[Sequence[int]], str]
) -> None:
    """Raises ModelError about the first of `part` that differs, found by halving."""
    while len(part) > 1:
        half = part[: len(part) // 2]
        part = part[len(half) :] if await server.text(half) == decode(half) else half
    theirs, mine = await server.text(part), decode(part)
    raise ModelError(
        f"{name} reads ids as something else, the first is {part[0]}: {mine!r} to the policy, {theirs!r} to "
        f"the teacher; a teacher needs the policy's tokenizer"
    )
