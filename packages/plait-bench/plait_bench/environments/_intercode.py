"""InterCode's rewards (arXiv 2306.14898) for a folder changed by commands, and for a query's rows."""

from __future__ import annotations

import math
import re
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"\b\w\w+\b")
State = Mapping[str, Any]
"""`files`, `links` and `modes` by name, and `folders`."""


def of_shell(first: State, ours: State, gold: State, output: str, wanted: str) -> float:
    """Return the reward of a shell task, in [0.01, 1]: a third each for the changes since `first` compared with the
    gold command's changes, for the contents of new files, and for the last output.

    Changes are the files that git would list, as in InterCode: folders without files are ignored, and for an existing
    file only the fact of a change is compared.
    """
    mine, right = _changes(first, ours), _changes(first, gold)
    reward = 0.01 + round(0.33 * (1 - math.erf(len(mine ^ right))), 2)
    new = [path for mark, path in mine & right if mark == "?"]
    same = sum(_content(ours, path) == _content(gold, path) for path in new)
    reward += round(0.33 * same / len(new), 2) if new else 0.33
    return round(reward + round(0.33 * similar(output, wanted), 2), 2)


def _changes(first: State, now: State) -> set[tuple[str, str]]:
    """List the files that `git status --short` lists: changed, deleted, and new; new folders as a whole."""
    before, after = _tracked(first), _tracked(now)
    changes = {("M" if name in after else "D", name) for name in before if before[name] != after.get(name)}
    folders = {name[: place + 1] for name in before for place, sign in enumerate(name) if sign == "/"}
    for name in after.keys() - before.keys():
        above = (name[: place + 1] for place, sign in enumerate(name) if sign == "/")
        changes.add(("?", next((folder for folder in above if folder not in folders), name)))
    return changes


def _tracked(state: State) -> dict[str, tuple[str, bool]]:
    """Return the properties of files and links that git compares: the content and the executable bit."""
    modes = state["modes"]
    files = {name: (text, bool(int(modes.get(name, "644"), 8) & 0o100)) for name, text in state["files"].items()}
    return files | {name: (target, False) for name, target in state["links"].items()}


def _content(state: State, path: str) -> Any:
    """Return the bytes that a checksum covers: those of a file, or of the files below a folder. InterCode's own
    skips folders with a dot in their path."""
    if not path.endswith("/"):
        return state["files"].get(path)
    return "." in path or {name: text for name, text in state["files"].items() if name.startswith(path)}


def similar(one: str, other: str) -> float:
    """Return the cosine similarity of two texts by words of at least two letters, with smoothed TF-IDF weights; for
    texts without such words, whether they are equal.

    >>> round(similar("a dog barks", "the dog barks"), 2)
    0.71
    """
    counts = [Counter(_WORD.findall(text.casefold())) for text in (one, other)]
    words = counts[0].keys() | counts[1].keys()
    if not words:
        return float(one == other)
    idf = {word: math.log(3 / (1 + sum(word in known for known in counts))) + 1 for word in words}
    rows = [{word: count * idf[word] for word, count in known.items()} for known in counts]
    lengths = [math.sqrt(sum(weight**2 for weight in row.values())) or 1.0 for row in rows]
    dot = sum(weight * rows[1].get(word, 0.0) for word, weight in rows[0].items())
    return dot / lengths[0] / lengths[1]


def of_rows(mine: Sequence[Sequence[object]], gold: Sequence[Sequence[object]]) -> float:
    """Return the reward of a query: the intersection over union of the rows, times the agreement in order of the common
    rows (Kendall's tau-b of their texts)."""
    one, other = [str(tuple(row)) for row in mine], [str(tuple(row)) for row in gold]
    common, union = Counter(one) & Counter(other), Counter(one) | Counter(other)
    if not union:
        return 1.0
    reward = common.total() / union.total()
    order = _tau(_first(one, common), _first(other, common))
    return reward if order is None else round(order * reward, 2)


def _first(rows: Iterable[str], common: Counter[str]) -> list[str]:
    """Return the rows that are common, the first ones of each."""
    left = Counter(common)
    kept: list[str] = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def _tau(one: Sequence[str], other: Sequence[str]) -> float | None:
    """Return Kendall's tau-b of two lists of equal length; `None` if undefined."""
    pairs = sorted(zip(one, other, strict=True))
    whole = len(pairs) * (len(pairs) - 1) // 2
    alike, alike_other, both = (_ties(texts) for texts in (one, other, pairs))
    turned, seen = 0, list[str]()
    for place, (_, text) in enumerate(pairs):
        turned += place - bisect_right(seen, text)
        insort(seen, text)
    scale = math.sqrt((whole - alike) * (whole - alike_other))
    return (whole - alike - alike_other + both - 2 * turned) / scale if scale else None


def _ties(values: Iterable[object]) -> int:
    return sum(count * (count - 1) // 2 for count in Counter(values).values())
