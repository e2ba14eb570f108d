"""The order of a batch: every row once, and each shared beginning read once by an engine with a small cache."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from plait.apps.batch import rows as order
from plait.apps.batch.rows import Order, in_order
from plait.core.errors import ConfigError
from plait_research.simulation.tokens import PrefixCache


def shuffled(path: Path) -> list[str]:
    """Write 400 questions about 40 documents of 300 words, in groups of 5 documents that begin alike."""
    random = Random(4)
    texts: list[str] = []
    for group in range(8):
        head = " ".join(f"g{group}w{i}" for i in range(200))
        for document in range(5):
            body = " ".join(f"d{group}-{document}w{i}" for i in range(100))
            texts += [f"{head} {body} Question {question}?" for question in range(10)]
    random.shuffle(texts)
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))
    return texts


def computed(texts: list[str], tokens: int) -> int:
    cache, total = PrefixCache(tokens, 4), 0
    words: dict[str, int] = {}
    for text in texts:
        ids = [words.setdefault(word, len(words)) for word in text.split()]
        total += len(ids) - cache.cached(ids)
        cache.add(ids)
    return total


def test_a_shared_beginning_is_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    texts = shuffled(path)
    unique = computed(texts, 10**9)

    def ran(how: Order) -> list[str]:
        return [row.fields["text"] for row in in_order(path, how, lambda number: True)]

    assert ran("file") == texts and sorted(ran("prefix")) == sorted(texts)
    assert computed(ran("prefix"), 700) <= 1.02 * unique, "a cache of two rows is enough"
    assert computed(ran("file"), 700) > 5 * unique


def test_rows_that_are_done_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    shuffled(path)
    assert [row.number for row in in_order(path, "prefix", lambda number: number in (7, 3))] in ([3, 7], [7, 3])


def test_a_file_too_large_to_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    monkeypatch.setattr(order, "_MAX_SORTED_BYTES", 3)
    with pytest.raises(ConfigError, match="--order prefix holds it in memory"):
        list(in_order(path, "prefix", lambda number: True))


def test_outcomes_stay_in_the_order_of_the_file(plait, tmp_path: Path, script) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("b 1", "a 1", "b 2")))
    done = plait("batch", "rows.jsonl", "--out", "out.jsonl", "--order", "prefix", "--script", script("yes"), "--json")
    assert done.code == 0, done.err
    assert [json.loads(line)["row"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [0, 1, 2]
