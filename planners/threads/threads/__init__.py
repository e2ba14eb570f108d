"""Planner `threads`: a model that spawns threads of reasoning, and goes on with what they found.

One controller for all dialects of spawn and join. A line of reasoning is generated until it ends in a spawn list; a
thread is run for each item; their texts are appended, and the line goes on. The words are in the dialect's table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, JsonValue, model_validator

from plait.core.budget import Budget
from plait.core.errors import PluginError
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.ops import Join, Plugin, Ref, Sampling, Text, Think, Tokens
from plait.core.plan import Plan, Step
from plait.core.result import Result

from ..._shared.seeds import derive
from .dialects import Dialect, Item, fill, load, names as dialect_names
from .names import Memo, Piece, Place, block_pieces, prompt_of, text_of
from .preflight import preflight

__all__ = ["Threads", "dialect_names"]

Parts = tuple[Text | Tokens | Ref, ...]


class Threads(Planner):
    """Spawn and join over any engine that takes token ids, after ThreadWeaver (arXiv 2512.07843) and APR (2504.15466).

    Steps: `round-1` is the parent up to its first spawn list. It expands into `child-1` … `child-k`, `join-1` and
    `round-2`, which continues `round-1` with the join's text, and so on. The answer is the text of the last round, or,
    with `settle`, that of `answer-i` as soon as a thread's claim is verified. Threads may spawn threads where the
    dialect nests.

    Contexts are carried as token ids, the threads' output in their parent's context included; only the prompt, the
    headers and the words of a join are text. A thread that fails, is cut off or writes nonsense is closed, and its
    parent reads it as a thread that found nothing.

    Differs from the originals: one controller for all of them, over an unmodified engine; token ids are never decoded
    and tokenised again; a bad thread harms only itself; every count, depth and length has a bound. Defaults: those of
    the dialect (see its file), the dialect `countdown`, 256 threads a run.
    """

    n_option: ClassVar[str | None] = "width"

    dialect: str | Dialect = "countdown"
    """The model's dialect by name, or a table of your own."""
    width: int | None = Field(default=None, ge=1, le=64)
    """Most threads a round; the prompt asks for as many where it can. Default: the dialect's."""
    max_threads: int = Field(default=256, ge=1)
    """Most threads of a run. A round's threads that may spawn threads share half of the rest."""
    max_rounds: int | None = Field(default=None, ge=1)
    """Most rounds of threads; a spawn list beyond them is not run. Default: the dialect's."""
    max_nesting: int | None = Field(default=None, ge=0)
    """How deep threads may spawn threads. Default: the dialect's."""
    parent_tokens: int | None = Field(default=None, ge=1)
    """Most tokens between two joins of the parent. Default: the dialect's."""
    child_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a thread (between two joins, if it spawns). Default: the dialect's."""
    thread_budget: Budget | None = None
    """Limits on each thread of the parent, the threads that it spawns included."""
    join_tokens: int | None = Field(default=None, ge=1)
    """Most tokens that the threads of a round add to their parent's context together; the longest ones lose their ends.
    For small context windows. Only in dialects whose join holds the threads' own words."""
    ask_threads: int | None = Field(default=None, ge=0)
    """Number of threads that the prompt asks the parent to keep to, in a dialect trained for that. No hard limit."""
    ask_tokens: int | None = Field(default=None, ge=1)
    """Number of tokens that the prompts ask parent and threads to keep to, in a dialect trained for that. No hard
    limit."""
    ask: str | None = None
    """Template of the parent's prompt in place of the dialect's; `{prompt}` stands for the question. For a model that
    was trained with an instruction of its own, such as the one in NPR's repository."""
    repetition_penalty: float | None = Field(default=None, gt=0.0)
    """Of parent and threads. Default: the dialect's; a server that cannot do it needs 1."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Of the parent; 0 is greedy. Default: the dialect's."""
    child_temperature: float | None = Field(default=None, ge=0.0)
    """Of the threads; 0 is greedy. Default: the dialect's."""
    fork: bool | None = None
    """Whether a thread continues its parent's context or sees only its own header. Default: as the dialect's models
    were trained."""
    early: bool = True
    """Stop a round's other threads as soon as one has reached the goal, in a dialect that can tell."""
    settle: bool = True
    """A thread's claim that the task's verifier finds right is the answer. Off: the parent always has the last word. No
    difference where the task has no verifier."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after which a round closes with the threads that are done."""
    parallel: bool = True
    """Off: one line of reasoning without threads, with the task's serial prompt; for comparisons run by run."""
    serial_tokens: int = Field(default=512, ge=1)
    """Most tokens of that one line."""
    stream: bool = False
    """Send the text of parent and threads while it is being written."""

    @model_validator(mode="after")
    def _fits_the_dialect(self) -> Threads:
        table = self.table
        if self.fork is False and not table.fresh:
            raise PluginError("threads of this dialect need their parent's context: leave `fork` on")
        if self.fork and not table.forked:
            raise PluginError("threads of this dialect begin afresh, without their parent's context: leave `fork` out")
        if self.ask_threads is not None and self.ask_tokens is not None:
            raise PluginError("`ask_threads` and `ask_tokens` exclude each other: a model was trained to be asked one")
        if self.ask is not None and ("{prompt}" not in self.ask or type(table).opening is not Dialect.opening):
            raise PluginError(
                "`ask` needs {prompt}, where the question goes, and a dialect whose parent begins with a question"
            )
        for option in ("ask_threads", "ask_tokens"):
            if getattr(self, option) is not None and getattr(table, option) is None:
                raise PluginError(f"models of this dialect were not trained to be asked: leave `{option}` out")
        return self

    @property
    def table(self) -> Dialect:
        """The dialect."""
        return self.dialect if isinstance(self.dialect, Dialect) else load(self.dialect)

    def preflight(self, encode: Callable[[str], Sequence[int]], opening: str | None = None) -> tuple[str, ...]:
        """Return warnings about this dialect on a model; see `preflight.preflight`."""
        return preflight(self.table, encode, opening)

    def start(self, brief: Brief) -> Plan:
        """Return the first leg of the parent."""
        table = self.table
        if not self.parallel:
            prompt = (Text(text=brief.task.render("serial", self._width)),)
            sampling = self._sampling(brief, "serial", self.serial_tokens, self._temperature(()), ())
            op = Think(prompt=prompt, chat=brief.task.chat(), sampling=sampling, stream=self.stream)
            return Plan(steps=(Step(name="think", op=op),), output="think")
        text = self._asked() + self._opening(brief)
        if self.ask_threads is not None:
            text = fill(table.ask_threads or "", {"n": str(self.ask_threads)}) + text
        memo = Memo(left=self.max_threads, notes=table.remember("", text))
        chat = brief.task.chat() and table.chat
        leg = self._leg(Place((), 1), memo, brief, (Text(text=text),), chat=chat, label="parent")
        if not table.answer:
            return Plan(steps=(leg,), output=leg.name)
        options = {**table.join.model_dump(mode="json"), "pick": True, "otherwise": True}
        last = Join(merge=Plugin(name="splice", options=options))
        return Plan(steps=(leg, Step(name="answer", op=last, needs=(leg.name,))), output="answer")

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader that waits for the end of a leg or join."""
        memo = Memo.of(step.state) or Memo(left=self.max_threads)
        joined = Place.of_join(step.name)
        if joined is not None and isinstance(step.op, Join):
            return _JoinReader(self, joined, step, memo, brief)
        return _LegReader(self, Place.of(step.name), memo, brief)

    def patch(self, place: Place, memo: Memo, result: Result, brief: Brief) -> Plan | None:
        """Return the threads, the join and the next leg for the spawn list that a leg ends in; `None` without one."""
        table, text = self.table, result.text
        if not self._may_spawn(place, memo):
            return None
        notes = table.remember(memo.notes, text)
        if table.wrong and text.rstrip().endswith(table.wrong):
            memo = Memo(left=memo.left, notes=notes, after=place.name, before=table.wrong)
            return self._onward(place, memo, brief, (table.right,), place.name, table.wrong)
        opened = bool(memo.after)
        width = min(self._width, memo.left)
        items = table.items(text, self._opening(brief), width, notes, opened)
        after, before = place.name, table.open if table.replaces else ""
        if opened:
            after, before = memo.after, memo.before
        if not any(item.header is not None for item in items):
            if not text.rstrip().endswith(table.fork) or not (items or table.inline or table.replaces):
                return None
            said = table.nothing(items) if items or table.replaces else ""
            memo = Memo(left=memo.left, notes=notes)
            return self._onward(place, memo, brief, (said,) if said else (), after, before)
        return self._spawn(place, Memo(left=memo.left, notes=notes, after=after, before=before), items, brief)

    def resume(self, place: Place, join: Step, memo: Memo, result: Result, brief: Brief) -> Plan:
        """Return the step after a join: the first verified claim as the answer, or the parent's next leg."""
        assert isinstance(join.op, Join)
        table, task = self.table, brief.task
        block = block_pieces(result.value)
        claim = table.claim(text_of(block)) if self._settles else None
        answer = None if claim is None else task.extract(claim)
        if answer is not None and task.verify(answer) is True:
            merge = Plugin(name="splice", options={**join.op.merge.options, "pick": True})
            op = Join(merge=merge, tolerate="any-end")
            step = Step(name=f"answer-{place.spawn}", op=op, needs=join.needs, label="verified")
            return Plan(steps=(step,), output=step.name)
        onward = Memo(left=memo.left, notes=table.remember(memo.notes, text_of(block)))
        return self._onward(place, onward, brief, block, memo.after or place.name, memo.before)

    def _spawn(self, place: Place, memo: Memo, items: list[Item], brief: Brief) -> Plan:
        """Return threads for a spawn list, their join and, where the join needs no reader, the next leg."""
        table = self.table
        count = sum(item.header is not None for item in items)
        left = memo.left - count
        share = left // (2 * count) if self._nesting > len(place.path) else 0
        memo = memo.model_copy(update={"left": left - count * share})
        children: list[Step] = []
        entries: list[JsonValue] = []
        for i, item in enumerate(items, 1):
            child = None
            if item.header is not None:
                child = self._child(Place((*place.path, i), 1), Memo(left=share), place.name, item, brief)
                children.append(child)
            entries.append({"item": item.echo, "branch": child.name if child else None})
        options: dict[str, JsonValue] = {**table.join.model_dump(mode="json"), "entries": entries}
        if self.join_tokens is not None and table.join.carry:
            options["most_tokens"] = self.join_tokens
        merge = Plugin(name="splice", options=options)
        read = self._settles or table.join.carry or table.replaces
        join = Step(
            name=f"join-{place.spawn}",
            op=Join(merge=merge, tolerate="any-end", early=self.early, deadline=self.deadline),
            needs=tuple(child.name for child in children),
            expands=read,
            label=f"join of {len(children)}",
            state=memo.model_dump(mode="json") if read else None,
        )
        if read:
            return Plan(steps=(*children, join), output=join.name)
        onward = Memo(left=memo.left, notes=memo.notes)
        leg = self._leg(place.next, onward, brief, (Ref(step=join.name),), memo.after, memo.before)
        return Plan(steps=(*children, join, leg), output=leg.name)

    def _onward(
        self,
        place: Place,
        memo: Memo,
        brief: Brief,
        said: tuple[Piece, ...],
        after: str,
        before: str = "",
    ) -> Plan:
        """Return the next leg of a line of reasoning: the context of `after` up to `before`, then `said`."""
        leg = self._leg(place.next, memo, brief, prompt_of(said), after, before)
        return Plan(steps=(leg,), output=leg.name)

    def _child(self, place: Place, memo: Memo, parent: str, item: Item, brief: Brief) -> Step:
        forks = self.table.forked if self.fork is None else self.fork
        header = item.header or ""
        prompt = (Text(text=header if forks else self._asked() + header.lstrip()),)
        leg = self._leg(place, memo, brief, prompt, parent if forks else None, label=item.label)
        if self.thread_budget is not None and len(place.path) == 1:
            leg = leg.model_copy(update={"budget": self.thread_budget})
        return leg

    def _leg(
        self,
        place: Place,
        memo: Memo,
        brief: Brief,
        prompt: Parts,
        after: str | None = None,
        before: str = "",
        chat: bool = False,
        label: str = "",
    ) -> Step:
        table = self.table
        may_spawn = self._may_spawn(place, memo)
        stop = table.child_stop if place.path else table.stop
        if may_spawn or not (place.path or table.inline):
            stop = (table.fork, *([table.wrong] if table.wrong else []), *stop)
        tokens = (
            (self.child_tokens or table.child_tokens) if place.path else (self.parent_tokens or table.parent_tokens)
        )
        op = Think(
            prompt=prompt,
            after=after,
            before=before,
            chat=chat,
            sampling=self._sampling(brief, place.name, tokens, self._temperature(place.path), stop, after),
            stream=self.stream,
        )
        told = memo.model_dump(mode="json", exclude_defaults=True) if may_spawn else None
        return Step(name=place.name, op=op, expands=may_spawn, label=label or f"round {place.round}", state=told)

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
        penalty = self.table.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty
        return Sampling(
            max_tokens=tokens,
            temperature=temperature,
            repetition_penalty=penalty,
            seed=seed,
            stop=stop,
            keep_stop=bool(stop),
        )

    def _opening(self, brief: Brief) -> str:
        prompt = brief.task.render("threads", self._width)
        return (
            self.table.opening(prompt, brief.request.text) if self.ask is None else fill(self.ask, {"prompt": prompt})
        )

    def _asked(self) -> str:
        """Return the words that ask parent and threads to keep to a number of tokens."""
        if self.ask_tokens is None:
            return ""
        return fill(self.table.ask_tokens or "", {"n": str(self.ask_tokens)})

    def _temperature(self, path: tuple[int, ...]) -> float:
        table = self.table
        if path:
            return table.child_temperature if self.child_temperature is None else self.child_temperature
        return table.temperature if self.temperature is None else self.temperature

    @property
    def _width(self) -> int:
        return self.table.width if self.width is None else self.width

    @property
    def _settles(self) -> bool:
        block = self.table.join
        return self.settle and block.goal is not None and bool(block.separator or block.claim_item)

    @property
    def _nesting(self) -> int:
        return self.table.nesting if self.max_nesting is None else self.max_nesting

    def _may_spawn(self, place: Place, memo: Memo) -> bool:
        rounds = self.table.rounds if self.max_rounds is None else self.max_rounds
        return place.round <= rounds and len(place.path) <= self._nesting and memo.left > 0


@dataclass(frozen=True, slots=True)
class _LegReader:
    """Reads a leg at its end: a thread may need its parent's whole context."""

    planner: Threads
    place: Place
    memo: Memo
    brief: Brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return self.planner.patch(self.place, self.memo, result, self.brief)


@dataclass(frozen=True, slots=True)
class _JoinReader:
    """Reads a join's text."""

    planner: Threads
    place: Place
    step: Step
    memo: Memo
    brief: Brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return self.planner.resume(self.place, self.step, self.memo, result, self.brief)
