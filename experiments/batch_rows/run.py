"""How many rows a second does `plait batch --actors N` run, and does its memory grow?

How many rows a second `plait batch --actors N` runs, and whether its memory grows.

    python -m experiments batch_rows                                       # 10⁵ rows, killed once at a third
    python -m experiments batch_rows --rows 1000000 --seconds 500 --folder big  # in pieces: the same command resumes

The worker is scripted, so this is the cost of reading, spreading, running and writing alone. Of every thousand rows
one cannot be read and one fails. The command is killed (SIGKILL) when a third of the rows are there, and once more
after `--seconds`, if that is given; the next one resumes after the rows written. Reported at each twentieth: rows,
rows a second since the one before, and the resident memory of the command and of the largest actor. In the end every
row's outcome is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BAD, FAILS = 7, 9
"""Which row of each thousand cannot be read, and which fails."""
EVERY = 1.0
"""Seconds between two looks."""


def write(folder: Path, rows: int) -> None:
    with (folder / "in.jsonl").open("w", encoding="utf-8") as file:
        for number in range(rows):
            text = "this fails" if number % 1000 == FAILS else f"question {number}"
            said = json.dumps({"id": f"r{number}", "text": text})
            file.write("not json\n" if number % 1000 == BAD else said + "\n")
    replies = [{"when": "fails", "text": "no", "finish": "error"}, {"text": "a reply"}]
    (folder / "script.json").write_text(json.dumps({"replies": replies}))


def family(pid: int) -> dict[int, str]:
    """Return the processes that come from one, itself among them, each with its command."""
    parents: dict[int, int] = {}
    words: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    found, size = {pid}, 0
    while len(found) > size:
        size = len(found)
        found |= {each for each, parent in parents.items() if parent in found}
    return {each: words[each] for each in found if each in words}


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB, without what it shares with others (Ray's object store); 0 if it
    has ended."""
    try:
        fields = [int(each) for each in Path(f"/proc/{pid}/statm").read_text().split()]
    except OSError:
        return 0.0
    return (fields[1] - fields[2]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def count(log: Path) -> int:
    """Return the number of outcomes in a log."""
    if not log.exists():
        return 0
    with log.open("rb") as file:
        return max(0, sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) - 1)


def one(folder: Path, words: list[str], rows: int, until: int, seconds: float) -> int:
    """Run the command until a number of rows or of seconds is reached; return its exit code, -9 if killed."""
    log = folder / "out.jsonl.progress"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    files = ["in.jsonl", "--out", "out.jsonl", "--script", "script.json"]
    command = [sys.executable, "-m", "plait", "batch", *files, *words]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stderr=said, stdout=said)
    began, reported, at = time.monotonic(), count(log), time.monotonic()
    first = reported
    while process.poll() is None:
        time.sleep(EVERY)
        there = count(log)
        if there - reported >= rows // 20 or (there - reported and reported == first):
            now = time.monotonic()
            actors = [pid for pid, said in family(process.pid).items() if "MapWorker" in said]
            largest = max((resident(each) for each in actors), default=0.0)
            print(
                f"{there:>9} rows, {(there - reported) / (now - at):7.0f}/s, command {resident(process.pid):.0f} MiB, "
                f"largest of {len(actors)} actors {largest:.0f} MiB, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            reported, at = there, now
        if until <= there < rows or time.monotonic() - began > seconds:
            process.send_signal(signal.SIGKILL)  # its cluster ends with it
            process.wait()
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "said").read_text(errors="replace")[-2000:])
    print(f"{count(log) or rows} rows after {time.monotonic() - began:.0f} s, code {process.returncode}", flush=True)
    return process.returncode


def check(folder: Path, rows: int) -> None:
    """Raise `AssertionError` unless each row has its own outcome, in order."""
    with (folder / "out.jsonl").open(encoding="utf-8") as file:
        number = -1
        for number, line in enumerate(file):
            row = json.loads(line)
            kind = {BAD: "invalid", FAILS: "failed"}.get(number % 1000, "done")
            assert (row["row"], row["status"]) == (number, kind), row
            assert kind != "done" or (row["id"], row["answer"]) == (f"r{number}", "a reply"), row
    assert number + 1 == rows, f"{number + 1} rows"
    print(f"all {rows} rows have their outcome: {rows // 1000} invalid, {rows // 1000} failed, the others done")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--plain", action="store_true", help="one orchestrator, no Ray")
    parser.add_argument("--folder", type=Path, help="keep the files here; the same command resumes with them")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="kill the command after this number of seconds"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "in.jsonl").exists():
            write(folder, given.rows)
        words = ["--concurrency", str(given.concurrency)]
        if not given.plain:
            words += ["--actors", str(given.actors)]
        log, third = folder / "out.jsonl.progress", given.rows // 3
        ends = time.monotonic() + given.seconds
        if count(log) < third:
            one(folder, words, given.rows, third, given.seconds)
        if (left := ends - time.monotonic()) > 0 and one(folder, words, given.rows, given.rows, left) == 0:
            check(folder, given.rows)
