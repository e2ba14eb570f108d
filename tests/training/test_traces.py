"""Every generated trace passes the independent checker, and the checker refuses what is wrong."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import training
from training.check import Wrong, check
from training.generate import MIXTURE, SERIAL_TOKENS, draw_trace
from training.vocab import ID, decode

FORMAT = Path(training.__file__).with_name("FORMAT.md")


def test_every_generated_trace_is_right_and_all_modes_occur() -> None:
    rng = random.Random(11)
    modes = {check(decode(draw_trace(rng).ids)) for _ in range(1500)}
    assert modes == set(MIXTURE)


@given(st.integers(0, 2**48))
def test_weights_fit_the_ids(seed: int) -> None:
    trace = draw_trace(random.Random(seed))
    mode = check(decode(trace.ids))
    assert len(trace.ids) == len(trace.weights) <= (SERIAL_TOKENS if mode == "serial" else 600)
    go = trace.ids.index(ID["<go>"])
    assert not any(trace.weights[: go + 1]), "a prompt is not learned"
    for start, word in enumerate(trace.ids):
        if word == ID["<join>"] or (word == ID["<child>"] and start):
            stop = trace.ids.index(ID["<go>"], start)
            assert not any(trace.weights[start : stop + 1]), "what the orchestrator writes is not learned"
    assert any(trace.weights)


@given(st.integers(0, 2**48), st.data())
def test_a_changed_number_is_noticed(seed: int, data: st.DataObject) -> None:
    trace = draw_trace(random.Random(seed))
    words = decode(trace.ids).split()
    # After the prompt every number is determined by the words before it, or of a step that must add up.
    go = words.index("<go>")
    places = [i for i in range(go, len(words)) if words[i].isdigit()]
    place = data.draw(st.sampled_from(places))
    words[place] = str((int(words[place]) + data.draw(st.integers(1, 126))) % 128)
    if words[0] == "<direct>" or words != decode(trace.ids).split():
        with pytest.raises(Wrong):
            check(" ".join(words))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<lo>", "<hi>"), ("<hit>", "<lo>"), ("<none> <end>", "<end>"), ("| <none>", "<none>"),
        (" <wait>", " <go>"), ("14 - 8 = 6", "8 - 14 = 6"), (" <end>", " <end> <end>"),
    ],
)  # fmt: skip
def test_a_changed_word_is_noticed(old: str, new: str) -> None:
    texts = [t for t in examples() if old in t]
    for text in texts:
        with pytest.raises(Wrong):
            check(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<tree> 4",
        # out of canonical order; the same step twice; a child for numbers that were not spawned
        "<parent> 2 T36 14 10 8 3 <go> <spawn> 10 * 8 = 80 | 14 3 ; 14 * 3 = 42 | 10 8 <wait>",
        "<parent> 2 T36 14 10 8 3 <go> <spawn> 14 * 3 = 42 | 10 8 ; 14 * 3 = 42 | 10 8 <wait>",
        (
            "<parent> 2 T36 14 10 8 3 <go> <spawn> 14 * 3 = 42 | 10 8 ; 10 * 8 = 80 | 14 3 <wait> "
            "<child> T36 30 14 8 <go> 30 + 14 = 44 | 8 + 52 <hi> - 36 <hit> 30 + 14 = 44 ; 44 - 8 = 36 <end>"
        ),
        # a join that denies a solution
        (
            "<parent> 2 T36 14 10 8 3 <go> <spawn> 10 * 3 = 30 | 14 8 ; 8 * 3 = 24 | 14 10 <wait> "
            "<join> <none> | <none> <go>"
        ),
        # a number used twice
        "<direct> T28 14 10 8 3 <go> 14 + 14 = 28 ; 28 + 10 = 38 ; 38 - 10 = 28 <end>",
    ],
)
def test_wrong_traces_are_refused(text: str) -> None:
    with pytest.raises(Wrong):
        check(text)


def examples() -> list[str]:
    """The complete traces of FORMAT.md."""
    blocks = re.findall(r"^ *```\n(.*?)^ *```", FORMAT.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines() if re.match(r" *<\w+> .*<end>$", line)]


def test_the_examples_of_the_format_page_are_right() -> None:
    assert sorted(check(text) for text in examples()) == [
        "child",
        "child",
        "direct",
        "fork",
        "parent",
        "serial",
    ]


def test_a_serial_trace_may_be_cut_only_at_its_limit() -> None:
    rng = random.Random(1)
    cut = next(t for t in iter(lambda: draw_trace(rng), None) if t and len(t.ids) == SERIAL_TOKENS)
    assert check(decode(cut.ids)) == "serial"
    with pytest.raises(Wrong):
        check(decode(cut.ids[:-3]))
