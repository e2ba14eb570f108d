"""Other people's recordings become samples, in the form in which their authors publish them."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments._tools import recordings
from experiments._tools.recordings import SOURCES, import_samples, recorded_samples
from experiments._tools.samples import read_samples
from plait.core.errors import ConfigError, UsageError
from plait_research.samples.recordings import RecordedSample, write_samples
from tests.apps.conftest import Plait

TURN = {"turn": 0, "model": "small", "output": "Let me think. "}
SQL: dict[str, Any] = {
    "0": {
        "query": "How many singers are there?",
        "turn_history": {"actions": ["show tables", "select count(*) from singer"], "rewards": [0.0, 1.0]},
        "summary": {"max_reward": 1.0},
    }
}
NO_RECORDINGS = ("{}", "[]", "null", "7", '{"0": {}}', '{"eval": 3}', "\x00\xff", "a,b\n1,2\n", "[" * 9000)
LOG: dict[str, Any] = {"eval": {"model": "openai/gpt-4o"}}
LOGGED: dict[str, Any] = {
    "input": "2+2?", "target": "4", "output": {"completion": "It is 4.", "usage": {"output_tokens": 5}},
    "scores": {"match": {"value": "C", "answer": "4"}},
}  # fmt: skip


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_last_letters_are_compared_by_their_letters(tmp_path: Path) -> None:
    row = {
        "question": "Q: …",
        "answer": "yajo",
        "generated_answer": ["So. The answer is Y-A-J-O.", "The answer is yaj."],
    }
    path = written(tmp_path / "GPT3.5_result" / "last_letters" / "T0.7.jsonl", row)
    first, second = recorded_samples("esc", path)
    assert (first.answer, first.right, first.model) == ("yajo", True, "GPT3.5")
    assert (second.answer, second.right) == ("yaj", False)
    assert first.tokens and not first.counted, "nobody counted them"


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    row = {"question": "Q", "answer": "1,200", "generated_answer": ["The answer is $1200.", "The answer is unknown."]}
    first, second = recorded_samples("esc", written(tmp_path / "a" / "b" / "c.jsonl", row))
    assert (first.answer, first.right) == ("1200", True)
    assert (second.answer, second.right) == (None, False)


def test_adaptive_consistency(tmp_path: Path) -> None:
    row = {"answers": ["8", "8.0", " ", "9"], "target": 8, "scores": [0, 0, 0, 0]}
    found = list(recorded_samples("adaptive-consistency", written(tmp_path / "vicuna-13b" / "gsm" / "o.jsonl", row)))
    assert [sample.right for sample in found] == [True, True, False, False]
    assert found[2].answer is None and found[0].model == "vicuna-13b"


def test_chains_are_graded_by_answers_given_apart(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    whole = {"question": "Half?", "final_answer": "0.5", "full_history": [TURN, {"turn": 0, "ppl": 1.2}]}
    cut = {
        "question": "Half?",
        "final_answer": "\\frac{1",
        "full_history": [{**TURN, "output": "\\boxed{\\frac{1}{2}}"}],
    }
    written(folder / "problem_0000.json", whole)
    written(folder / "problem_0001.json", cut)
    answers = written(tmp_path / "answers.jsonl", {"question": "Half?", "answer": "so \\boxed{\\frac{1}{2}}"})
    found = list(recorded_samples("atts", folder, answers))
    assert [sample.right for sample in found] == [True, True], "an answer cut at its first brace is read from the text"
    assert found[0].answer == found[1].answer
    assert [sample.right for sample in recorded_samples("atts", folder)] == [None, None]


def test_routes_have_a_verdict_for_each_model(tmp_path: Path) -> None:
    text = "prompt,small,big,small_response,big_response\n2+2?,False,True,5,four\n"
    found = list(recorded_samples("routellm", written(tmp_path / "gsm8k_responses.csv", text)))
    assert [(sample.model, sample.right) for sample in found] == [("small", False), ("big", True)]
    without = list(recorded_samples("routellm", written(tmp_path / "mmlu.csv", "prompt,small\n2+2?,True\n")))
    assert without[0].tokens is None, "no response, no length"


def test_turns_with_a_reward(tmp_path: Path) -> None:
    (sample,) = recorded_samples("intercode", written(tmp_path / "gpt-4" / "ic_sql.json", SQL))
    assert (sample.right, sample.reward, sample.answer) == (True, 1.0, "select count(*) from singer")
    assert sample.model == "gpt-4/ic_sql"


def test_paths_of_tools(tmp_path: Path) -> None:
    made = {"query": "Who?", "final_answer": "He.", "finish_type": "give_answer", "total_tokens": 2916}
    written(tmp_path / "G1_answer" / "10_ChatGPT_DFS.json", {"answer_generation": made})
    written(tmp_path / "G1_answer" / "11_ChatGPT_DFS.json", {"answer_generation": {**made, "finish_type": "give_up"}})
    first, second = recorded_samples("toolbench", tmp_path / "G1_answer")
    assert (first.answer, first.tokens, first.counted, first.right) == ("He.", 2916, True, None)
    assert (second.answer, second.model) == (None, "ChatGPT_DFS")


@pytest.mark.parametrize("packed", [False, True])
def test_logs_of_inspect(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("log.eval" if packed else "log.json")
    if packed:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("header.json", json.dumps(LOG))
            file.writestr("samples/1_epoch_1.json", json.dumps(LOGGED))
    else:
        written(path, {**LOG, "samples": [LOGGED]})
    (sample,) = recorded_samples("inspect", path)
    assert (sample.model, sample.answer, sample.right) == ("openai/gpt-4o", "4", True)
    assert (sample.tokens, sample.counted) == (5, True)


@pytest.mark.parametrize("sizes", [[1 << 20], [5000, 5000, 5000]])
def test_a_log_of_inspect_that_unpacks_to_too_much_is_refused(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of 2.9 MB took 3 GB of memory."""
    monkeypatch.setattr(recordings, "MAX_MEMBER_BYTES", 6000)
    monkeypatch.setattr(recordings, "MAX_LOG_BYTES", 12_000)
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", json.dumps(LOG))
        for number, size in enumerate(sizes):
            file.writestr(f"samples/{number}.json", json.dumps({"input": "x" * size, "output": {}}))
    with pytest.raises(ConfigError, match=r"unpacks to .* bytes, and the limit is"):
        list(recorded_samples("inspect", path))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "7", '{"0": {}}', '{"eval": 3}', "\x00\xff", "a,b\n1,2\n", "[" * 9000]
)
def test_what_is_no_recording_is_refused_in_words(tmp_path: Path, source: str, text: str) -> None:
    path = written(tmp_path / "x.json", text)
    found: list[RecordedSample] = []
    with contextlib.suppress(ConfigError):  # any other error is a fault
        found = list(recorded_samples(source, path))
    assert found == []


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = [
        RecordedSample(question="q", answer="1", right=True, tokens=3, logprob=-0.5),
        RecordedSample(question="q"),
    ]
    path = tmp_path / "s.jsonl"
    assert write_samples(samples, path) == 2
    assert list(read_samples(path)) == samples


@pytest.mark.parametrize("line", ['{"question": 3}', '{"tokens": 4}', '{"question": "q", "tokens": -1}', "{", "[]"])
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "s.jsonl", '{"question": "q"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        list(read_samples(path))


def test_the_command_says_what_it_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path / "gpt-4" / "ic_sql.json", SQL)
    out = tmp_path / "samples.jsonl"
    import_samples("intercode", [path], out, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["samples"] == 1 and said["right"] == 1
    assert len(list(read_samples(out))) == 1
    with pytest.raises(UsageError, match="did you mean 'intercode'"):
        import_samples("intercod", [path], out)


def test_branches_of_own_votes_are_samples(plait: Plait, script: Callable[..., Path], tmp_path: Path) -> None:
    journal = ("--journal", tmp_path / "runs.plait")
    done = plait("run", "2+2?", "--planner", "sample:n=4", "--script", script("answer: 4"), *journal)
    assert done.code == 0, done.err
    for want, right in (("4", True), ("5", False), (None, None)):
        out = tmp_path / "samples.jsonl"
        answers = written(tmp_path / "answers.jsonl", {"question": "2+2?" if want else "other", "answer": want or ""})
        words = ("--format", "samples", "--answers", answers, "--from", tmp_path / "runs.plait")
        done = plait("runs", "export", *words, "--out", out)
        assert done.code == 0, done.err
        found = list(read_samples(out))
        assert [(sample.answer, sample.right) for sample in found] == [("4", right)] * 4
        assert all(sample.text == "answer: 4" and sample.tokens for sample in found)


def test_samples_are_not_chosen(plait: Plait, tmp_path: Path) -> None:
    done = plait("runs", "export", "--format", "samples", "--select", "verified=true", "--out", tmp_path / "s.jsonl")
    assert done.code == 2 and "samples has all runs" in done.err
