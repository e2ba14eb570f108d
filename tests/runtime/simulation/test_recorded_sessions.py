"""Recorded sessions of other tools: their formats, the rules for what a recording leaves open, and bad input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.core.request import Request
from plait_research.simulation.latency import Host
from plait_research.simulation.recorded_sessions import (
    MAX_SESSION_CALLS,
    AgentSession,
    read_sessions,
    simulate_sessions,
)
from plait_research.simulation.workload import WorkloadReport


def written(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def play(sessions: list[AgentSession], *policies: str, cache: int = 100_000, slots: int = 8) -> WorkloadReport:
    request = Request(policies=tuple(Plugin.of(policy) for policy in policies))
    return simulate_sessions(sessions, request, [Host("engine", slots, cache_tokens=cache, block=16)])


def mooncake(at: float, prompt: int, output: int, blocks: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": blocks, **more}


def agent(turns: list[dict[str, Any]], name: str = "a") -> list[dict[str, Any]]:
    """A session; its blocks are its own."""
    known = {"session_id": name, "block_size": 64}
    return [{**row, **known, "hash_ids": [hash((name, block)) for block in row["hash_ids"]]} for row in turns]


def turn(at: float, prompt: int, output: int, think_time: float | None = None) -> dict[str, Any]:
    row = mooncake(1000 * at, prompt, output, list(range(prompt // 64)))
    return row if think_time is None else {**row, "delay": 1000 * think_time}


def message(
    kind: str, at: str, *, session: str = "s", prompt: int = 0, output: int = 0, **more: object
) -> dict[str, Any]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": prompt - 10, "output_tokens": output}
    body = {"id": more.pop("id", at), "usage": usage} if kind == "assistant" else {"content": "secret"}
    return {"type": kind, "sessionId": "s", "timestamp": f"2026-01-01T00:{at}Z", "message": body, **more}


def span(name: str, start: int, end: int, prompt: int, output: int, trace: str = "t1") -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": prompt}
    attributes["gen_ai.usage.output_tokens"] = output
    return {
        "name": "chat model",
        "context": {"trace_id": trace, "span_id": name},
        "start_time": f"2026-01-01T00:00:{start:02}.000000Z",
        "end_time": f"2026-01-01T00:00:{end:02}.000000Z",
        "attributes": attributes,
    }


def test_requests_share_what_their_block_ids_say(tmp_path: Path) -> None:
    rows = [mooncake(0, 1536, 10, [0, 1, 2]), mooncake(2000, 1100, 10, [0, 1, 7]), mooncake(5000, 512, 3, [9])]
    sessions, notes = read_sessions(written(tmp_path / "t.jsonl", rows))
    assert [session.at for session in sessions] == [0.0, 2.0, 5.0] and not notes
    report = play(sessions)
    assert (report.done, report.usage.prompt, report.usage.completion) == (3, 3148, 23)
    assert report.prompt_unique == 1536 + (1100 - 1024) + 512
    assert report.makespan > 5.0


def test_explicit_waits_and_delays_are_kept(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 512, 10, [0], session_id="s", request_id="a", wait_for=[]),
        mooncake(0, 600, 10, [0, 1], session_id="s", request_id="b", wait_for=["a"], delay=1000, tool_wait_ms=500),
        mooncake(0, 600, 10, [0, 2], session_id="s", request_id="c", wait_for=["a"], tool_wait_ms=250),
        mooncake(0, 900, 10, [0, 3], session_id="s", request_id="d", wait_for=["b", "c"], branches=[]),
    ]
    (session,), _ = read_sessions(written(tmp_path / "t.jsonl", rows))
    assert [call.waits for call in session.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.gap for call in session.calls] == [0.0, 1.5, 0.25, 0.0]
    assert play([session]).makespan > 1.5


def test_agents_continue_their_context_and_find_it_cached(tmp_path: Path) -> None:
    turns = [turn(0, 640, 30), turn(5, 1000, 20, think_time=3.0), turn(9, 1100, 10, think_time=2.0)]
    (session,), _ = read_sessions(written(tmp_path / "t.jsonl", agent(turns)))
    assert [(call.after, call.gap) for call in session.calls] == [(None, 0.0), (0, 3.0), (1, 2.0)]
    report = play([session])
    assert report.prompt_unique == 640 + (1000 - 670) + (1100 - 1020)
    assert report.prompt_computed - report.prompt_unique < 3 * 16  # only partial blocks are read again
    assert report.turn.max < report.latency.max


def test_a_compacted_context_begins_anew(tmp_path: Path) -> None:
    shorter = turn(5, 640, 10)
    shorter["hash_ids"] = [0, 1, *range(500, 508)]
    (session,), _ = read_sessions(written(tmp_path / "t.jsonl", agent([turn(0, 6400, 30), shorter])))
    assert session.calls[1].after is None and session.calls[1].waits == (0,)
    assert play([session]).prompt_unique == 6400 + 640 - 128


def test_subagents_run_beside_one_another_and_the_main_agent_waits_for_them(tmp_path: Path) -> None:
    def subagent(agent: str, name: str, start: int, end: int, prompt: int) -> dict[str, Any]:
        row = span(name, start, end, prompt, 5)
        return {**row, "attributes": {**row["attributes"], "gen_ai.agent.id": agent}}

    rows = [
        span("m1", 0, 1, 640, 30),
        *(subagent("x", "x1", 2, 3, 200), subagent("x", "x2", 6, 7, 300)),
        *(subagent("y", "y1", 3, 4, 200), subagent("y", "y2", 7, 9, 300)),
        span("m2", 20, 22, 1000, 20),
    ]
    (session,), _ = read_sessions(written(tmp_path / "t.jsonl", rows))
    named = {call.name: call for call in session.calls}
    waits = {name: {session.calls[at].name for at in call.waits} for name, call in named.items()}
    assert waits == {"m1": set(), "x1": {"m1"}, "y1": {"m1"}, "x2": {"x1"}, "y2": {"y1"}, "m2": {"m1", "x2", "y2"}}
    assert named["m2"].gap == pytest.approx(20 - 9)  # after the last subagent's last call
    assert session.calls[named["m2"].after or 0].name == "m1" and named["x1"].after is None
    assert play([session]).done == 1


def test_spans_of_two_writers_and_transcripts_are_sessions(tmp_path: Path) -> None:
    tool = {**span("x", 3, 4, 1, 1), "attributes": {"gen_ai.operation.name": "execute_tool"}}
    console = written(tmp_path / "console.jsonl", [span("b", 6, 8, 160, 20), tool, span("a", 0, 2, 100, 10)])
    (session,), _ = read_sessions(console)
    assert [(call.prompt, call.gap, call.after) for call in session.calls] == [(100, 0.0, None), (160, 4.0, 0)]

    def otlp(name: str, start: int, end: int, prompt: int) -> dict[str, Any]:
        numbers = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": 10}
        attributes = [{"key": key, "value": {"intValue": str(value)}} for key, value in numbers.items()]
        attributes.append({"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}})
        times = {"startTimeUnixNano": str(start * 10**9), "endTimeUnixNano": str(end * 10**9)}
        return {"traceId": "t", "spanId": name, "attributes": attributes, **times}

    spans = [otlp("b", 6, 8, 160), otlp("a", 0, 2, 100)]
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    path = tmp_path / "otlp.json"
    path.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    (other,), _ = read_sessions(path)
    assert [(call.prompt, call.gap, call.after) for call in other.calls] == [(100, 0.0, None), (160, 4.0, 0)]


def test_a_transcript_without_texts_gives_turns_tools_and_sidechains(tmp_path: Path) -> None:
    rows = [
        {"type": "summary", "summary": "secret"},
        message("user", "00:00"),
        message("assistant", "00:04", prompt=1000, output=20, id="m1"),
        message("assistant", "00:05", prompt=1000, output=50, id="m1"),  # the same message, its tool call
        message("user", "00:06", isSidechain=True, agentId="x"),
        message("assistant", "00:09", prompt=300, output=10, isSidechain=True, agentId="x"),
        message("user", "00:11"),
        message("assistant", "00:15", prompt=1200, output=30, id="m2"),
    ]
    (session,), _ = read_sessions(written(tmp_path / "t.jsonl", rows))
    assert [(call.prompt, call.output, call.waits) for call in session.calls] == [
        (1000, 50, ()),
        (300, 10, (0,)),
        (1200, 30, (0, 1)),
    ]
    assert [call.gap for call in session.calls] == [0.0, 1.0, 2.0] and session.calls[2].after == 0
    assert play([session]).done == 1


def test_rows_in_any_order_and_with_unknown_fields_are_the_same_trace(tmp_path: Path) -> None:
    rows = [
        mooncake(1000 * i, 512 + i, 5, [0, i + 1], session_id=f"s{i % 3}", request_id=str(i), colour=1)
        for i in range(9)
    ]
    ordered, _ = read_sessions(written(tmp_path / "a.jsonl", rows))
    mixed, _ = read_sessions(written(tmp_path / "b.jsonl", reversed(rows)))
    assert [(s.name, s.at, s.calls) for s in ordered] == [(s.name, s.at, s.calls) for s in mixed]
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read_sessions(packed)[0] == ordered


def test_a_cut_trace_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    rows = [mooncake(0, 512, 5, [0], session_id="s", request_id="b", wait_for=["a", "z"])]
    path = written(tmp_path / "t.jsonl", rows)
    path.write_text(path.read_text(encoding="utf-8") + '{"timestamp": 3, "inp', encoding="utf-8")
    (session,), notes = read_sessions(path)
    assert len(session.calls) == 1
    assert notes == [
        "the last line of t.jsonl is incomplete and was left out",
        "2 waits for calls that are not in the trace were left out",
    ]


def test_clocks_that_jump_cut_the_gap(tmp_path: Path) -> None:
    rows = [span("a", 10, 12, 100, 10), span("b", 5, 20, 200, 10), span("c", 50, 51, 300, 10)]
    (session,), notes = read_sessions(written(tmp_path / "t.jsonl", rows), max_gap=20.0)
    assert [call.gap for call in session.calls] == [0.0, 0.0, 20.0]  # an overlap is no gap; the day is cut
    assert notes == ["1 gaps were cut to 20 s"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "holds no model calls"),
        ('{"a": 1}\n', "holds no model calls; expected a Mooncake trace"),
        ('{"timestamp": 0, "input_length": 5}\nnot json\n{"timestamp": 0, "input_length": 5}\n', "line 2, is not JSON"),
        ("[1]", "entry 1, is not a JSON object"),
        ('{"timestamp": 0, "input_length": "many"}', "entry 1, has an invalid value"),
        ('{"timestamp": NaN, "input_length": 5}', "entry 1, has an invalid value"),
        ('{"timestamp": 0, "input_length": -5}', "not a number of tokens"),
        ('{"timestamp": 0, "input_length": 5, "hash_ids": 3}', "entry 1, has an invalid value"),
        ('{"attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5}}', "lacks"),
        ('{"sessionId": "s", "type": "user"}', "entry 1, lacks 'timestamp'"),
        ('{"sessionId": "s", "type": "assistant", "timestamp": "noon", "message": {}}', "has an invalid value"),
    ],
)
def test_invalid_traces_are_rejected_with_their_place(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=error):
        read_sessions(path)


def test_calls_that_wait_for_one_another_are_rejected(tmp_path: Path) -> None:
    rows = [
        mooncake(0, 5, 1, [], session_id="s", request_id=one, wait_for=[other])
        for one, other in (("a", "b"), ("b", "a"))
    ]
    with pytest.raises(ConfigError, match="session s: calls wait for one another"):
        read_sessions(written(tmp_path / "t.jsonl", rows))


@pytest.mark.parametrize("calls", [MAX_SESSION_CALLS + 1, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_session_of_a_million_calls_is_cut_or_rejected(tmp_path: Path, calls: int) -> None:
    def session(calls: int) -> Path:
        path = tmp_path / "t.jsonl"
        rows = (f'{{"input_length": {i}, "session_id": "s"}}\n' for i in range(calls))
        path.write_text("".join(rows), encoding="utf-8")
        return path

    with pytest.raises(ConfigError, match=f"{calls:,} calls, more than {MAX_SESSION_CALLS:,}: give --load calls=N"):
        read_sessions(session(calls))
    (cut,), _ = read_sessions(session(MAX_SESSION_CALLS + 1), calls=100)
    assert play([cut]).done == 1


def test_programs_are_admitted_by_their_working_set(tmp_path: Path) -> None:
    turns = [turn(5 * i, 1_000 + 600 * i, 40, think_time=0.3) for i in range(8)]
    path = written(tmp_path / "t.jsonl", [row for i in range(12) for row in agent(turns, str(i))])
    sessions, _ = read_sessions(path)
    without, admitted = play(sessions, cache=20_000), play(sessions, "working-set", cache=20_000)
    assert without.prompt_computed > 2 * without.prompt_unique
    assert admitted.prompt_computed < 1.3 * admitted.prompt_unique
    assert admitted.done == without.done == 12
