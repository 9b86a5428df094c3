"""A radix tree over token ids whose nodes own the keys and values of their tokens.

Any prefix of any length is found, with no block borders: a fork in the middle of an earlier rollout costs
nothing but the tokens after it. Every node owns its memory (a split copies), so that evicting a leaf frees
exactly what it accounts for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from turnpoint.engine.span import Span
from turnpoint.types import TokenIds


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Returns how many leading ids are the same."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


class _Node:
    __slots__ = ("children", "ids", "parent", "span")

    def __init__(self, ids: TokenIds, span: Span, parent: _Node | None) -> None:
        self.ids = ids
        self.span = span
        self.parent = parent  # None: a child of the root
        self.children: dict[int, _Node] = {}  # by first token id


class PrefixCache:
    """Cached tokens up to `capacity`; beyond it the least recently used leaves go first.

    A sequence that alone exceeds `capacity` is not cached.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._children: dict[int, _Node] = {}
        self._tokens = 0
        # Oldest first. A use moves the whole path to the end, deepest node first, so that a node is never
        # older than its descendants: the oldest node is always a leaf.
        self._by_use: OrderedDict[_Node, None] = OrderedDict()

    @property
    def tokens(self) -> int:
        """How many tokens are cached."""
        return self._tokens

    def match(self, ids: TokenIds) -> int:
        """Returns the length of the longest cached prefix of `ids`; uses nothing."""
        return sum(length for _, length in self._walk(ids))

    def read(self, ids: TokenIds) -> list[Span]:
        """Returns the longest cached prefix of `ids` as consecutive views, valid until the next change."""
        path = self._walk(ids)
        self._touch([node for node, _ in path])
        return [node.span.part(0, length) for node, length in path]

    def insert(self, ids: TokenIds, take: Callable[[int, int], Span]) -> None:
        """Caches `ids`; `take(start, end)` gives the span of those tokens, which is copied."""
        if len(ids) > self._capacity:
            return
        path = self._walk(ids)
        known = sum(length for _, length in path)
        if path and path[-1][1] < len(path[-1][0].ids) and known < len(ids):
            path[-1] = (self._split(*path[-1]), path[-1][1])
        nodes = [node for node, _ in path]
        if known < len(ids):
            parent = nodes[-1] if nodes else None
            leaf = _Node(ids[known:].copy(), take(known, len(ids)).clone(), parent)
            self._children_of(parent)[int(ids[known])] = leaf
            self._tokens += len(leaf.ids)
            nodes.append(leaf)
        self._touch(nodes)
        while self._tokens > self._capacity:
            self._evict()

    def _walk(self, ids: TokenIds) -> list[tuple[_Node, int]]:
        """Returns the nodes along `ids` and how many tokens of each agree; only the last may be partial."""
        path: list[tuple[_Node, int]] = []
        children, at = self._children, 0
        while at < len(ids) and (node := children.get(int(ids[at]))) is not None:
            length = common_prefix(node.ids, ids[at:])
            path.append((node, length))
            if length < len(node.ids):
                break
            children, at = node.children, at + length
        return path

    def _split(self, node: _Node, length: int) -> _Node:
        upper = _Node(node.ids[:length].copy(), node.span.part(0, length).clone(), node.parent)
        self._children_of(node.parent)[int(upper.ids[0])] = upper
        node.ids, node.span = node.ids[length:].copy(), node.span.part(length, len(node.ids)).clone()
        node.parent = upper
        upper.children[int(node.ids[0])] = node
        return upper

    def _children_of(self, node: _Node | None) -> dict[int, _Node]:
        return self._children if node is None else node.children

    def _touch(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._by_use[node] = None
            self._by_use.move_to_end(node)

    def _evict(self) -> None:
        leaf, _ = self._by_use.popitem(last=False)
        assert not leaf.children, "the least recently used node is a leaf"
        del self._children_of(leaf.parent)[int(leaf.ids[0])]
        self._tokens -= len(leaf.ids)
