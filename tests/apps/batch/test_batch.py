"""`plait batch`: every row has one outcome, whatever the row, and however often the command is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from plait.apps.batch.rows import COLUMNS, Log, count_rows, read_rows
from plait.core.errors import ConfigError
from plait.core.provenance import Provenance

from ..conftest import Plait


def _script(path: Path, **reply: Any) -> Path:
    replies = [{"when": "fails", "text": "no", "finish": "error"}, {"text": "a reply", **reply}]
    path.write_text(json.dumps({"replies": replies}))
    return path


def _rows(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"id": f"r{i}", "text": f"question {i}"}) + "\n" for i in range(count)))
    return path


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_has_an_outcome_in_the_order_of_the_input(plait: Plait, tmp_path: Path) -> None:
    rows, script = tmp_path / "in.jsonl", _script(tmp_path / "s.json")
    rows.write_text(
        '{"text": "one", "id": 7}\n\nnot json\n{"text": "this fails"}\n{"txt": 1}\n{"text": "x", "planer": "single"}\n'
        '{"text": "y", "planner": "nobody"}\n{"text": "z", "n": 2, "planner": "sample"}\n{"text": "w", "n": "many"}\n'
    )
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script, "--json")
    assert done.code == 0, done.err
    assert (done.json["rows"], done.json["done"], done.json["status"]) == (8, 8, "done")
    found = _read(tmp_path / "out.jsonl")
    assert [row["row"] for row in found] == list(range(8))
    assert [row["status"] for row in found] == [
        "done",
        "invalid",
        "failed",
        "invalid",
        "done",
        "invalid",
        "done",
        "invalid",
    ]
    assert (found[0]["id"], found[0]["answer"], found[0]["text"]) == ("7", "a reply", "a reply")
    assert found[0]["completion_tokens"] == 2
    assert "not JSON" in found[1]["error"]
    assert "EngineError" in found[2]["error"]
    assert "no `text`" in found[3]["error"]
    assert "'planer'; did you mean 'planner'?" in done.err and found[4]["planer"] == "single"
    assert "nobody" in found[5]["error"]
    assert all([name for name in row if name in COLUMNS] == list(COLUMNS) for row in found)
    assert not (tmp_path / "out.jsonl.progress").exists()


def test_rows_wait_where_requests_from_outside_would_be_refused(
    plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_MAX_WAITING", "1")
    monkeypatch.setenv("PLAIT_SLOTS", "2")
    rows, script = _rows(tmp_path / "in.jsonl", 40), _script(tmp_path / "s.json", delay=0.01)
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script, "--json")
    assert done.code == 0, done.err
    assert {row["status"] for row in _read(tmp_path / "out.jsonl")} == {"done"}


def test_parquet_has_the_same_rows(plait: Plait, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows, script = _rows(tmp_path / "in.jsonl", 1100), _script(tmp_path / "s.json")
    for out in ("out.parquet", "out.jsonl"):
        assert plait("batch", rows, "--out", out, "--script", script).code == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    lines = _read(tmp_path / "out.jsonl")
    assert table.column_names == list(COLUMNS)
    assert [row["id"] for row in table.to_pylist()] == [row["id"] for row in lines] == [f"r{i}" for i in range(1100)]
    assert set(table.column("answer").to_pylist()) == {"a reply"}


def test_options_that_no_row_could_run_with_are_the_commands_mistake(plait: Plait, tmp_path: Path) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", 3), _script(tmp_path / "s.json")
    done = plait("batch", rows, "--out", "o.jsonl", "--script", script, "--planner", "nobody")
    assert done.code == 2
    assert "nobody" in done.err
    assert not (tmp_path / "o.jsonl.progress").exists()
    for words, part in ((("--out", "o.csv"), ".parquet"), (("--out", "o.jsonl", "--task", "nothing"), "nothing")):
        done = plait("batch", rows, *words, "--script", script)
        assert done.code == 2
        assert part in done.err


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_file_without_rows_is_said_so(plait: Plait, tmp_path: Path, content: str | None) -> None:
    rows = tmp_path / "in.jsonl"
    if content is not None:
        rows.write_text(content)
    done = plait("batch", rows, "--out", "o.jsonl", "--script", _script(tmp_path / "s.json"))
    assert done.code == 2
    assert "in.jsonl" in done.err


def test_what_another_batch_left_is_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, {"batch": "a"}, 3)
    log.add({"row": 2, "status": "done"})
    log.close()
    with pytest.raises(ConfigError, match="--fresh"):
        Log(path, {"batch": "b"}, 3)
    log = Log(path, {"batch": "b"}, 3, fresh=True)
    assert log.done == 0
    log.close()


def test_what_the_rows_depend_on_is_the_same_in_every_try(tmp_path: Path) -> None:
    made = Provenance(models=("A",), request={"planner": {"name": "sample", "options": {"n": 1}}})
    log = Log(tmp_path / "log", {}, 3)
    log.claim(made)
    log.add({"row": 0, "status": "done"})
    log.close()
    log = Log(tmp_path / "log", {}, 3)
    log.claim(made)
    with pytest.raises(ConfigError, match=re.escape('models is ["A"] there and ["B"] here')):
        log.add({"row": 1, "status": "done", "made_of": made.model_copy(update={"models": ("B",)}).model_dump()})
    assert (log.done, [each["row"] for each in log.outcomes()]) == (1, [0])
    log.close()


def test_a_batch_goes_on_with_what_it_began_with(plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", 3), _script(tmp_path / "s.json")
    given = ["batch", rows, "--out", "out.jsonl", "--script", script]
    added, most = Log.add, 1

    def once(log: Log, outcome: dict[str, Any]) -> None:
        if log.done == most:
            raise ConfigError("the process dies")
        added(log, outcome)

    with monkeypatch.context() as dying:
        dying.setattr(Log, "add", once)
        assert plait(*given).code == 2
    with monkeypatch.context() as other:
        other.setenv("PLAIT_PLANNER", "sample:n=3")
        refused = plait(*given)
        assert refused.code == 2 and 'request.planner.name is "single" there and "sample" here' in refused.err
    assert plait(*given).code == 0
    digests = {row["provenance"] for row in _read(tmp_path / "out.jsonl")}
    assert len(digests) == 1 and None not in digests


def test_a_line_that_was_being_written_when_the_process_died_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, {}, 3)
    log.add({"row": 1, "status": "failed"})
    log.close()
    with path.open("ab") as file:
        file.write(b'{"row": 0, "status": "do')
    log = Log(path, {}, 3)
    assert (log.done, log.failed, log.has(0), log.has(1)) == (1, 1, False, True)
    log.add({"row": 0, "status": "done"})
    assert [each["row"] for each in log.outcomes()] == [0, 1]
    log.close()


def test_rows_are_read_one_at_a_time(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "in.jsonl", 5)
    assert count_rows(rows)[0] == 5
    some = read_rows(rows)
    assert next(some).number == 0
    rows.write_text("")  # the rest of a small file is buffered; what matters is that nothing was drawn beyond need
    assert next(some).number == 1


@pytest.mark.parametrize("count", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_rows_killed_and_resumed_are_neither_lost_nor_doubled(tmp_path: Path, count: int) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", count), _script(tmp_path / "s.json")
    out, log = tmp_path / "out.jsonl", tmp_path / "out.jsonl.progress"
    words = [
        sys.executable,
        "-m",
        "plait.apps.main",
        "batch",
        str(rows),
        "--out",
        str(out),
        "--script",
        str(script),
    ]
    kills = 0
    for goal in (count // 6, count // 2):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < goal):
            time.sleep(0.02)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == 2, "the batch was over before it could be killed"
    before = {json.loads(line)["row"]: line for line in log.read_bytes().splitlines()[2:] if line.endswith(b"}")}
    last = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    summary = json.loads(last.stdout)
    assert summary["done"] == count
    assert summary["resumed"] >= len(before) - 1
    found = _read(out)
    assert [row["id"] for row in found] == [f"r{i}" for i in range(count)]
    assert {row["status"] for row in found} == {"done"}
    runs = [row["run"] for row in found]
    assert len(set(runs)) == count
    for number, line in list(before.items())[:500]:  # what was done before the kill was not run again
        assert found[number]["run"] == json.loads(line)["run"]


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    script = _script(tmp_path / "s.json")
    code = (
        "import resource, sys\nfrom plait.apps.main import run\n"
        "assert run(sys.argv[1:]) == 0\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks: list[int] = []
    for count in (500, 4_500):
        rows = _rows(tmp_path / f"{count}.jsonl", count)
        words = ["batch", str(rows), "--out", str(tmp_path / f"{count}.out.jsonl"), "--script", str(script)]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] - peaks[0] < 9_600, f"{peaks} KiB: 4,000 rows more took over 2.4 KiB each"


# --- what must not get lost or be read by others ---


def test_a_result_is_not_overwritten(plait: Plait, tmp_path: Path) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", 3), _script(tmp_path / "s.json")
    words = ["batch", rows, "--out", "out.jsonl", "--script", script]
    assert plait(*words).code == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    for more in ((), ("--planner", "sample:n=2")):
        done = plait(*words, *more)
        assert done.code == 2
        assert "out.jsonl exists already: give --fresh" in done.err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert not (tmp_path / "out.jsonl.progress").exists()
    assert plait(*words, "--fresh").code == 0


def test_two_at_once_on_one_output(plait: Plait, tmp_path: Path) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", 3), _script(tmp_path / "s.json")
    count, digest = count_rows(rows)
    other = Log(tmp_path / "out.jsonl.progress", {"batch": digest}, count)
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script)
    assert done.code == 2
    assert "another process is working on" in done.err
    other.remove()
    assert plait("batch", rows, "--out", "out.jsonl", "--script", script).code == 0


def test_nothing_but_failures_is_a_failure(plait: Plait, tmp_path: Path) -> None:
    rows, script = tmp_path / "in.jsonl", _script(tmp_path / "s.json")
    rows.write_text('{"text": "this fails"}\n{"text": "y", "planner": "nobody"}\n')
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script, "--json")
    assert (done.code, done.json["failed"], done.json["status"]) == (1, 2, "done")


def test_columns_are_those_of_all_rows(plait: Plait, tmp_path: Path) -> None:
    rows, script = tmp_path / "in.jsonl", _script(tmp_path / "s.json")
    rows.write_text('not json\n{"text": "a", "ref": 1}\n{"text": "b", "extra": 2, "answer": 3, "input_answer": 4}\n')
    done = plait("batch", rows, "--out", "out.parquet", "--script", script)
    assert done.code == 0 and "'extra'; did you mean 'text'?" in done.err
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["status"] for row in table] == ["invalid", "done", "done"]
    assert [row["ref"] for row in table] == [None, "1", None]
    assert (table[2]["extra"], table[2]["input_answer"], table[2]["input_input_answer"]) == ("2", "3", "4")


def test_other_columns_are_carried_into_the_output_and_named(plait: Plait, tmp_path: Path) -> None:
    rows, script = tmp_path / "in.jsonl", _script(tmp_path / "s.json")
    rows.write_text('{"text": "a", "label": "4", "source": {"page": 3}, "answer": 7}\n{"text": "b", "label": "5"}\n')
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script)
    assert done.code == 0
    first, second = _read(tmp_path / "out.jsonl")
    assert (first["status"], second["status"]) == ("done", "done")
    assert (first["label"], first["source"], first["input_answer"]) == ("4", {"page": 3}, 7)
    assert second["label"] == "5"
    assert "copied to the output: label, source, answer" in done.err
    wanted = plait("batch", rows, "--out", "wanted.jsonl", "--script", script, "--want", "label")
    assert "copied to the output: source, answer" in wanted.err and _read(tmp_path / "wanted.jsonl")[1]["label"] == "5"
    assert plait("batch", rows, "--out", "out.parquet", "--script", script).code == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["label"], row["source"], row["input_answer"]) for row in table] == [
        ("4", '{"page":3}', "7"),
        ("5", None, None),
    ]


def test_rows_of_csv(plait: Plait, tmp_path: Path) -> None:
    rows, script = tmp_path / "in.csv", _script(tmp_path / "s.json")
    rows.write_text(
        "\ufeffid,text,n,planner,policies,label\n"
        'a,"two lines,\nand a comma",3,sample,fifo,x\n'
        "b,plain,,,,\n"
        "c,,,,,\n"
        'd,many,lots,sample,"[""fifo"",""nobody""]",y\n'
        "e,too,1,single,,y,more\n"
    )
    assert count_rows(rows)[0] == 5
    assert next(iter(read_rows(rows))).fields["text"] == "two lines,\nand a comma"
    done = plait("batch", rows, "--out", "out.jsonl", "--script", script, "--json")
    assert done.code == 0, done.err
    found = _read(tmp_path / "out.jsonl")
    assert [row["status"] for row in found] == ["done", "done", "invalid", "invalid", "invalid"]
    assert [row["id"] for row in found[:2]] == ["a", "b"]
    assert found[0]["completion_tokens"] == 6, "three samples of two tokens"
    assert "no `text`" in found[2]["error"] and "more cells" in found[4]["error"]


@pytest.mark.parametrize(("content", "said"), [("question\nwhat\n", "no column `text`"), ("text\n", "has no rows")])
def test_csv_that_holds_no_requests(plait: Plait, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "in.csv").write_text(content)
    done = plait("batch", "in.csv", "--out", "out.jsonl", "--script", _script(tmp_path / "s.json"))
    assert done.code == 2 and said in done.err


@pytest.mark.parametrize("left", ["", '{"batch": "x', '{"batch": "x", "rows"'])
def test_a_header_that_was_being_written_when_the_process_died(plait: Plait, tmp_path: Path, left: str) -> None:
    rows, script = _rows(tmp_path / "in.jsonl", 2), _script(tmp_path / "s.json")
    (tmp_path / "out.jsonl.progress").write_text(left)
    assert plait("batch", rows, "--out", "out.jsonl", "--script", script).code == 0


def test_a_damaged_log_loses_only_the_damaged_rows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, {}, 3)
    log.add({"row": 1, "status": "done"})
    log.close()
    with path.open("ab") as file:
        file.write(b'nonsense\n[1]\n{"row": 99, "status": "done"}\n{"row": "x"}\n{"row": 2, "status": "done"}\n')
    log = Log(path, {}, 3)
    assert [log.has(row) for row in range(3)] == [False, True, True]
    log.close()
    path.write_text("no header\n")
    with pytest.raises(ConfigError, match="--fresh"):
        Log(path, {}, 3)


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet"])
def test_nobody_else_may_read_the_outcomes(plait: Plait, tmp_path: Path, out: str) -> None:
    if out.endswith("parquet"):
        pytest.importorskip("pyarrow.parquet")
    rows, script = _rows(tmp_path / "in.jsonl", 2), _script(tmp_path / "s.json")
    log = Log(tmp_path / "log", {}, 3)
    log.close()
    assert plait("batch", rows, "--out", out, "--script", script).code == 0
    assert (tmp_path / out).stat().st_mode & 0o777 == (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_columns_of_other_names_are_asked_named_and_graded(plait: Plait, tmp_path: Path, script: Any) -> None:
    Path("in.jsonl").write_text(
        '{"question": "6*7", "answer": "42", "text": "a note"}\n{"question": "2+2", "answer": "4", "key": "k2"}\n'
    )
    words = ["--text", "question", "--want", "answer", "--id", "key", "--script", script("Answer: 42")]
    done = plait("batch", "in.jsonl", "--out", "out.jsonl", *words)
    assert done.code == 0 and "2 of 2 rows; 0 failed, 1 right" in done.out
    first, second = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert (first["right"], second["right"], second["id"]) == (True, False, "k2")
    assert first["input_answer"] == "42" and first["input_input_text"] == "a note"


def test_a_file_without_the_column_says_which_it_has_before_anything_starts(plait: Plait, script: Any) -> None:
    Path("in.jsonl").write_text('{"question": "6*7"}\n{"question": "2+2"}\n')
    done = plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes"))
    assert done.code == 2 and "it has question" in done.err and "--text" in done.err
    assert not Path("out.jsonl").exists()


def test_the_first_different_errors_are_printed_and_a_useless_output_is_overwritten(plait: Plait, script: Any) -> None:
    rows = ['{"text": "q", "planner": "nope"}', '{"txt": 1}', '{"text": "q", "planner": "nope"}', "not JSON"]
    Path("in.jsonl").write_text("\n".join(rows) + "\n")
    done = plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes"))
    assert done.code == 1
    assert done.err.count("there is no planner 'nope'") == 1 and "row 2: no `text` in it" in done.err
    assert "row 4: not JSON" in done.err
    Path("in.jsonl").write_text('{"text": "q"}\n')
    assert plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes")).code == 0
    again = plait("batch", "in.jsonl", "--out", "out.jsonl", "--script", script("yes"))
    assert again.code == 2 and "exists already" in again.err
