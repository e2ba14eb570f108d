"""Render a trace as one HTML file with its style, script and data; it loads nothing else.

Text of a model or tool cannot become markup: the data is ASCII JSON without `<`, `>` and `&`, and the page's content
security policy allows only this script and no loads. The drawing code is in `static/`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from ...runtime.runlog import AttemptRecord
from ..trace.model import Segment, Trace, Vote, steps_in_detail

MOST_TEXT = 20_000
"""Characters of one text that the page holds."""
MOST_TOTAL = 12_000_000
"""Maximum characters of all texts together; above it, each text is shortened."""
_LEAST_TEXT = 400
_RUNS = ("runs-1-base", "runs-2-ask", "runs-3-list", "runs-4-main")
_SCRIPTS = ("1-base", "2-plan", "3-engines", "4-prefixes", "5-lists", "6-details", "7-main")


def page(trace: Trace) -> str:
    """Return the page of a trace."""
    return _page(trace, "", "'none'")


def live_page(trace: Trace, url: str) -> str:
    """Return the page of a possibly active run; it polls `url` (a server's path) for `data_of` until the end."""
    return _page(trace, f' data-live="{html.escape(url)}"', "'self'")


def runs_page() -> str:
    """Return the page of a server's runs, which requests all data from the server."""
    style, script = _asset("page.css") + _asset("runs.css"), _script(_RUNS)
    parts = {"style_hash": _hash(style), "script_hash": _hash(script), "style": style, "script": script}
    return _filled(_asset("runs.html"), parts)


def page_headers() -> dict[str, str]:
    """Return the headers that a server sends with its pages."""
    policy = "frame-ancestors 'self'"
    return {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-store"}


def _page(trace: Trace, live: str, connect: str) -> str:
    style, script = _asset("page.css"), _script((*_SCRIPTS, "8-live") if live else _SCRIPTS)
    title = " ".join(trace.text.split())[:80] or f"run {trace.run}"
    parts = {
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "title": html.escape(f"{title} · plait"),
        "style": style,
        "script": script,
        "data": embedded(data_of(trace)),
        "live": live,
        "connect": connect,
    }
    return _filled(_asset("page.html"), parts)


def _filled(whole: str, parts: dict[str, str]) -> str:
    pieces: list[str] = []
    while whole:  # one pass: inserted text is not searched for placeholders
        before, _, rest = whole.partition("{{")
        name, _, whole = rest.partition("}}")
        pieces += [before, parts[name]] if rest else [before]
    return "".join(pieces)


def embedded(data: object) -> str:
    """Return data as JSON for a script element: ASCII without HTML's special characters."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_of(trace: Trace) -> dict[str, Any]:
    """Return the data for the page's script: steps by their position in the list, times in seconds."""
    places = {step.step: place for place, step in enumerate(trace.steps)}
    hosts = _hosts(trace)
    steps = list(steps_in_detail(trace))
    cut = _Cutter(steps)
    decided = {vote.step: vote.at for vote in trace.votes}
    data: dict[str, Any] = {
        "run": trace.run,
        "text": cut(trace.text),
        "task": trace.task,
        "planner": trace.planner,
        "policies": list(trace.policies),
        "budget": trace.budget,
        "seed": trace.seed,
        "model": trace.model,
        "plait": trace.plait,
        "unix": trace.wall(0.0),
        "seconds": trace.seconds,
        "status": trace.status,
        "answer": cut(trace.answer),
        "verified": trace.verified,
        "failure": "" if trace.failure is None else cut(f"{trace.failure.kind}: {trace.failure.message}"),
        "usage": trace.usage.model_dump(),
        "critical": trace.critical_path_tokens,
        "unit": trace.unit,
        "hosts": [{"name": name, "slots": slots} for name, slots in hosts.items()],
        "steps": [_step(step, places, decided, cut) for step in steps],
        "attempts": [_attempt(attempt, places, list(hosts), cut) for attempt in trace.attempts],
        "votes": [_vote(vote, places, cut) for vote in trace.votes],
        "segments": [_segment(segment, places, cut) for segment in trace.segments],
    }
    notes = list(trace.notes)
    if trace.others:
        runs = "one more run, which is" if trace.others == 1 else f"{trace.others:,} more runs, which are"
        notes.append(f"the journal holds {runs} not shown")
    if cut.happened:
        notes.append(f"{cut.happened} texts were longer than {cut.most} characters: their middles are left out")
    return _finite({**data, "notes": notes})


class _Cutter:
    """Cuts texts out of their middle, and remembers that it did."""

    def __init__(self, steps: Sequence[dict[str, Any]]) -> None:
        texts = [len(step["text"]) + sum(len(piece["text"]) for piece in step["prompt"]) for step in steps]
        self.most = MOST_TEXT
        # Shorten all texts: no browser could open a larger page.
        while self.most > _LEAST_TEXT and sum(min(text, 2 * self.most) for text in texts) > MOST_TOTAL:
            self.most //= 2
        self.happened = 0

    def __call__(self, text: str) -> str:
        if len(text) <= self.most:
            return text
        self.happened += 1
        half = self.most // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _hosts(trace: Trace) -> dict[str, int]:
    hosts = {host.name: host.slots for host in trace.hosts}
    for attempt in trace.attempts:
        hosts.setdefault(attempt.worker, 0)
    return hosts


def _step(
    step: dict[str, Any], places: dict[str, int], decided: dict[str, float | None], cut: _Cutter
) -> dict[str, Any]:
    failure, moves = step["failure"], step["moves"]
    same = ("name", "kind", "entered", "tool", "merge", "rule", "sampling", "expands", "budget", "priority", "logprob")
    ended = moves[-1]["at"] if moves and moves[-1]["state"] in ("done", "failed", "cancelled") else None
    return {
        **{key: step[key] for key in (*same, "signals", "chain")},
        **{key: cut(step[key]) for key in ("label", "text", "why")},
        "id": step["id"],
        "owner": places.get(step["owner"], -1),
        "needs": [places[name] for name in step["needs"] if name in places],
        "after": places.get(step["after"], -1),
        "moves": [[move["at"], move["state"], cut(move["reason"])] for move in moves],
        "prompt": [
            {**piece, "text": cut(piece["text"]), "step": places.get(piece["step"], -1)} for piece in step["prompt"]
        ],
        "args": None if step["args"] is None else cut(json.dumps(step["args"], ensure_ascii=False, indent=1)),
        "value": None if step["value"] is None else cut(step["value"]),
        "failure": "" if failure is None else cut(f"{failure['kind']}: {failure['message']}"),
        "frames": "" if failure is None else cut(failure.get("frames", "")),
        "effects": step["side_effects"],
        "decided": decided.get(step["id"], ended) if step["kind"] == "join" else None,
    }


def _attempt(attempt: AttemptRecord, places: dict[str, int], hosts: Sequence[str], cut: _Cutter) -> dict[str, Any]:
    usage, failure = attempt.usage, attempt.failure
    return {
        "step": places[attempt.step],
        "host": hosts.index(attempt.worker),
        "start": attempt.start,
        "end": attempt.end,
        "ending": attempt.ending,
        "lane": attempt.lane,
        "placed": cut(attempt.placed),
        "stopping": attempt.stopping,
        "stop_reason": cut(attempt.stop_reason),
        "first": attempt.first,
        "progress": [list(point) for point in attempt.progress()],
        "usage": [usage.prompt, usage.cached, usage.completion],
        "read": attempt.read,
        "finish": "" if attempt.result is None else attempt.result.finish,
        "failure": "" if failure is None else cut(f"{failure.kind}: {failure.message}"),
        "frames": "" if failure is None else cut(failure.frames),
    }


def _vote(vote: Vote, places: dict[str, int], cut: _Cutter) -> dict[str, Any]:
    ballots = [
        {
            **dataclasses.asdict(ballot),
            "answer": cut(ballot.answer),
            "steps": [places[step] for step in ballot.steps],
        }
        for ballot in vote.ballots
    ]
    return {
        "step": places[vote.step],
        "at": vote.at,
        "verdict": cut(vote.verdict),
        "why": cut(vote.why),
        "early": vote.early,
        "ballots": ballots,
        "unheard": [places[name] for name in vote.unheard],
    }


def _segment(segment: Segment, places: dict[str, int], cut: _Cutter) -> dict[str, Any]:
    return {
        "parent": -1 if segment.parent is None else segment.parent,
        "start": segment.start,
        "length": segment.length,
        "contacts": [
            [places[contact.step], contact.cached, contact.computed, contact.generated] for contact in segment.contacts
        ],
        "text": cut(segment.text),
    }


def _finite(value: Any) -> Any:
    """Round times to the microsecond, and replace NaN and infinities by null."""
    match value:
        case float():
            return round(value, 6) if abs(value) < float("inf") else None
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list():
            return [_finite(inner) for inner in value]
        case _:
            return value


def _asset(name: str) -> str:
    return resources.files(__package__ or "plait.apps.viewer").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _script(names: tuple[str, ...]) -> str:
    body = "\n".join(_asset(f"{name}.js") for name in names)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
