"""Run a few probes, then the strategy that the rules (`rules.py`) choose from their answers."""

from __future__ import annotations

from plait.core.errors import TaskError
from plait.core.interfaces import PlanningContext, Reader
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task

from ..._shared.delegation import mark_owner
from ..._shared.drafts import Draft, find_verified, rank_drafts, read_drafts
from ..._shared.steps import Asker, OnResult, through
from ...split.decompose import Decompose, find_signals
from ...threads.threads import Threads, dialect_names
from ...votes.refine import Refine
from .options import ALL, PIECES, REFINE, THREADS, RouteOptions
from .rules import BudgetFacts, Signs, decide


def check_options(options: RouteOptions) -> None:
    """Reject invalid options or dialects of the planners that the rules may choose, before any probe runs."""
    for spec in options.planners:
        match spec.name:
            case "decompose":
                Decompose.model_validate(spec.options)
            case "threads":
                Threads.model_validate(spec.options)
            case _:
                _build_refine(options, (1,), spec)


class Probes:
    """Plans the probes of one request, and the strategy that their answers select."""

    def __init__(self, options: RouteOptions, brief: PlanningContext) -> None:
        self._options, self._asker, self._brief = options, Asker("route", brief), brief
        self._into = {spec.name: spec for spec in options.planners or ALL}

    def start(self) -> Plan:
        """Return the extraction plan for a prompt with signs of several pieces, else the plan of the probes."""
        if PIECES in self._into and self._brief.task.chat() and find_signals(self._brief.request.text):
            extract = self._build_decompose().extraction(self._asker, expands=True)
            end = through("answer", "extract", expands=True, allow_failure=True, role="answer")
            return Plan(steps=(extract, end), output="answer")
        return self._probe()

    def reader(self, step: Step) -> Reader | None:
        """Return the reader of the extraction or of the probes, or `None` for other steps."""
        match step.role:
            case "extract":
                return OnResult(self._read_extraction)
            case "answer":  # the extraction or one of its pieces failed
                return OnResult(lambda result: None if result.value is not None else self._probe())
            case "probes":
                return OnResult(self.decide)
            case _:
                return None

    def _read_extraction(self, result: Result) -> Plan:
        pieces = self._build_decompose().split(self._asker, result)
        if isinstance(pieces, str):
            return self._probe()
        items = sum(step.role == "item" for step in pieces.steps)
        return _with_note(
            pieces, f"decomposition: {items} pieces that do not depend on one another, a critical path of 1"
        )

    def _probe(self) -> Plan:
        names = tuple(f"probe-{i}" for i in range(1, self._options.n + 1))
        merge = Plugin(name="synthesis-drafts", options={"stop_on_verified": True})
        op = Join(merge=merge, on_failure="best-effort", early=True)
        join = Step(name="probes", op=op, needs=names, expands=True, label=f"{len(names)} probes", role="probes")
        return Plan(steps=(*map(self._sample, names), join), output="probes")

    def decide(self, result: Result) -> Plan:
        """Return the plan of the first rule that the probes meet."""
        options, asker = self._options, self._asker
        drafts = read_drafts(result)
        budget = self._brief.request.budget
        spawning, unable = self._plan_threads()
        refine = _build_refine(options, (1,), self._into.get(REFINE))
        limits = BudgetFacts(
            tokens=None if budget.tokens is None else max(0, budget.tokens - sum(draft.tokens for draft in drafts)),
            seconds=budget.seconds,
            call_tokens=options.probe.max_tokens or 1024,
            most=options.max_branches,
            words=self._brief.task.chat() and REFINE in self._into,
            refinements=len(refine.rounds) - 1,
            threads=spawning is not None,
            confidence=options.confidence,
        )
        choice, count, reason = decide(Signs.of(drafts, type(self._brief.task).verify is not Task.verify), limits)
        match choice:
            case "probes":
                right = find_verified(drafts) or rank_drafts(drafts)[0]
                return Plan(steps=(through("chosen", right.name, f"probes: {reason}{unable}"),), output="chosen")
            case "vote" | "best-of":
                plan = self._plan_more_samples(drafts, count, "majority" if choice == "vote" else "best-of")
            case "threads":
                assert spawning is not None
                plan = spawning
            case "serial":
                plan = self._plan_deep()
            case "refine":
                once = _build_refine(options, (len(drafts), 1), self._into.get(REFINE), whole=True)
                plan = once.next_round(asker, 1, drafts)
            case "sequential":
                plan = refine.next_round(asker, len(refine.rounds) - count, rank_drafts(drafts)[:1])
                plan = mark_owner(plan, Plugin(name=REFINE, options=refine.model_dump(mode="json", exclude_unset=True)))
        return _with_note(plan, f"{choice}: {reason}{unable}")

    def _plan_threads(self) -> tuple[Plan | None, str]:
        """Return the plan of the planner `threads`, or the reason why the dialect cannot express this request."""
        threads = _build_threads(self._into.get(THREADS), self._brief)
        if threads is None:
            return None, ""
        try:
            plan = Threads.model_validate(threads.options).start(self._brief)
        except TaskError as error:
            return None, f"; threads were not possible ({error})"
        return mark_owner(plan, threads), ""

    def _plan_more_samples(self, drafts: list[Draft], count: int, merge: str) -> Plan:
        """Return a plan of more samples and the join of all samples."""
        names = tuple(f"sample-{i}" for i in range(1, count + 1))
        needs = (*(draft.name for draft in drafts), *names)
        op = Join(merge=Plugin(name=merge), on_failure="best-effort", early=True)
        join = Step(name="vote", op=op, needs=needs, label=f"{merge} of {len(needs)}")
        return Plan(steps=(*map(self._sample, names), join), output="vote")

    def _sample(self, name: str) -> Step:
        prompt = self._options.probe
        return self._asker.step(name, prompt.parts("{question}", question=self._asker.question), prompt, label=name)

    def _plan_deep(self) -> Plan:
        prompt = self._options.answer
        pieces = prompt.parts("{question}", question=self._asker.question)
        return Plan(steps=(self._asker.step("deep", pieces, prompt, label="one deep attempt"),), output="deep")

    def _build_decompose(self) -> Decompose:
        return Decompose.model_validate(self._into[PIECES].options)


def _build_refine(options: RouteOptions, rounds: tuple[int, ...], spec: Plugin | None, whole: bool = False) -> Refine:
    """Return the planner `refine` for the probes' drafts. It has the rounds of `spec` if `spec` sets them, unless one
    call reads all drafts (`whole`)."""
    chosen = dict(spec.options) if spec is not None else {}
    given: dict[str, object] = {
        # The drafts stay unchanged, so that one call suffices, without a summary.
        "distiller": "shared-top-k",
        "max_prompt_items": options.max_branches,
        "summary": {"max_tokens": options.answer.max_tokens or 4096},
        "draft": {"max_tokens": options.probe.max_tokens, "temperature": options.probe.temperature},
        **chosen,
    }
    return Refine.model_validate({**given, "rounds": rounds} if whole or "rounds" not in chosen else given)


def _build_threads(spec: Plugin | None, brief: PlanningContext) -> Plugin | None:
    """Return the planner `threads` with the dialect of `spec`, or with the dialect of the task's name if the task has
    prompts for threads, which are for models trained to spawn them. Return `None` otherwise."""
    if spec is None or "dialect" in spec.options:
        return spec
    task, name = brief.task, brief.request.task.name
    if task.chat() or name not in dialect_names() or task.render("threads") == task.render("serial"):
        return None
    return Plugin(name=THREADS, options={**spec.options, "dialect": name})


def _with_note(plan: Plan, note: str) -> Plan:
    """Return a plan whose answer reports the reason for its choice."""
    assert plan.output is not None
    return Plan(steps=(*plan.steps, through("chosen", plan.output, note)), output="chosen")
