"""Similarity of two unfinished traces, and a measure of a similarity judge's quality. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def jaccard(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the Jaccard similarity of two sets, intersection size over union size (0..1; 1 if both are empty)."""
    left, right = frozenset(a), frozenset(b)
    union = len(left | right)
    return len(left & right) / union if union else 1.0


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors of one length; in -1..1, 0 if one of them is zero.

    Raises `ValueError` for vectors of different lengths.
    """
    if len(a) != len(b):
        raise ValueError(f"a vector of {len(a)} numbers and one of {len(b)}: they are not of the same embedding")
    norm = math.hypot(*a) * math.hypot(*b)
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else 0.0


def grams(text: str, n: int = 3) -> Mapping[str, int]:
    """Return the count of each n-gram of characters in a text, with a space added at both ends. This is an embedding
    without a model."""
    padded = f" {text} "
    return Counter(padded[i : i + n] for i in range(max(1, len(padded) - n + 1)))


def counts_cosine(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Return the cosine of two vectors of counts; in 0..1, 0 if one of them is empty."""
    norm = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(count * b.get(piece, 0) for piece, count in a.items()) / norm if norm else 0.0


def cluster(items: Sequence[T], threshold: float, like: Callable[[T, T], float]) -> list[int]:
    """Return for each item the place of its cluster's first item. Greedy, in the given order: an item joins the most
    similar cluster by `like` (the earliest on a tie) if the similarity reaches `threshold`."""
    heads: list[int] = []
    likest: list[int] = []
    for place, item in enumerate(items):
        likeness = {head: like(item, items[head]) for head in heads}
        best = max(heads, key=lambda head: (likeness[head], -head), default=None)
        if best is not None and likeness[best] >= threshold:
            likest.append(best)
        else:
            heads.append(place)
            likest.append(place)
    return likest
