"""Planner `threads`: a model spawns threads of reasoning and continues with their results.

One controller for all dialects of spawn and join. It generates a trajectory until a spawn list, runs a thread for each
item, appends their texts, and continues the parent. The dialect's table contains all fixed texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from plait.core.budget import Budget
from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity, Free
from plait.core.errors import PluginError
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, Plugin, Ref, Text, Tokens
from plait.core.plan import Plan, Step
from plait.core.planning import call_model
from plait.core.result import Result
from plait.core.vocabulary import Count, Early, FreeText, MaxBranches, MaxInputTokens, StopOnVerified

from ..._shared.steps import derive
from .dialects import Dialect, Item, load, names as dialect_names
from .names import LegPlace, Memo, Piece, join_texts, read_block, to_prompt
from .preflight import preflight

__all__ = ["Threads", "dialect_names"]

Parts = tuple[Text | Tokens | Ref, ...]
_SPAWNED = "threads "


class Threads(Planner):
    """Spawn and join over any engine that takes token ids, after ThreadWeaver (arXiv 2512.07843) and APR (2504.15466).

    Steps: `round-1` is the parent up to its first spawn list. It expands into `child-1` … `child-k`, `join-1` and
    `round-2`, which continues `round-1` with the join's text, and so on. The answer is the text of the last round. With
    `stop_on_verified` it is the text of `answer-i` as soon as a thread's claim is verified. Threads may spawn threads
    if the dialect nests.

    Contexts are carried as token ids, including the threads' output in their parent's context; only the prompt, the
    headers and a join's fixed texts are text. A thread that fails, is cut off or writes invalid text is closed, and its
    parent reads the result of an unsuccessful thread.

    Differs from the originals: one controller serves all dialects on an unmodified engine; token ids are never decoded
    and tokenised again; a failed thread affects only itself; every count, depth and length is limited. Defaults: the
    dialect `countdown`, 256 threads a run, and the dialect's own values (see its file).
    """

    fidelity = Fidelity(
        "variant",
        "a thread that fails or is cut off is read as far as it came",
        oracles=(
            "apr-traces",
            "threadweaver-contexts",
            "multiverse-documents",
            "tokens-multiverse",
            "tokens-npr",
            "tokens-threadweaver",
        ),
        paper="2512.07843",
    )

    answer: Annotated[CallConfig, Uses("question", "opening")] = Field(
        default=CallConfig(),
        description="A leg of the parent: its text between two joins. Unset fields have the dialect's values. Its "
        "template takes the place of the dialect's, for a model that was trained with an instruction of its own, such "
        "as the one in NPR's repository; `{opening}` is the dialect's: `Sub Call Budget: 3 {opening}` asks a "
        "model of APR for 3 threads.",
    )
    part: Annotated[CallConfig, Uses("header")] = Field(
        default=CallConfig(),
        description="A thread (a leg of it, if it spawns). Unset fields have the dialect's values. Its template has "
        "`{header}`, the dialect's words.",
    )
    dialect: FreeText | Dialect = Field(
        default="countdown", description="Output format of the model, by name, or as a table of your own."
    )
    n: Count | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Number of parallel branches: threads a round; the prompt asks for as many where it can. Default: "
        "the dialect's.",
    )
    max_branches: MaxBranches = Field(
        default=256,
        description="Maximum number of branches in all; further ones are not run. Nested threads count too, in the "
        "order in which they are spawned. A resumed run starts counting at zero.",
    )
    rounds: Count | None = Field(
        default=None,
        ge=1,
        description="Maximum number of rounds. Each reads the results of the one before. Default: the dialect's.",
    )
    depth: Count | None = Field(
        default=None, ge=0, description="Maximum depth: threads within threads. Default: the dialect's."
    )
    budget: Annotated[Budget | None, Free()] = Field(
        default=None, description="Limits on each thread of the parent, the threads that it spawns included."
    )
    max_input_tokens: MaxInputTokens = None
    fork: bool | None = Field(
        default=None,
        description="Whether a thread continues its parent's context or sees only its own header. Default: as the "
        "dialect's models were trained.",
    )
    early: Early = True
    stop_on_verified: StopOnVerified = True

    @model_validator(mode="after")
    def _fits_the_dialect(self) -> Threads:
        table = self.table
        if self.fork is False and not table.fresh:
            raise PluginError("threads of this dialect need their parent's context: leave `fork` on")
        if self.fork and not table.forked:
            raise PluginError("threads of this dialect begin afresh, without their parent's context: leave `fork` out")
        template = self.answer.template
        asks = type(table).opening is Dialect.opening and "{question}" in (template or "")
        if template is not None and "{opening}" not in template and not asks:
            raise PluginError(
                "`answer.template` needs {opening}, or {question} and a dialect whose parent begins with a question"
            )
        return self

    @property
    def table(self) -> Dialect:
        """The dialect."""
        return self.dialect if isinstance(self.dialect, Dialect) else load(self.dialect)

    def preflight(self, encode: Callable[[str], Sequence[int]], opening: str | None = None) -> tuple[str, ...]:
        """Return warnings about this dialect on a model; see `preflight.preflight`."""
        return preflight(self.table, encode, opening)

    def start(self, brief: PlanningContext) -> Plan:
        """Return the first leg of the parent."""
        table = self.table
        text = self._opening(brief)
        memo = Memo(notes=table.remember("", text))
        chat = brief.task.chat() and table.chat
        leg = self._leg(LegPlace((), 1), memo, brief, (Text(text=text),), chat=chat, label="parent")
        if not table.answer:
            return Plan(steps=(leg,), output=leg.name)
        options = {"block": table.join.model_dump(mode="json"), "pick": True, "otherwise": True}
        last = Join(merge=Plugin(name="splice", options=options))
        return Plan(steps=(leg, Step(name="answer", op=last, needs=(leg.name,))), output="answer")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a leg or a join, which reads at its end."""
        if step.role not in ("leg", "join"):
            return super().reader(step, brief)
        memo = Memo.model_validate(step.state or {})
        place = LegPlace(memo.path, memo.round)
        if step.role == "join":
            return _EndReader(lambda result: self.resume(place, step, memo, result, brief))
        return _EndReader(lambda result: self.patch(place, memo, result, brief))

    def patch(self, place: LegPlace, memo: Memo, result: Result, brief: PlanningContext) -> Plan | None:
        """Return the threads, the join and the next leg for the spawn list at a leg's end, or `None` without a list."""
        table, text = self.table, result.text
        unclosed = self._count_unclosed(memo, text) if place.path else -1
        if unclosed >= 0 and place.round <= self._rounds:  # the end of a path inside the thread, not of the thread
            memo = Memo(notes=memo.notes, open=unclosed)
            return self._continue_with(place, memo, brief, (), place.name)
        if not self._may_spawn(place, brief):
            return None
        notes = table.remember(memo.notes, text)
        if table.wrong and text.rstrip().endswith(table.wrong):
            memo = Memo(notes=notes, after=place.name, before=table.wrong)
            return self._continue_with(place, memo, brief, (table.right,), place.name, table.wrong)
        opened = bool(memo.after)
        width = min(self._width, self._count_spawnable(brief))
        items = table.items(text, self._opening(brief, own=True), width, notes, opened)
        after, before = place.name, table.open if table.replaces else ""
        if opened:
            after, before = memo.after, memo.before
        if not any(item.header is not None for item in items):
            if not text.rstrip().endswith(table.fork) or not (items or table.inline or table.replaces):
                return None
            nothing = table.nothing(items) if items or table.replaces else ""
            memo = Memo(notes=notes)
            return self._continue_with(place, memo, brief, (nothing,) if nothing else (), after, before)
        return self._spawn(place, Memo(notes=notes, after=after, before=before), items, brief)

    def resume(self, place: LegPlace, join: Step, memo: Memo, result: Result, brief: PlanningContext) -> Plan:
        """Return the step after a join: the answer with the first verified claim, or the parent's next leg."""
        assert isinstance(join.op, Join)
        table, task = self.table, brief.task
        block = read_block(result.value)
        claim = table.claim(join_texts(block)) if self._settles else None
        answer = None if claim is None else task.extract(claim)
        if answer is not None and task.verify(answer) is True:
            merge = Plugin(name="splice", options={**join.op.merge.options, "pick": True})
            op = Join(merge=merge, on_failure="any-end")
            step = Step(name=f"answer-{place.spawn}", op=op, needs=join.needs, label="verified")
            return Plan(steps=(step,), output=step.name)
        onward = Memo(notes=table.remember(memo.notes, join_texts(block)))
        return self._continue_with(place, onward, brief, block, memo.after or place.name, memo.before)

    def _spawn(self, place: LegPlace, memo: Memo, items: list[Item], brief: PlanningContext) -> Plan:
        """Return the threads of a spawn list, their join and, if the join needs no reader, the next leg."""
        table = self.table
        spawned = sum(item.header is not None for item in items)
        brief.kept[_SPAWNED] = self.max_branches - self._count_spawnable(brief) + spawned
        children: list[Step] = []
        entries: list[JsonValue] = []
        for i, item in enumerate(items, 1):
            child = None
            if item.header is not None:
                child = self._child(LegPlace((*place.path, i), 1), Memo(), place.name, item, brief)
                children.append(child)
            entries.append({"item": item.echo, "branch": child.name if child else None})
        options: dict[str, JsonValue] = {"block": table.join.model_dump(mode="json"), "places": entries}
        if self.max_input_tokens is not None and table.join.carry:
            options["most_tokens"] = self.max_input_tokens
        merge = Plugin(name="splice", options=options)
        read = self._settles or table.join.carry or table.replaces
        join = Step(
            name=f"join-{place.spawn}",
            op=Join(merge=merge, on_failure="any-end", early=self.early),
            needs=tuple(child.name for child in children),
            expands=read,
            label=f"join of {len(children)}",
            role="join" if read else "",
            state=memo.at(place) if read else None,
        )
        if read:
            return Plan(steps=(*children, join), output=join.name)
        onward = Memo(notes=memo.notes)
        leg = self._leg(place.next, onward, brief, (Ref(step=join.name),), memo.after, memo.before)
        return Plan(steps=(*children, join, leg), output=leg.name)

    def _continue_with(
        self,
        place: LegPlace,
        memo: Memo,
        brief: PlanningContext,
        pieces: tuple[Piece, ...],
        after: str,
        before: str = "",
    ) -> Plan:
        """Return the next leg of a trajectory: the context of `after` up to `before`, then `pieces`."""
        leg = self._leg(place.next, memo, brief, to_prompt(pieces), after, before)
        return Plan(steps=(leg,), output=leg.name)

    def _child(self, place: LegPlace, memo: Memo, parent: str, item: Item, brief: PlanningContext) -> Step:
        forks = self.table.forked if self.fork is None else self.fork
        header = item.header or ""
        prompt = (Text(text=self.part.text("{header}", header=header if forks else header.lstrip())),)
        leg = self._leg(place, memo, brief, prompt, parent if forks else None, label=item.label)
        if self.budget is not None and len(place.path) == 1:
            leg = leg.model_copy(update={"budget": self.budget})
        return leg

    def _leg(
        self,
        place: LegPlace,
        memo: Memo,
        brief: PlanningContext,
        prompt: Parts,
        after: str | None = None,
        before: str = "",
        chat: bool = False,
        label: str = "",
    ) -> Step:
        table = self.table
        may_spawn = self._may_spawn(place, brief)
        reads = may_spawn or bool(place.path and table.nesting)
        stop = table.child_stop if place.path else table.stop
        if may_spawn or not (place.path or table.inline):
            stop = (table.fork, *([table.wrong] if table.wrong else []), *stop)
        return call_model(
            brief,
            "threads",
            place.name,
            prompt,
            self._call_config(self.part if place.path else self.answer, place.path),
            after=after,
            before=before,
            chat=chat,
            # The seed includes the context that a leg continues, since legs of two threads may have equal names.
            seed=derive(brief.request.seed, "threads", after or "", place.name),
            stop=stop,
            keep_stop=bool(stop),
            expands=reads,
            label=label or f"round {place.round}",
            role="leg" if reads else "",
            state=memo.at(place) if reads else None,
        )

    def _call_config(self, prompt: CallConfig, path: tuple[int, ...]) -> CallConfig:
        """Return the call configuration of the parent or the threads, with the dialect's defaults for unset fields."""
        table = self.table
        return prompt.over(
            CallConfig(
                max_tokens=table.child_tokens if path else table.parent_tokens,
                temperature=table.child_temperature if path else table.temperature,
                repetition_penalty=table.repetition_penalty,
            )
        )

    def _opening(self, brief: PlanningContext, own: bool = False) -> str:
        """Return the parent's prompt; with `own` in the dialect's form, which the dialect parses later."""
        question = brief.task.render("threads", self._width)
        ours = self.table.opening(question, brief.request.text)
        template = self.answer.template or ""
        return (
            ours if own and "{opening}" in template else self.answer.text("{opening}", question=question, opening=ours)
        )

    @property
    def _width(self) -> int:
        return self.table.width if self.n is None else self.n

    @property
    def _settles(self) -> bool:
        block = self.table.join
        return self.stop_on_verified and block.goal is not None and bool(block.separator or block.claim_item)

    @property
    def _nesting(self) -> int:
        return self.table.nesting if self.depth is None else self.depth

    @property
    def _rounds(self) -> int:
        return self.table.rounds if self.rounds is None else self.rounds

    def _count_spawnable(self, brief: PlanningContext) -> int:
        """Return the number of threads that the run may still spawn. Threads of a retried leg count twice: two threads
        may have equal names, so the names do not identify them."""
        spawned = brief.kept.get(_SPAWNED, 0)
        return self.max_branches - (spawned if isinstance(spawned, int) else 0)

    def _may_spawn(self, place: LegPlace, brief: PlanningContext) -> bool:
        return place.round <= self._rounds and len(place.path) <= self._nesting and self._count_spawnable(brief) > 0

    def _count_unclosed(self, memo: Memo, text: str) -> int:
        """Return the number of open paths of a nesting thread that stopped at the end of a path, or a negative number
        if the thread ended or stopped otherwise."""
        end = next((stop for stop in self.table.child_stop if text.rstrip().endswith(stop)), None)
        if end is None or not self.table.nesting or not end.startswith("</"):
            return -1
        return memo.open + text.count(f"<{end[2:]}") - text.count(end)


@dataclass(frozen=True, slots=True)
class _EndReader:
    """Reads a leg or a join at its end, since a thread may need its parent's whole context."""

    read: Callable[[Result], Plan | None]

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan | None:
        return self.read(result)
