"""The journal: what goes in comes out, crashes lose nothing, tampering and impurity are found, bad files refused."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from plait.core.budget import Budget
from plait.core.chat import ImagePart, ImageUrl, Message, TextPart
from plait.core.errors import ConfigError
from plait.core.events import (
    Cancelled,
    Event,
    Expanded,
    Failed,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WorkerUp,
)
from plait.core.interfaces import Merge, Policy, Verdict
from plait.core.ops import Function, Join, ModelCall, Plugin, Ref, Text, Tokens, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Failure, Result, Signals, Sources, Token, Usage
from plait.core.sampling import Sampling
from plait.core.task import Task
from plait.core.view import Branch
from plait.machine.machine import Machine
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.recorded_actions import dump, event_json, without_defaults
from plait.runtime.journal.replay import replay
from plait.runtime.journal.sqlite import FORMAT
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import Host, LatencyModel, WorkerFault, simulate, varied
from tests.machine.invariants import check_invariants

PLAN = Plan(
    steps=(
        Step(name="look", op=ToolCall(tool="search", args={"q": "é"})),
        *(
            Step(
                name=f"s{i}",
                op=ModelCall(prompt="go on", stream=True, sampling=Sampling(max_tokens=40)),
                needs=("look",),
            )
            for i in range(6)
        ),
        Step(name="vote", op=Join(on_failure="quorum", quorum=3), needs=tuple(f"s{i}" for i in range(6))),
    ),
    output="vote",
)
HOSTS = [Host("a", slots=2), Host("b", slots=2)]
FAULTS = [WorkerFault(0.1, "b", down_for=0.2)]


def record(path: Path, plan: Plan = PLAN, **options) -> int:
    """Write the journal of a simulated run and return how many events it has."""
    with Journal(path).open(meta={"planner": "none"}) as journal:

        def watch(event: Event, actions: Sequence) -> None:
            journal.acted(journal.append([event]), actions)

        latency = LatencyModel(chunk=8)
        options = {"hosts": HOSTS, "faults": FAULTS, "outcome": varied(), "latency": latency} | options
        return simulate(plan, watch=watch, **options).events


def sql(path: Path, *commands: str) -> None:
    with sqlite3.connect(path) as db:
        for command in commands:
            db.execute(command)
    db.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


# -- round trip --------------------------------------------------------------------------------------------------------

ODD: list[JsonValue] = [
    None,
    "é\u2028\x00\n\"'",
    "\ud800 alone",
    float("inf"),
    [float("-inf"), {"": 1e300}],
    10**40,
    {"$ref": "x"},
    "",
]


def test_events_come_out_as_they_went_in(file: Path) -> None:
    events: list[Event] = [
        WorkerUp(at=0.1, worker="w", slots=2, serves=("think", "call")),
        Submitted(at=0.2, run="r", request=Request(text="x", seed=7), plan=PLAN),
        Progressed(at=1e-9, attempt=1, text="à", tokens=3, logprob=-0.1),
        Failed(at=3.0, attempt=2, failure=Failure(kind="ToolError", message="ü", retryable=True)),
        Tick(at=1e9),
        Cancelled(at=5.0, run="r"),
        *(
            Succeeded(at=6.0, attempt=i, result=Result(value=value, logprob=float("-inf")))
            for i, value in enumerate(ODD)
        ),
    ]
    with Journal(file) as journal:
        assert journal.append(events[:3]) == 1
        assert journal.append([]) == 4
        assert journal.append(events[3:]) == 4
        assert list(journal.events()) == events, "read while it is open for writing"
    assert list(Journal(file).events()) == events
    rows = list(Journal(file).rows())
    assert [row.seq for row in rows] == list(range(1, len(events) + 1))
    assert [row.kind for row in rows] == [event.kind for event in events]
    assert [row.at for row in rows] == [event.at for event in events]


def test_rows_say_which_run_they_concern(file: Path) -> None:
    n = record(file)
    rows = list(Journal(file).rows())
    assert len(rows) == n
    told = {row.kind: row.run for row in rows}
    assert told["submitted"] == told["succeeded"] == told["progressed"] == told["stopped"] == "sim"
    assert told["worker-up"] is None


def test_actions_stand_beside_their_event(file: Path) -> None:
    record(file)
    machine = Machine(Plugins())
    for row in Journal(file).rows():
        assert dump(machine.handle(row.load())) == row.actions


def test_the_header_remembers_options_and_no_secrets(file: Path) -> None:
    meta: dict[str, JsonValue] = {
        "model": "m",
        "api_key": "sk-1",
        "http": {"Authorization": "Bearer 1", "max_tokens": 5},
    }
    with Journal(file).open(grace=3.0, lease=9.0, meta=meta) as journal:
        journal.append([Tick(at=0.0)])
    ((first, header),) = Journal(file).sessions()
    assert (first, header.format, header.grace, header.lease) == (1, FORMAT, 3.0, 9.0)
    assert header.meta == {"model": "m", "api_key": "***", "http": {"Authorization": "***", "max_tokens": 5}}


def test_a_secret_that_is_named_is_nowhere_in_the_file(file: Path) -> None:
    secret = 'sk-"quoted"-1234'
    with Journal(file, secrets=[secret]) as journal:
        request = Request(text=f"my key is {secret}")
        machine = Machine(Plugins())
        events = [
            Submitted(at=0.0, run="r", request=request, plan=Plan(steps=PLAN.steps[:1], output="look")),
            Cancelled(at=1.0, run="r", reason=secret),
        ]
        for seq, event in enumerate(events, journal.append(events)):
            journal.acted(seq, machine.handle(event), machine.refused)
    assert b"quoted" not in file.read_bytes()
    assert b"my key is ***" in file.read_bytes()
    assert replay(file, Plugins()).divergence is None


def test_the_file_is_private_and_whole_when_closed(file: Path) -> None:
    record(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name], "nothing of SQLite's is left beside it"


def test_it_is_in_wal_mode_while_it_is_written(file: Path) -> None:
    with Journal(file) as journal:
        journal.append([Tick(at=0.0)])
        with sqlite3.connect(file) as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        db.close()


# -- replay ------------------------------------------------------------------------------------------------------------


def test_a_replay_repeats_every_action(file: Path) -> None:
    n = record(file)
    report = replay(file, Plugins(), check=check_invariants)
    assert (report.events, report.sessions, report.recomputed, report.divergence) == (n, 1, 0, None)
    (finish,) = report.finished
    assert finish.run == "sim" and finish.status == "done"
    assert report.divergence is None, report.divergence


def test_a_replay_can_stop_in_the_middle_and_show_the_machine(file: Path) -> None:
    n = record(file)
    report = replay(file, Plugins(), until=n - 1)
    assert report.events == n - 1 and report.finished == ()
    assert list(report.machine.runs) == ["sim"]
    assert not replay(file, Plugins()).machine.runs


def test_hash_seeds_change_no_action(file: Path, root: Path) -> None:
    n = record(file)
    code = (
        "import sys; from plait.runtime.journal.replay import replay\n"
        "from plait.runtime.plugins.loader import Plugins\n"
        "from tests.machine.invariants import check_invariants\n"
        "report = replay(sys.argv[1], Plugins(), check=check_invariants)\n"
        "assert report.divergence is None, report.divergence\nprint(report.events)"
    )
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(file)],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, str(n)), done.stderr


def test_the_first_divergence_is_named(file: Path) -> None:
    n = record(file)
    (target,) = [row for row in Journal(file).rows() if row.kind == "submitted"]
    sql(file, f"UPDATE events SET actions = replace(actions, ':look', ':took') WHERE seq >= {target.seq}")
    report = replay(file, Plugins())
    found = report.divergence
    assert found is not None and found.index == target.seq < n
    assert found.event == target.event
    assert found.recorded is not None
    assert ':took"' in found.recorded and ':look"' in found.replayed
    assert report.events == target.seq, "what comes after says nothing"


def test_a_change_of_an_event_shows_in_what_follows(file: Path) -> None:
    record(file)
    (target,) = [row.seq for row in Journal(file).rows() if row.kind == "submitted"]
    sql(file, f"""UPDATE events SET event = replace(event, '"quorum":3', '"quorum":2') WHERE seq = {target}""")
    found = replay(file, Plugins()).divergence
    assert found is not None and found.index > target


class Fickle(Policy):
    """A rank that depends on how often it was asked: not pure."""

    asked: list[str] = []

    def rank(self, step, view) -> tuple[float, ...]:
        self.asked.append(step.id)
        return (len(self.asked) % 5 * (-1.0) ** (len(self.asked) // 20),)


def test_a_policy_that_is_not_pure_is_found_out(file: Path) -> None:
    fickle = Fickle(asked=[])
    steps = tuple(Step(name=f"s{i}", op=ToolCall(tool="f")) for i in range(30))
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(s.name for s in steps))), output="all")

    class Given(Plugins):
        def policy(self, spec: Plugin) -> Policy:
            return fickle

    record(file, plan, policies=[fickle], faults=())
    assert replay(file, Given()).divergence is not None


def test_a_merge_that_is_gone_is_a_divergence_not_a_crash(file: Path) -> None:
    class Local(Merge):
        def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
            return Verdict(value="local", why="")

    class Given(Plugins):
        def merge(self, spec: Plugin) -> Merge:
            return Local()

    record(file, plugins=Given())
    found = replay(file, Plugins()).divergence
    assert found is not None and found.recorded != found.replayed


def test_a_second_session_is_for_a_new_machine(file: Path) -> None:
    n = record(file) + record(file)
    report = replay(file, Plugins())
    assert (report.events, report.sessions, len(report.finished)) == (n, 2, 2)
    assert report.divergence is None
    assert [first for first, _ in Journal(file).sessions()] == [1, n // 2 + 1]


def test_a_session_in_which_nothing_happened_leaves_no_trace(file: Path) -> None:
    for grace in (1.0, 2.0):
        Journal(file).open(grace=grace).close()
    record(file)
    (session,) = Journal(file).sessions()
    assert session[1].grace == 10.0
    assert replay(file, Plugins()).sessions == 1


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_actions_that_were_never_written_are_recomputed(file: Path) -> None:
    n = record(file)
    sql(file, f"UPDATE events SET actions = NULL WHERE seq > {n - 3}")
    report = replay(file, Plugins())
    assert (report.events, report.recomputed, report.divergence) == (n, 3, None)
    assert report.finished[0].status == "done"


WRITER = """
import sys
from plait.core.events import Submitted, Succeeded, WorkerUp
from plait.core.ops import ToolCall, Join
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result
from plait.machine.machine import Machine
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins

machine, journal = Machine(Plugins()), Journal(sys.argv[1]).open()

def noted(events):
    first = journal.append(events)
    actions = []
    for seq, event in enumerate(events, first):
        made = machine.handle(event)
        journal.acted(seq, made)
        actions += made
    print(first + len(events) - 1, flush=True)
    return actions

steps = tuple(Step(name=f"s{i}", op=ToolCall(tool="f")) for i in range(5_000))
plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(step.name for step in steps))), output="all")
up = WorkerUp(at=0.0, worker="w", slots=8, serves=("call",))
todo = noted([up, Submitted(at=0.0, run="r", request=Request(), plan=plan)])
while todo:
    jobs = [action.job.attempt for action in todo if action.kind == "dispatch"]
    todo = noted([Succeeded(at=1.0, attempt=attempt, result=Result(value="x" * 200)) for attempt in jobs])
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_was_told_is_written(file: Path, root: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(file)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = 0
        for line in writer.stdout:
            said = int(line)
            if said >= 300:
                writer.send_signal(signal.SIGKILL)
                break
        said = max([said, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        assert writer.wait() == -signal.SIGKILL
    assert file.with_name(file.name + "-wal").exists(), "it was killed in the middle, not closed"

    rows = list(Journal(file).rows())
    assert len(rows) >= said >= 300
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    missing = [row.seq for row in rows if row.actions is None]
    assert missing == list(range(len(rows) - len(missing) + 1, len(rows) + 1)), "only the last batch lacks actions"
    report = replay(file, Plugins())
    assert (report.events, report.recomputed, report.divergence) == (len(rows), len(missing), None)

    # The door to going on with a run: the machine stands where the events left it.
    assert list(report.machine.runs) == ["r"]
    assert len(report.machine.attempts) == 8

    with Journal(file) as journal:
        assert journal.append([Tick(at=9.0)]) == len(rows) + 1


# -- files that are refused --------------------------------------------------------------------------------------------


def refused(match: str, path: Path, *, write: bool = False) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        Journal(path).open() if write else list(Journal(path).rows())
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def test_paths_that_are_no_journal(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary, " * 100)
    empty = tmp_path / "empty"
    empty.touch()
    other = tmp_path / "other.db"
    sql(other, "CREATE TABLE t (x)")
    for write in (False, True):
        refused("no SQLite file", text, write=write)
        refused("some other program's", other, write=write)
        refused("Is a directory", tmp_path, write=write)
    refused("it is empty", empty)
    refused("No such file", tmp_path / "nowhere")
    refused("No such file", tmp_path / "no" / "where", write=True)
    assert text.read_text().startswith("dear diary"), "it was not written to"
    with sqlite3.connect(other) as db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
    db.close()


def test_a_file_of_a_newer_format(file: Path) -> None:
    record(file)
    sql(file, f"PRAGMA user_version = {FORMAT + 1}")
    refused(f"journal format {FORMAT + 1}, newer than {FORMAT}.*upgrade plait", file)
    refused("upgrade plait", file, write=True)


def test_a_file_that_is_damaged(file: Path) -> None:
    record(file)
    content = bytearray(file.read_bytes())
    content[4096:-4096] = os.urandom(len(content) - 8192)
    file.write_bytes(content)
    refused("not a journal, or is damaged", file)


def test_a_text_that_is_not_utf_8(file: Path) -> None:
    record(file)
    sql(file, "UPDATE events SET kind = CAST(X'FF' AS TEXT) WHERE seq = 3")
    refused("not a journal, or is damaged: Could not decode to UTF-8", file)


def test_a_file_that_lacks_an_event(file: Path) -> None:
    record(file)
    sql(file, "DELETE FROM events WHERE seq = 4")
    refused("event 4 is missing", file)


def test_an_event_that_cannot_be_read(file: Path) -> None:
    record(file)
    sql(file, """UPDATE events SET event = '{"kind": "surprise"}' WHERE seq = 3""")
    with pytest.raises(ConfigError, match="event 3 of the journal cannot be read"):
        replay(file, Plugins())


def test_a_journal_without_a_session(file: Path) -> None:
    Journal(file).open().close()
    sql(file, "DELETE FROM sessions")
    with pytest.raises(ConfigError, match="no session"):
        replay(file, Plugins())


def test_one_writer_at_a_time(file: Path) -> None:
    with Journal(file) as journal:
        journal.append([Tick(at=0.0)])
        refused("being written by another run; give each its own", file, write=True)
        with pytest.raises(ConfigError, match="open already"):
            journal.open()
    Journal(file).open().close()


def test_a_file_that_another_program_has_locked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(file)
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, **{**options, "timeout": 0.05}))
    holder = real(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    refused("locked by another program", file)
    refused("locked by another program", file, write=True)
    holder.execute("ROLLBACK")
    holder.close()
    assert list(Journal(file).rows())


def test_a_journal_can_be_read_where_nothing_may_be_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = record(file)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write anywhere, so say it may not
    opened: list[str] = []
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda at, **options: opened.append(at) or real(at, **options))
    assert len(list(Journal(file).rows())) == n
    assert opened and all(uri.endswith("?mode=ro") for uri in opened)


def test_a_full_disk_is_said_and_nothing_half_written(file: Path) -> None:
    with Journal(file) as journal:
        journal.append([Tick(at=0.0)])
        db = getattr(journal._storage, "_db")  # noqa: B009
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
        big = [Progressed(at=1.0, attempt=i, text=os.urandom(4000).hex()) for i in range(20)]
        with pytest.raises(ConfigError, match="full"):
            journal.append(big)
        assert len(list(journal.rows())) == 1


# -- every value -------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(values, st.text(max_size=20), st.floats(0, 1e6)), min_size=1, max_size=5))
def test_any_result_survives(tmp_path_factory: pytest.TempPathFactory, results: list[tuple]) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    events: list[Event] = [
        Succeeded(at=at, attempt=i, result=Result(value=value, why=why, usage=Usage(cost=at)))
        for i, (value, why, at) in enumerate(results)
    ]
    with Journal(path) as journal:
        journal.append(events)
    assert list(Journal(path).events()) == events


def test_prompts_of_token_ids_survive(file: Path) -> None:
    op = ModelCall(prompt=(Text(text="a"),), sampling=Sampling(stop=("</s>",)))
    event = Submitted(
        at=0.0, run="r", request=Request(), plan=Plan(steps=(Step(name="s", op=op, label="λ"),), output="s")
    )
    with Journal(file) as journal:
        journal.append([event])
    assert list(Journal(file).events()) == [event]


@pytest.mark.parametrize("value", [None, 'a"b\\é\x7f\n', {"a": [1, 2, math.inf]}, "half \ud83d", [], "", 0, False])
@pytest.mark.parametrize("usage", [Usage(), Usage(prompt=3, cost=0.25), Usage(prompt=3, sources=Sources(prompt="ids"))])
def test_events_that_leave_out_defaults_are_read_as_they_were(file: Path, value: JsonValue, usage: Usage) -> None:
    signals = Signals(k=2, confidence=1e300, tail=0.5, bottom=1.0, lowest=-1.5, entropy=0.1)
    result = Result(
        value=value, usage=usage, token_ids=(1, 2), signals=signals, why='"', tokens=(Token(text="t", logprob=0.0),)
    )
    said = str(value)
    events: list[Event] = [
        Succeeded(0.5, 1, Result(value=value)),
        Succeeded(0.5, 1, result),
        Succeeded(0.5, 1, result.model_copy(update={"reasoning": said, "anew": said, "usage": Usage()})),
        Stopped(1.0, 3, Result(value=value, finish="cancelled")),
        Progressed(0.1, 2, said, 1, logprob=-math.inf, ids=(1, 2)),
        Failed(0.2, 2, Failure(kind="ToolError", message=said, retryable=True), usage),
        Expanded(0.3, "r:s", 1, failure=Failure(kind="ToolError", message=said), closed=True, waited={"a": {"": 1}}),
        Tick(3.0),
    ]
    with Journal(file) as journal:
        journal.append(events)
    assert list(Journal(file).events()) == events
    assert without_defaults(Result(prior="before")) == {}, "what a replay makes again is not written"


def test_a_plan_that_leaves_out_defaults_is_read_as_it_was(file: Path) -> None:
    message = Message(role="user", content=(TextPart(text="a"), ImagePart(image_url=ImageUrl(url="https://a/b"))))
    ops: list[Any] = [
        ModelCall(
            prompt=("p", Ref(step="b")), sampling=Sampling(max_tokens=512, temperature=0.0, logit_bias={"1": -1.0})
        ),
        ModelCall(prompt="q", chat=True, messages=(message,), tools=(Function(name="f", parameters={"a": {}}),)),
        ModelCall(prompt=(Tokens(ids=(1, 2)),), sampling=Sampling()),
        ToolCall(tool="t", args={"x": Ref(step="a"), "empty": {}}, approve=False),
        Join(merge=Plugin(name="majority", options={"n": 0}), on_failure="quorum", quorum=1),
    ]
    steps = [Step(name=f"s{i}", op=op, needs=("s0",) if i else ()) for i, op in enumerate(ops)]
    steps[1] = steps[1].model_copy(update={"budget": Budget(), "priority": 0, "state": {"a": 1}})
    patch = Plan(steps=tuple(steps), output="s4", budget=Budget(tokens=3), group="g/h")
    events: list[Event] = [Expanded(0.1, "r:a", 1, patch), Submitted(0.2, "r", Request(text="x", seed=0), patch)]
    with Journal(file) as journal:
        journal.append(events)
    assert list(Journal(file).events()) == events
    assert "null" not in event_json(events[0]), "a default is not written"


def test_a_value_that_cannot_be_written_ends_its_own_run_alone(file: Path) -> None:
    good = Succeeded(at=1.0, attempt=1, result=Result(value="x"))
    with Journal(file) as journal:
        journal.append([good], commit=False)
        bad = Succeeded(at=1.0, attempt=2, result=Result.model_construct(value=object()))
        journal.append([bad, good], commit=False)
        journal.flush()
        assert [run for run, _ in journal.failed] == [""]
        journal.failed.clear()
        with pytest.raises(TypeError):
            journal.append([bad])
    assert [event.kind for event in Journal(file).events()] == ["succeeded", "elsewhere", "succeeded", "elsewhere"]
