"""What can be asked of a process that runs plait, and done to its runs: the same for the socket and the server."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.errors import UsageError
from ...core.interfaces import offer
from ...core.messages import did_you_mean
from ...core.record import StepRecord
from ...runtime.client.answer import News
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.handle import Handle

__all__ = ["Control", "limit", "news_row", "step_row"]

_LEVELS = ("debug", "info", "warning", "error")
_HEAD = 200


class Control:
    """The verbs, over one orchestrator. Each raises `UsageError` for what is not there or makes no sense."""

    def __init__(self, orchestrator: AsyncOrchestrator, sees: Callable[[str], bool] = lambda run: True) -> None:
        self._orchestrator, self._sees = orchestrator, sees
        self._began = time.time()

    def find(self, run: str) -> Handle:
        """Return the run with this id, or the only one whose id begins so."""
        found = [each for name, each in self._orchestrator.runs.items() if name.startswith(run) and self._sees(name)]
        exact = [each for each in found if each.run == run]
        if len(exact or found) == 1:
            return (exact or found)[0]
        if found:
            raise UsageError(f"{run!r} begins the ids of {len(found)} runs: write more of it")
        raise UsageError(f"there is no run {run!r} under way: `plait ctl list` shows those that are")

    def process(self) -> dict[str, Any]:
        """Return what the process is."""
        config = self._orchestrator.config
        names = [each.name for each in self._orchestrator.workers]
        workers = [{"name": name, "slots": self._orchestrator.resize(name)} for name in names]
        words = [each if len(each) < _HEAD else each[:_HEAD] + "…" for each in sys.argv[1:6]]
        return {"pid": os.getpid(), "began": self._began, "words": words, "worker": config.worker, "workers": workers}

    def list(self) -> list[dict[str, Any]]:
        """Return a row for each run under way."""
        return [self.row(each) for name, each in self._orchestrator.runs.items() if self._sees(name)]

    def row(self, handle: Handle) -> dict[str, Any]:
        """Return what a list says of a run."""
        steps, request = handle.steps, handle.request
        states = [step.state for step in steps]
        return {
            "run": handle.run,
            "status": "paused" if handle.paused else "running",
            "text": request.text[:_HEAD],
            "planner": request.planner.name,
            "seconds": round(handle.now() - handle.began, 3),
            "steps": len(steps),
            "done": states.count("done"),
            "running": states.count("running"),
            "tokens": handle.tokens,
            "budget": handle.budget.model_dump(exclude_none=True),
            "questions": [each.model_dump(mode="json") for each in handle.questions],
        }

    def show(self, run: str) -> dict[str, Any]:
        """Return a run with all of its steps."""
        handle = self.find(run)
        return {**self.row(handle), "steps": [step_row(step) for step in handle.steps]}

    async def events(self, run: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield where a run stands, and then its news to the end."""
        async for news in self.find(run).follow():
            yield news_row(news)

    def cancel(self, run: str, reason: str = "") -> None:
        """Give a run up."""
        self.find(run).cancel(reason or "cancelled from outside")

    def prune(self, run: str, step: str, reason: str = "") -> None:
        """Give one step up, by its name or id."""
        handle = self.find(run)
        names = {each.path: each.step for each in handle.steps} | {each.step: each.step for each in handle.steps}
        if step not in names:
            raise UsageError(f"run {handle.run} has no step {step!r}{did_you_mean(step, names)}")
        handle.prune(names[step], reason or "pruned from outside")

    def pause(self, run: str) -> None:
        """Start nothing more of a run."""
        self.find(run).pause()

    def resume(self, run: str) -> None:
        """Start steps again."""
        self.find(run).resume()

    def answer(self, run: str, question: str, value: JsonValue) -> None:
        """Answer a question of a tool's; with no id, the only one that is open."""
        handle = self.find(run)
        there = [each.id for each in handle.questions]
        if not question and len(there) == 1:
            question = there[0]
        if question not in there:
            raise UsageError(f"run {handle.run} has no open question {question!r}; open are: {', '.join(there)}")
        handle.answer(question, value)

    def set(self, name: str, value: str, run: str = "", worker: str = "") -> None:
        """Change a limit of a run (`width`, `tokens`, …), the `slots` of a worker, or the `log_level` of the process.
        A run or a worker may be left out where there is only one."""
        if name == "log_level":
            if value.lower() not in _LEVELS:
                raise UsageError(f"log_level={value!r} is none of {', '.join(_LEVELS)}")
            logging.getLogger("plait").setLevel(value.upper())
        elif name == "slots":
            there = [each.name for each in self._orchestrator.workers if "think" in offer(each).serves]
            if not worker and len(there) != 1:
                raise UsageError(f"the slots of which worker? There are: {', '.join(there) or 'none'}")
            if not value.isdecimal():
                raise UsageError(f"slots={value!r} is no number of jobs at the same time")
            self._orchestrator.resize(worker or there[0], int(value))
        else:
            self.find(run).limit(**{name: limit(name, value)})

    async def do(self, asked: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Do what a message `{"do": verb, …}` asks for, and yield the rows of its answer."""
        fields = {key: value for key, value in asked.items() if key != "do"}
        verb, texts = asked.get("do"), [value for key, value in fields.items() if key != "value"]
        if verb not in _VERBS or not set(fields) <= _VERBS[verb] or not all(isinstance(each, str) for each in texts):
            raise UsageError(f"{verb!r} is no verb with such arguments: there are {', '.join(_VERBS)}")
        match verb:
            case "process":
                yield self.process()
            case "list":
                for row in self.list():
                    yield row
            case "show":
                yield self.show(fields.get("run", ""))
            case "events":
                async for row in self.events(fields.get("run", "")):
                    yield row
            case _:
                try:
                    getattr(self, str(verb))(**fields)
                except TypeError:
                    raise UsageError(f"{verb} needs {', '.join(sorted(_VERBS[verb]))}") from None
                yield {"done": verb}


_VERBS: dict[Any, set[str]] = {
    "process": set(),
    "list": set(),
    "show": {"run"},
    "events": {"run"},
    "cancel": {"run", "reason"},
    "prune": {"run", "step", "reason"},
    "pause": {"run"},
    "resume": {"run"},
    "answer": {"run", "question", "value"},
    "set": {"name", "value", "run", "worker"},
}


def limit(name: str, value: str) -> float | None:
    """Return the limit of a run's budget that a word means, `None` for `none`. Raises `UsageError`, `FieldError`."""
    known = [each for each in Budget.model_fields if each != "strict"]
    if name not in known:
        raise UsageError(
            f"{name!r} cannot be set while a run runs{did_you_mean(name, known)}: {', '.join(known)} of its budget "
            "can, `slots` of a worker, and `log_level` of the process; what a planner was given it keeps"
        )
    return None if value == "none" else getattr(Budget.of(f"{name}={value}"), name)


def step_row(step: StepRecord) -> dict[str, Any]:
    """Return what is told of a step."""
    return {
        "step": step.step,
        "name": step.path,
        "op": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "tries": step.tries,
        "reason": step.reason,
        "needs": list(step.needs),
        "owner": step.owner,
    }


def news_row(news: News) -> dict[str, Any]:
    """Return a piece of news as JSON."""
    match news.kind:
        case "step":
            return {"kind": "step", "at": round(news.at, 6), **step_row(news.record)}
        case "text":
            return {
                "kind": "text",
                "at": round(news.at, 6),
                "step": news.step,
                "text": news.text,
                "tokens": news.tokens,
            }
        case "ask":
            return {"kind": "ask", "at": round(news.at, 6), "question": news.question.model_dump(mode="json")}
        case _:
            return {"kind": "answer", "at": round(news.at, 6), **news.answer.summary()}
