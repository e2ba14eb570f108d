"""Planner `threads`: a model that spawns threads of reasoning, and reads what they found.

One controller for all dialects of spawn and join: a line of reasoning is generated until it ends in a spawn list, a
thread is run for each item, what they found is appended, and the line goes on. Decides the shape of the plan. It does
not know the words (the dialect's table), nor whether a thread's claim is right (the task), nor how text is generated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, JsonValue, model_validator

from orchestrator.core.base import Brief, Planner, Reader
from orchestrator.core.errors import PlannerError, PluginError
from orchestrator.core.ir import Join, Plan, Plugin, Ref, Result, Sampling, Step, Text, Think

from ._seeds import derive
from .dialects import Dialect, Item, load

__all__ = ["Threads"]

_NAME = re.compile(r"(?:child-(\d+(?:\.\d+)*)(?:-round-(\d+))?|round-(\d+))")
_JOIN = re.compile(r"join-((?:\d+\.)*)(\d+)")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a leg of a line of reasoning stands: of the parent (`path` empty) or of a thread, before which spawn."""

    path: tuple[int, ...]
    round: int

    @classmethod
    def of(cls, name: str) -> _Place:
        """Read a place from a step's name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise PlannerError(f"the planner `threads` did not plan a step named {name!r} to expand")
        path = tuple(map(int, found[1].split("."))) if found[1] else ()
        return cls(path, int(found[2] or found[3] or 1))

    @classmethod
    def of_join(cls, name: str) -> _Place | None:
        """Read the place that a join stands after, or `None` if the name is not a join's."""
        found = _JOIN.fullmatch(name)
        return cls(tuple(map(int, found[1].split(".")[:-1])), int(found[2])) if found else None

    @property
    def spawn(self) -> str:
        """The place's spawn list, as part of names: `1`, `3.1.2`."""
        return ".".join(map(str, (*self.path, self.round)))

    @property
    def next(self) -> _Place:
        """Where the line goes on after the join."""
        return _Place(self.path, self.round + 1)

    @property
    def name(self) -> str:
        """The step's name: `round-2`, `child-3`, `child-3.1-round-2`."""
        if not self.path:
            return f"round-{self.round}"
        return f"child-{'.'.join(map(str, self.path))}" + (f"-round-{self.round}" if self.round > 1 else "")


class Threads(Planner):
    """Spawn and join over any engine that takes token ids, after ThreadWeaver (arXiv 2512.07843) and APR (2504.15466).

    Steps: `round-1` is the parent up to its first spawn list; it expands into `child-1` … `child-k`, `join-1` and
    `round-2`, which continues `round-1` with the join's text, and so on. The answer is the text of the last round, or,
    with `settle`, of `answer-i` as soon as a thread's claim is verified.
    Contexts are carried as token ids; only what is written between (prompt, headers, join blocks) is text. A thread
    that fails, is cut off or writes nonsense is read by its parent as one that found nothing. Of a thread that spawned
    threads itself the parent reads the last leg.
    """

    n_option: ClassVar[str | None] = "width"

    dialect: str | Dialect = "countdown"
    """The model's dialect by name, or a table of your own."""
    width: int = Field(default=8, ge=1, le=64)
    """Threads a round: what the prompt asks for, where it can, and the most that are run."""
    max_rounds: int | None = Field(default=None, ge=1)
    """Most rounds of threads; a spawn list beyond them is not run. Default: the dialect's."""
    max_nesting: int | None = Field(default=None, ge=0)
    """How deep threads may spawn threads. Default: the dialect's."""
    parent_tokens: int | None = Field(default=None, ge=1)
    """Most tokens between two joins of the parent. Default: the dialect's."""
    child_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a thread. Default: the dialect's."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Of the parent; 0 is greedy."""
    child_temperature: float = Field(default=0.0, ge=0.0)
    """Of the threads; 0 is greedy."""
    fork: bool = True
    """A thread continues its parent's context; otherwise it sees only its own header, where the dialect has that."""
    early: bool = True
    """Stop a round's other threads as soon as one has reached the goal, in a dialect that can tell."""
    settle: bool = True
    """When the task's verifier finds a thread's claim right, that is the answer; the parent is not asked to write it
    down again. Off: the parent always has the last word. No difference where the task has no verifier."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after which a round closes with the threads that are done."""
    parallel: bool = True
    """Off: one line of reasoning without threads, with the task's serial prompt; for comparisons run by run."""
    serial_tokens: int = Field(default=512, ge=1)
    """Most tokens of that one line."""
    stream: bool = False
    """Send the text of parent and threads while it is being written."""

    @model_validator(mode="after")
    def _dialect_known(self) -> Threads:
        table = self.table
        if not self.fork and not table.fresh:
            raise PluginError("threads of this dialect need their parent's context: leave `fork` on")
        return self

    @property
    def table(self) -> Dialect:
        """The dialect."""
        return self.dialect if isinstance(self.dialect, Dialect) else load(self.dialect)

    def start(self, brief: Brief) -> Plan:
        """Return the first leg of the parent."""
        style = "threads" if self.parallel else "serial"
        prompt = (Text(text=brief.task.render(style, self.width)),)
        chat = brief.task.chat()
        if self.parallel:
            leg = self._leg(_Place((), 1), brief, prompt, after=None, chat=chat, label="parent")
        else:
            sampling = self._sampling(brief, "serial", self.serial_tokens, self.temperature, ())
            leg = Step(name="think", op=Think(prompt=prompt, chat=chat, sampling=sampling, stream=self.stream))
        return Plan(steps=(leg,), output=leg.name)

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader that waits for the end of a leg or join."""
        joined = _Place.of_join(step.name)
        if joined is not None and isinstance(step.op, Join):
            return _JoinReader(self, joined, step, brief)
        return _LegReader(self, _Place.of(step.name), brief)

    def patch(self, place: _Place, text: str, brief: Brief) -> Plan | None:
        """Return the threads, the join and the next leg that a leg's text asks for; `None` if it asks for none."""
        table = self.table
        if not self._may_spawn(place):
            return None
        items = table.items(text, brief.task.render("threads", self.width), self.width)
        if not items:
            return None
        children: list[Step] = []
        entries: list[JsonValue] = []
        for i, item in enumerate(items, 1):
            child = None if item.header is None else self._child(_Place((*place.path, i), 1), place.name, item, brief)
            entries.append({"item": item.echo, "branch": child.name if child else None})
            if child is not None:
                children.append(child)
        if not children:
            leg = self._leg(place.next, brief, (Text(text=table.nothing(items)),), after=place.name)
            return Plan(steps=(leg,), output=leg.name)
        merge = Plugin(name="splice", options={**table.join.model_dump(mode="json"), "entries": entries})
        settle = self.settle and table.join.goal is not None and bool(table.join.separator)
        join = Step(
            name=f"join-{place.spawn}",
            op=Join(merge=merge, tolerate="any-end", early=self.early, deadline=self.deadline),
            needs=tuple(child.name for child in children),
            expands=settle,
            label=f"join of {len(children)}",
        )
        if settle:
            return Plan(steps=(*children, join), output=join.name)
        leg = self._leg(place.next, brief, (Ref(step=join.name),), after=place.name)
        return Plan(steps=(*children, join, leg), output=leg.name)

    def resume(self, place: _Place, join: Step, block: str, brief: Brief) -> Plan:
        """Return what follows a join: the first claim that is verified, or the parent's next leg."""
        assert isinstance(join.op, Join)
        table, task = self.table.join, brief.task
        entries = block.removeprefix(table.head).removesuffix(table.tail).split(table.separator)
        claim = next((entry for entry in entries if entry != table.none), None)
        answer = None if claim is None else task.extract(claim)
        if answer is not None and task.verify(answer) is True:
            merge = Plugin(name="splice", options={**join.op.merge.options, "pick": True})
            op = Join(merge=merge, tolerate="any-end")
            step = Step(name=f"answer-{place.spawn}", op=op, needs=join.needs, label="verified")
        else:
            step = self._leg(place.next, brief, (Text(text=block),), after=place.name)
        return Plan(steps=(step,), output=step.name)

    def _child(self, place: _Place, parent: str, item: Item, brief: Brief) -> Step:
        header = item.header or ""
        prompt = (Text(text=header if self.fork else header.lstrip()),)
        return self._leg(place, brief, prompt, after=parent if self.fork else None, label=item.echo)

    def _leg(
        self,
        place: _Place,
        brief: Brief,
        prompt: tuple[Text | Ref, ...],
        after: str | None,
        chat: bool = False,
        label: str = "",
    ) -> Step:
        table = self.table
        may_spawn = self._may_spawn(place)
        if place.path:
            stop = (table.fork, *table.child_stop) if may_spawn else table.child_stop
            tokens, temperature = self.child_tokens or table.child_tokens, self.child_temperature
        else:
            stop = (table.fork, *table.stop)
            tokens, temperature = self.parent_tokens or table.parent_tokens, self.temperature
        op = Think(
            prompt=prompt,
            after=after,
            chat=chat,
            sampling=self._sampling(brief, place.name, tokens, temperature, stop, after),
            stream=self.stream,
        )
        return Step(name=place.name, op=op, expands=may_spawn, label=label or f"round {place.round}")

    def _sampling(
        self,
        brief: Brief,
        name: str,
        tokens: int,
        temperature: float,
        stop: tuple[str, ...],
        after: str | None = None,
    ) -> Sampling:
        seed = derive(brief.request.seed, "threads", after or "", name) if temperature else None
        return Sampling(max_tokens=tokens, temperature=temperature, seed=seed, stop=stop, keep_stop=bool(stop))

    def _may_spawn(self, place: _Place) -> bool:
        table = self.table
        rounds = table.rounds if self.max_rounds is None else self.max_rounds
        nesting = table.nesting if self.max_nesting is None else self.max_nesting
        return place.round <= rounds and len(place.path) <= nesting


@dataclass(frozen=True, slots=True)
class _LegReader:
    """Reads a leg when it has ended: a thread may need the whole of its parent's context, so nothing is done before."""

    planner: Threads
    place: _Place
    brief: Brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return self.planner.patch(self.place, result.text, self.brief)


@dataclass(frozen=True, slots=True)
class _JoinReader:
    """Reads a join's block when it is written."""

    planner: Threads
    place: _Place
    step: Step
    brief: Brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return self.planner.resume(self.place, self.step, result.text, self.brief)
