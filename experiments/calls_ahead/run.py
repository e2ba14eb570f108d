"""What do tool calls ahead of the model save? Recorded sessions of an airline's agent, in virtual time.

    python -m experiments calls_ahead

The sessions are GPT-4o's of τ-bench (arXiv 2406.12045; MIT license). `respond`, the call that asks the customer, and
the calls that change bookings have side effects. Patterns are counted in one session of each of the first 25 tasks,
and the four sessions of each of the other 25 are played. The model writes 50 tokens a second, a token is four
characters, a customer answers at once, and other calls take .3 to 1 second, in every row the same. `knows all` knows
the recording: it makes each call as soon as the last one with side effects has ended.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from plait.core.events import Job
from plait.core.ops import ModelCall, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.planners.tools.react import React
from plait_research.call_patterns import CallPattern, SeenCall, count_patterns
from plait_research.planners.react_ahead import ReactAhead
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import simulate

PAGE = Path(__file__).with_name("README.md")
SESSIONS = PAGE.parent / "data" / "airline.jsonl.gz"
KEPT = PAGE.parent / "data" / "rows.jsonl"
LEARNED_TASKS = 25
TOKENS_PER_S, CHARS_PER_TOKEN = 50.0, 4
TOOL_S = {"0.1": (0.1, 0.1), "0.3 to 1": (0.3, 1.0), "2": (2.0, 2.0)}
"""Seconds of a call, by name: least and most."""
CHANGING = (
    "respond", "book_reservation", "cancel_reservation", "send_certificate", "transfer_to_human_agents",
    "update_reservation_baggages", "update_reservation_flights", "update_reservation_passengers",
)  # fmt: skip
SETTINGS = ((0.2, 2), (0.4, 2), (0.4, 8), (0.6, 2))
"""Thresholds of probability and calls ahead a turn."""


class Turn(NamedTuple):
    """A recorded call."""

    tool: str
    arguments: dict[str, Any]
    result: str
    tokens: int


class Session(NamedTuple):
    """A recorded session."""

    task: int
    trial: int
    question: str
    turns: list[Turn]

    @property
    def calls(self) -> list[list[SeenCall]]:
        """The calls, by turn."""
        return [[SeenCall(turn.tool, turn.arguments, turn.result)] for turn in self.turns]


class Played(NamedTuple):
    """A session that was played."""

    makespan: float
    reads: int
    """Calls without side effects that the model asked for and that were made."""
    ahead: int
    """Calls made ahead."""
    foreseen: int
    """Those that the model asked for."""
    transcript: tuple[str, ...]
    """What the model saw at the end."""
    changes: tuple[str, ...]
    """Calls with side effects, in order."""


class Script:
    """The model and the tools of a session."""

    def __init__(self, session: Session, seconds: tuple[float, float]) -> None:
        self.session = session
        self.made: list[str] = []
        self.transcript: tuple[str, ...] = ()
        self._seconds = seconds
        self._results = {call.key: call.result for turn in session.calls for call in turn}

    def seconds(self, job: Job, rng: Random) -> float:
        """Return the seconds of a call, the same for the same call."""
        assert isinstance(job.op, ToolCall)
        return 0.0 if job.op.tool == "respond" else Random(self.key(job.op)).uniform(*self._seconds)

    def key(self, op: ToolCall) -> str:
        """Return the call's key, with the session's name."""
        arguments = {
            name: value["$literal"] if isinstance(value, dict) and "$literal" in value else value
            for name, value in op.args.items()
        }
        return SeenCall(op.tool, arguments).key

    def outcome(self, job: Job, rng: Random) -> Result:
        """Return the result of a call, or the model's text."""
        if isinstance(job.op, ToolCall):
            self.made.append(self.key(job.op))
            return Result(value=self._results.get(self.made[-1], "not in the recording"))
        assert isinstance(job.op, ModelCall)
        place = sum(message.role == "assistant" for message in job.op.messages)
        self.transcript = tuple(str(message.content or "") for message in job.op.messages)
        if place == len(self.session.turns):
            return Result(value="The end.", usage=Usage(completion=1), finish="stop")
        turn = self.session.turns[place]
        text = f"<tool_call>{json.dumps({'name': turn.tool, 'arguments': turn.arguments})}</tool_call>"
        return Result(value=text, usage=Usage(completion=turn.tokens), finish="stop")


def read_sessions() -> list[Session]:
    """Return the recorded sessions."""
    rows = [json.loads(line) for line in gzip.decompress(SESSIONS.read_bytes()).splitlines()]
    return [
        Session(
            row["task"], row["trial"], row["question"],
            [
                Turn(turn["tool"], turn["arguments"], turn["result"], max(1, turn["chars"] // CHARS_PER_TOKEN))
                for turn in row["turns"]
            ],
        )
        for row in rows
    ]  # fmt: skip


def learn(sessions: Sequence[Session]) -> tuple[CallPattern, ...]:
    """Return the patterns of one session of each task to learn from."""
    patterns: Sequence[CallPattern] = ()
    for session in sessions:
        if session.task < LEARNED_TASKS and session.trial == 0:
            patterns = count_patterns(patterns, session.calls, session.question)
    return tuple(patterns)


class KnowsAll(ReactAhead):
    """A planner that knows the session."""

    turns: list[list[dict[str, Any]]] = []

    def likely_calls(self, ctx: Any, ledger: Any) -> list[SeenCall]:
        """Return the calls up to the next one with side effects."""
        found: list[SeenCall] = []
        for turn in self.turns[len(ledger.history) :]:
            calls = [SeenCall(**call) for call in turn]
            if any(call.tool in CHANGING for call in calls):
                break
            found += calls
        return found


def play(session: Session, planner: React, seconds: tuple[float, float]) -> Played:
    """Play one session."""
    script = Script(session, seconds)
    names = sorted({turn.tool for turn in session.turns})
    report = simulate(
        Request(text=session.question),
        planner=planner.model_copy(update={"rounds": 100}),
        hosts=[Host("host", slots=64, prefill_rate=1e9, decode_rate=TOKENS_PER_S)],
        latency=LatencyModel(call=script.seconds, chunk=1),
        outcome=script.outcome,
        tools=[ToolSpec(name=name, parameters={"type": "object"}, side_effects=name in CHANGING) for name in names],
    )
    assert report.status == "done", report.failure
    ahead = [span for span in report.spans if "ahead-" in span.step]
    changes = tuple(key for key in script.made if key.partition(" ")[0] in CHANGING)
    asked = len(script.made) - len(ahead) - len(changes)
    foreseen = count_reads(session) - asked
    return Played(report.makespan, count_reads(session), len(ahead), foreseen, script.transcript, changes)


def count_reads(session: Session) -> int:
    """Count the calls without side effects of `react`, which repeats one only after a change."""
    known, count = set[str](), 0
    for (call,) in session.calls:
        if call.tool in CHANGING:
            known.clear()
        elif call.key not in known:
            known.add(call.key)
            count += 1
    return count


def situations(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """Return the rows of all situations."""
    patterns = learn(sessions)
    held_out = [session for session in sessions if session.task >= LEARNED_TASKS]
    rows: list[dict[str, Any]] = []
    for name, seconds in TOOL_S.items():
        plain = [play(session, React(), seconds) for session in held_out]
        planners: dict[str, Any] = {
            f"{threshold}, {ahead}": ReactAhead(patterns=patterns, threshold=threshold, max_ahead=ahead, max_wasted=999)
            for threshold, ahead in SETTINGS
        }
        for setting, planner in [*planners.items(), ("knows all", None)]:
            made = planner or KnowsAll(max_ahead=64, max_wasted=999)
            played = [
                play(
                    session,
                    made
                    if planner
                    else made.model_copy(update={"turns": [[vars(call) for call in turn] for turn in session.calls]}),
                    seconds,
                )
                for session in held_out
            ]
            rows.append({"tools": name, "setting": setting, **compare(plain, played)})
    return rows


def compare(plain: Sequence[Played], played: Sequence[Played]) -> dict[str, Any]:
    """Return a row: means over the sessions, and the least and most saved."""
    saved = [1 - fast.makespan / slow.makespan for slow, fast in zip(plain, played, strict=True)]
    reads, ahead, foreseen = (sum(getattr(each, name) for each in played) for name in ("reads", "ahead", "foreseen"))
    same = sum(a.transcript == b.transcript and a.changes == b.changes for a, b in zip(plain, played, strict=True))
    total = sum(each.makespan for each in plain)
    return {
        "reads": reads, "foreseen": foreseen / reads, "wasted": (ahead - foreseen) / max(1, foreseen),
        "seconds": fmean(each.makespan for each in plain), "saved": 1 - sum(each.makespan for each in played) / total,
        "interval": bootstrap(plain, played), "least": min(saved), "most": max(saved), "same": same,
    }  # fmt: skip


def bootstrap(plain: Sequence[Played], played: Sequence[Played], draws: int = 2000) -> tuple[float, float]:
    """Return a 95 % interval of the time saved, drawn over tasks: the sessions of a task are alike."""
    rng, pairs = Random(0), [*zip(plain, played, strict=True)]
    tasks = [pairs[start : start + 4] for start in range(0, len(pairs), 4)]
    shares: list[float] = []
    for _ in range(draws):
        drawn = [pair for task in rng.choices(tasks, k=len(tasks)) for pair in task]
        shares.append(1 - sum(fast.makespan for _, fast in drawn) / sum(slow.makespan for slow, _ in drawn))
    shares.sort()
    return shares[round(0.025 * draws)], shares[round(0.975 * draws) - 1]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page's table."""
    head = (
        "seconds of a call", "probability, calls a turn", "calls foreseen", "wasted for each", "seconds of `react`",
        "time saved", "95 %", "least to most", "same transcripts",
    )  # fmt: skip
    lines = [
        f"| {row['tools']} | {row['setting']} | {row['foreseen']:.1%} | {row['wasted']:.1f} | {row['seconds']:.1f} "
        f"| {row['saved']:.1%} | {row['interval'][0]:.1%} to {row['interval'][1]:.1%} "
        f"| {row['least']:.1%} to {row['most']:.1%} | {row['same']} of 100 |"
        for row in rows
    ]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]) + "\n"


def main() -> None:
    """Measure all situations, keep the rows, and write the table into the page."""
    rows = situations(read_sessions())
    KEPT.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition("\n| seconds of a call |")
    PAGE.write_text(f"{head}\n{table(rows)}\n{rest.partition(chr(10) * 2)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
