"""`plait job`: a command on a real local Ray cluster, whose log, result and journal come back over its Jobs API."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import hmac
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from plait.apps.common.interrupt import descendants
from plait.apps.jobs import entry
from plait.apps.jobs.log_files import packed, split_log

from ..conftest import Plait

KEY = "k" * 64


@given(st.binary(max_size=300_000), st.lists(st.text("abc \n"), max_size=5))
def test_a_file_travels_through_a_log(content: bytes, said: list[str]) -> None:
    text = [line for each in said for line in (each + "\n").splitlines(keepends=True)]
    lines = packed("run.journal", content, KEY)
    assert lines is not None
    rest, files = split_log([*text, *(line + "\n" for line in lines), *text], KEY)
    assert files == {"run.journal": content}
    assert rest == [*text, *text]


def test_a_file_that_is_not_whole_does_not_come_back() -> None:
    lines = packed("a", os.urandom(200_000), KEY)
    assert lines is not None
    assert len(lines) > 2
    assert split_log(lines[:-1], KEY)[1] == {}
    assert split_log(lines[1:], KEY)[1] == {}
    assert set(split_log([*lines[1:], lines[0]], KEY)[1]) == {"a"}


def signed(head: str, piece: str, key: str = KEY) -> str:
    """A line of a log as a job writes it."""
    mac = hmac.new(key.encode(), f"{head} {piece}".encode(), hashlib.sha256).hexdigest()
    return f"plait-file {head} {mac} {piece}\n"


def zipped(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()  # the same each time: it names a test


@pytest.mark.parametrize(
    "line",
    [
        f"plait-file 1/1 conftest.py {zipped(b'1')}\n",
        f"plait-file 1/1 conftest.py {'0' * 64} {zipped(b'1')}\n",
        signed("1/1 conftest.py", zipped(b"1"), "another key"),
        signed("1/1 conftest.py", zipped(b"1")).replace("conftest", "sitecustomize"),
        signed("1/1 ../../etc/x", zipped(b"1")),
        signed("1/1 ..", zipped(b"1")),
        signed("1/999999 x", zipped(b"1")),
        signed("0/1 x", zipped(b"1")),
        signed("1/1 x", "no base64 at all".replace(" ", "!")),
        signed("1/1 x", zipped(b"1")[:-8]),
    ],
)
def test_what_a_model_writes_into_a_log_is_no_file(line: str) -> None:
    assert split_log([line], KEY)[1] == {}
    assert split_log([line], "") == ([line], {}), "a job of somebody else's has no files"


def test_a_file_is_not_unpacked_beyond_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.apps.jobs.log_files.UNPACKED_LIMIT", 1000)
    assert split_log([signed("1/1 bomb", zipped(bytes(1001)))], KEY)[1] == {}
    assert split_log([signed("1/1 fine", zipped(bytes(1000)))], KEY)[1] == {"fine": bytes(1000)}
    assert packed("bomb", bytes(1001), KEY) is None


class Cluster:
    """Ray's Jobs API with one job, whose log is what `entry` printed, and what a model has said."""

    jobs: ClassVar[dict[str, dict[str, Any]]] = {}
    log: ClassVar[str] = ""

    def __init__(self, address: str) -> None:
        pass

    def submit_job(self, **options: Any) -> str:
        self.jobs["made"] = options
        return "made"

    def get_job_info(self, job: str) -> Any:
        made = self.jobs[job]
        return types.SimpleNamespace(
            submission_id=job, status="SUCCEEDED", message="", start_time=1, end_time=2, **made
        )

    def get_job_logs(self, job: str) -> str:
        return self.log


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> type[Cluster]:
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Cluster)
    monkeypatch.setattr(Cluster, "jobs", {})
    return Cluster


def test_the_files_of_a_job_come_back_and_those_of_a_model_do_not(
    plait: Plait, one_job: type[Cluster], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = plait("job", "submit", "--keep", "out.txt", "--working-dir", tmp_path, "--", "version")
    assert made.out == "made\n"
    words = shlex.split(one_job.jobs["made"]["entrypoint"])
    assert words[1:3] == ["-m", "plait.apps.jobs.entry"]
    Path("out.txt").write_text("the answers")
    assert entry.main(words[3:]) == 0
    hostile = f"plait-file 1/1 conftest.py {zipped(b'import os')}\n"
    one_job.log = hostile + capsys.readouterr().out
    done = plait("job", "result", "made", "--out", "back", "--json")
    assert done.json["files"] == ["back/out.txt"]
    assert (tmp_path / "back" / "out.txt").read_text() == "the answers"
    assert (tmp_path / "back" / "out.txt").stat().st_mode & 0o777 == 0o600
    said = plait("job", "logs", "made").out
    assert hostile in said and "pydantic" in said and "out.txt" not in said
    assert "--key" not in plait("job", "status", "made").out


def test_a_job_leaves_nothing_in_the_folder_of_the_cluster(
    plait: Plait, one_job: type[Cluster], capsys: pytest.CaptureFixture[str], tmp_path: Path, script: Any
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chdir(home)
    words = ["run", "q", "--script", script("answer: 4"), "--journal", "run.journal"]
    assert plait("job", "submit", "--keep", "run.journal", "--", *words).code == 0
    assert entry.main(shlex.split(one_job.jobs["made"]["entrypoint"])[3:]) == 0
    said = capsys.readouterr()
    one_job.log = said.out
    os.chdir(home)
    assert list(home.iterdir()) == []
    assert "what the command wrote is in" in said.err
    assert plait("job", "result", "made", "--json").json["files"] == ["run.journal"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["rnu", "q"], "Did you mean 'run'?"),
        (["run", "q", "--plannr", "x"], "No such option: --plannr"),
        (["eval", "countdown", "--count", "many"], "--count"),
    ],
)
def test_a_command_that_is_none_is_not_submitted(
    plait: Plait, one_job: type[Cluster], words: list[str], said: str
) -> None:
    done = plait("job", "submit", "--", *words)
    assert (done.code, one_job.jobs) == (2, {})
    assert said in done.err


def test_two_kept_files_of_one_name_are_refused(plait: Plait, one_job: type[Cluster]) -> None:
    done = plait("job", "submit", "--keep", "a/x", "--keep", "b/x", "--", "version")
    assert done.code == 2 and "the same name" in done.err
    assert one_job.jobs == {}


def test_no_cluster_is_said_so(plait: Plait) -> None:
    done = plait("job", "status", "x", "--address", f"http://127.0.0.1:{_free_port()}")
    assert done.code == 1
    assert "ray start --head" in done.err


def test_a_ray_without_its_jobs_api_is_said_so(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("The Ray jobs CLI & SDK require the ray[default] installation: `pip install 'ray[default]'`")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", refuses)
    done = plait("job", "list")
    assert (done.code, done.err) == (1, "error: Ray's Jobs API is not installed: pip install 'plait[job]'\n")


@pytest.mark.parametrize(("refusals", "code"), [(2, 0), (99, 1)])
def test_a_cluster_that_has_only_just_started(
    plait: Plait, monkeypatch: pytest.MonkeyPatch, refusals: int, code: int
) -> None:
    tried: list[dict[str, str]] = []

    class Client:
        def __init__(self, address: str) -> None:
            pass

        def submit_job(self, **options: str) -> str:
            tried.append(options)
            if len(tried) <= refusals:
                raise RuntimeError("Request failed with status code 500: No available agent to submit job, try later")
            return "made"

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    clock = [0.0]
    monkeypatch.setattr("plait.apps.jobs.command.time.sleep", lambda seconds: clock.append(clock[-1] + seconds))
    monkeypatch.setattr("plait.apps.jobs.command.time.monotonic", lambda: clock[-1])
    done = plait("job", "submit", "--", "version")
    assert done.code == code
    assert done.out == "made\n" if code == 0 else "No available agent" in done.err
    assert len(tried) == min(refusals, 21) + 1 and all(each == tried[0] for each in tried)


@pytest.mark.parametrize("words", [(), ("--", "repl"), ("--", "job", "list")])
def test_what_is_no_job_is_refused(plait: Plait, words: tuple[str, ...]) -> None:
    assert plait("job", "submit", *words).code == 2


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a client of a local Ray cluster with a dashboard. `ray stop` would end every Ray on the
    machine, so this one's processes are ended one by one."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="needs ray[default]")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: it stands in names of sockets, of 107 bytes at most
    token = folder / "token"
    token.write_text("t" * 64)
    port, dashboard = _free_port(), _free_port()
    address = f"http://127.0.0.1:{dashboard}"
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_API_SERVER_ADDRESS": address}
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **ours}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    words = ["start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=4",
             "--object-store-memory=100000000", "--include-dashboard=true", f"--temp-dir={folder}",
             f"--dashboard-agent-listen-port={_free_port()}"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        head = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), *words], env=environment, stdout=log, stderr=log, cwd=folder
        )
    try:
        _wait_for(address, head, folder / "log")
        yield environment
    finally:
        started = descendants(head.pid)
        head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
        for pid in [*started, head.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and head.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
            return
        except urllib.error.HTTPError:  # it wants the token: it is there
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the local cluster did not start: {log.read_text()[-800:]}")


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_job_solves_puzzles_over_two_engines_and_its_files_come_back(cluster: dict[str, str], tmp_path: Path) -> None:
    def plait(*words: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "plait.apps.main", "job", *map(str, words)]
        done = subprocess.run(command, env=cluster, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == code, done.stderr[-2000:] + done.stdout[-2000:]
        return done.stdout

    inner = ["eval", "countdown", "--planner", "threads", "--count", 24, "--engines", 2, "--answers", "answers.jsonl",
             "--journal", "run.journal", "--json"]  # fmt: skip
    keep = ["--keep", "answers.jsonl", "--keep", "run.journal", "--working-dir", tmp_path]
    (tmp_path / "note.txt").write_text("uploaded")
    log = plait("submit", "--id", "puzzles", "--follow", *keep, "--", *inner)
    summary = next(json.loads(line) for line in log.splitlines() if line.startswith('{"n"'))
    assert summary["n"] == 24
    assert summary["solved"] >= 20
    assert "plait-file" not in log
    assert json.loads(plait("status", "puzzles", "--json"))["status"] == "SUCCEEDED"
    assert '"solved"' in plait("logs", "puzzles")
    files = json.loads(plait("result", "puzzles", "--out", "back", "--json"))["files"]
    assert sorted(Path(each).name for each in files) == ["answers.jsonl", "run.journal"]
    answers = [json.loads(line) for line in (tmp_path / "back" / "answers.jsonl").read_text().splitlines()]
    assert sum(each["solved"] for each in answers) == summary["solved"]
    replayed = subprocess.run(
        [sys.executable, "-m", "plait.apps.main", "replay", "back/run.journal", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stderr
    used = (tmp_path / "back" / "run.journal").read_bytes()
    assert b"engine-0" in used
    assert b"engine-1" in used

    made = plait("submit", "--", "eval", "countdown", "--planner", "sample", "--count", 2000).strip()
    plait("cancel", made)
    end = time.monotonic() + 60
    while (state := json.loads(plait("status", made, "--json"))["status"]) not in ("STOPPED", "FAILED"):
        assert time.monotonic() < end, state
        time.sleep(0.5)
    assert state == "STOPPED"
    assert "no such job" in subprocess.run(
        [sys.executable, "-m", "plait.apps.main", "job", "logs", "nobody"], env=cluster, capture_output=True,
        text=True, timeout=60,
    ).stderr  # fmt: skip
    assert "puzzles" in plait("list")


def test_a_job_that_is_cancelled_brings_back_what_it_has_done(tmp_path: Path, script: Any) -> None:
    """Ray sends SIGTERM, and SIGKILL a few seconds later. A batch that was stopped has its rows in `OUT.progress`."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "question {i}"}}\n' for i in range(200)))
    batch = ["batch", "rows.jsonl", "--out", "out.jsonl", "--concurrency", "2"]
    replies = script({"text": "answer: 4", "delay": 0.1})
    words = ["--here", "--keep", "out.jsonl", "--key", KEY, "--", *batch, "--script", replies]
    job = subprocess.Popen(
        [sys.executable, "-m", "plait.apps.jobs.entry", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    progress, until = tmp_path / "out.jsonl.progress", time.monotonic() + 60
    while not (progress.exists() and progress.read_text().count("\n") > 3) and time.monotonic() < until:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    said, trouble = job.communicate(timeout=60)
    assert job.returncode != 0, trouble
    _, files = split_log(said.splitlines(keepends=True), KEY)
    assert files["out.jsonl.progress"].count(b"answer") > 2, trouble
