"""Maximum matching in a bipartite graph whose edges are bit sets.

Hopcroft and Karp (1973). Bit sets, because the graphs here are transitive closures: a deep plan of some thousand steps
has millions of pairs, which as Python integers take a megabyte and are searched a word at a time. Knows no plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def maximum_matching(options: Sequence[int]) -> int:
    """Return the most pairs (i, j) with bit j of `options[i]` set such that no i and no j is in two pairs.

    `j` ranges over as many as `i` does.
    """
    size = len(options)
    partner: list[int | None] = [None] * size  # of each i
    owner: list[int | None] = [None] * size  # of each j
    matched = 0
    while layers := _layers(options, partner, owner):
        matched += sum(_augment(i, options, partner, owner, layers) for i in range(size) if partner[i] is None)
    return matched


def _layers(options: Sequence[int], partner: Sequence[int | None], owner: Sequence[int | None]) -> list[int]:
    """Return the right ones by their distance from the unmatched left ones, up to the first distance at which one is
    unmatched itself; empty if none is ever reached."""
    unseen = (1 << len(options)) - 1
    layers: list[int] = []
    frontier = [i for i, mate in enumerate(partner) if mate is None]
    while True:
        reached = 0
        for i in frontier:
            reached |= options[i] & unseen
        if not reached:
            return []
        unseen &= ~reached
        layers.append(reached)
        owners = [owner[j] for j in _bits(reached)]
        frontier = [i for i in owners if i is not None]
        if len(frontier) < len(owners):
            return layers


def _augment(
    start: int, options: Sequence[int], partner: list[int | None], owner: list[int | None], layers: list[int]
) -> bool:
    """Flip an augmenting path from `start` through the layers, if there is one, and take what was tried out of them."""
    path: list[tuple[int, int]] = []
    at = start
    while True:
        depth = len(path)
        candidates = options[at] & layers[depth] if depth < len(layers) else 0
        if not candidates:
            if not path:
                return False
            at, _ = path.pop()
            continue
        j = (candidates & -candidates).bit_length() - 1
        layers[depth] ^= 1 << j
        path.append((at, j))
        mate = owner[j]
        if mate is None:
            for left, right in path:
                partner[left], owner[right] = right, left
            return True
        at = mate


def _bits(value: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    digits = bin(value)[:1:-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)
