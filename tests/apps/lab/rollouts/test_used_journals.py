"""What is learned from journals that are old, damaged, or of code that has changed since."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from plait.planners.votes.sample import Sample
from plait_research.rollouts.store import read_rollouts

ROOT = Path(__file__).parents[4]
OLD = ROOT / "tests" / "runtime" / "journal" / "data" / "format-2.plait"
LETTERS = ["--worker", "tests.apps.lab.rollouts.letters:Letters", "--allow", "tests.apps.lab.rollouts.letters:Letters"]


def run(plait: Any, journal: Path, *more: str) -> None:
    words = (
        "run",
        "Question 1?",
        "--planner",
        "sample:n=3,answer.temperature=1",
        *LETTERS,
        "--journal",
        journal,
        *more,
    )
    assert plait(*words, "--json").code == 0


def test_a_journal_of_a_planner_that_has_changed_is_used_for_what_it_is(
    plait: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plait, tmp_path / "j")
    words = ("runs", "export", "--from", tmp_path / "j", "--json", "--out")
    assert plait(*words, tmp_path / "before.jsonl").json["rows"] == 3

    def other(*_: object) -> Any:
        raise AssertionError("the planner was asked again")

    monkeypatch.setattr(Sample, "start", other)
    after = plait(*words, tmp_path / "after.jsonl")
    assert (after.code, after.json["rows"], after.json["left"]) == (0, 3, {})
    assert list(read_rollouts(tmp_path / "after.jsonl")) == list(read_rollouts(tmp_path / "before.jsonl"))


def test_a_run_whose_own_code_is_gone_is_counted_and_passed_over(
    plait: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gone_policy.py"
    file.write_text("from plait.policies.schedule.simple import Fifo\n\n\nclass Mine(Fifo):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run(plait, tmp_path / "j", "--policy", "gone_policy:Mine", "--allow", "gone_policy:Mine")
    run(plait, tmp_path / "j")
    file.unlink()
    sys.modules.pop("gone_policy", None)
    done = plait("runs", "export", "--from", tmp_path / "j", "--out", tmp_path / "o.jsonl", "--json")
    assert done.code == 0, done.err
    assert (done.json["runs"], done.json["kept"]) == (2, 1)
    assert sum(done.json["left"].values()) == 1


def test_journals_of_an_older_format_are_named_and_passed_over(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    run(plait, tmp_path / "j")
    shutil.copy(OLD, tmp_path / "j")
    done = plait("runs", "export", "--from", tmp_path / "j", "--out", tmp_path / "o.jsonl", "--json")
    assert (done.code, done.json["runs"]) == (0, 1)
    assert "format-2.plait has journal format 2, older than" in done.json["unread"][0]


def test_damaged_journals_beside_good_ones_are_named_and_passed_over(plait: Any, tmp_path: Path) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    run(plait, folder)
    (good,) = folder.glob("*.plait")
    whole = good.read_bytes()
    (folder / "noise.plait").write_bytes(b"not a journal" * 99)
    (folder / "torn.plait").write_bytes(whole[: len(whole) // 3])
    (folder / "mixed.plait").write_bytes(whole[:4096] + bytes(reversed(whole[4096:8192])) + whole[8192:])
    done = plait("runs", "export", "--from", folder, "--out", tmp_path / "o.jsonl", "--json")
    assert done.code == 0, done.err
    assert done.json["kept"] >= 1
    assert len(done.json["unread"]) + sum(done.json["left"].values()) + done.json["kept"] >= 3
    made = list(read_rollouts(tmp_path / "o.jsonl"))
    assert all(len(each) == 3 for each in made), "nothing of a damaged run is written"
    effort = ("learn", "effort", "countdown", "--planner", "route-record", "--out", tmp_path / "e.json")
    for command in (effort, ("learn", "numbers", tmp_path / "l.json", "--planner", "sample")):
        (tmp_path / "l.json").write_text('[{"name": "n", "kind": "number", "value": 1, "low": 1, "high": 2}]')
        done = plait(*command, "--from", folder, "--json")
        assert done.code in (0, 2), done.err
        assert "Traceback" not in done.err


def test_records_that_another_tokenizer_would_cut_otherwise_are_refused(plait: Any, tmp_path: Path) -> None:
    run(plait, tmp_path / "j")
    words = ("runs", "export", "--from", tmp_path / "j", "--out", tmp_path / "o.jsonl", "--json", "--select")
    other = Tokenizer(WordLevel({"a": 0, "<unk>": 1, **{f"w{n}": n for n in range(2, 300)}}, unk_token="<unk>"))
    (tmp_path / "model").mkdir()
    other.save(str(tmp_path / "model" / "tokenizer.json"))
    done = plait(*words, f"tokenizer={tmp_path / 'model'}")
    assert (done.json["kept"], done.json["rows"]) == (1, 0)
    assert done.json["left"] == {"it does not re-tokenise to itself": 1}
    assert plait(*words, f"tokenizer={tmp_path}").code == 2, "a folder without a tokenizer"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "learn.json"),
        ("[1]", "learn.json"),
        ('[{"name": "n", "kind": "number", "value": "many"}]', "n is a number"),
        ('[{"name": "n", "kind": "number", "value": NaN}]', "n"),
        ('[{"name": "n", "value": "a"}, {"name": "n", "value": "b"}]', "two learnables have one name"),
        (
            '[{"name": "policy", "kind": "choice", "value": "nothing-such", "choices": ["nothing-such"]}]',
            "nothing-such",
        ),
    ],
)
def test_a_declaration_that_cannot_be_learned_is_refused_in_words(
    plait: Any, tmp_path: Path, text: str, said: str
) -> None:
    run(plait, tmp_path / "j")
    declared = tmp_path / "learn.json"
    declared.write_text(text)
    done = plait("learn", "numbers", declared, "--planner", "sample:n=3", "--from", tmp_path / "j", "--json")
    assert done.code == 2
    assert said in done.err + done.out
