"""Planner `route`: run a few probes of a request, and choose the strategy from their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Access, Fidelity
from plait.core.errors import PluginError, TaskError
from plait.core.interfaces import MOST_STEPS, Planner, PlanningContext, Reader
from plait.core.lengths import beta_mean, branches_needed, majority_probability, votes_needed
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task
from plait.core.vocabulary import Confidence, MaxBranches, N, OnePlugin
from plait.planners._shared.drafts import Draft, find_verified, rank_drafts, read_drafts
from plait.planners._shared.steps import Asker, OnResult, through
from plait.planners.split.decompose import Decompose, find_signals
from plait.planners.threads.threads import Threads, dialect_names
from plait.planners.votes.refine import Refine

from ._delegation import delegated_reader, mark_owner

__all__ = ["Route"]


PIECES, REFINE, THREADS = "decompose", "refine", "threads"
"""The planners that the probes' rules may choose."""
ALL = tuple(Plugin(name=name) for name in (PIECES, REFINE, THREADS))


class Route(Planner):
    """Chooses a strategy for a request, and reports the choice and its reason in `why`.

    `probe-1` … `probe-n` try the request. The first rule whose condition holds decides:

    | condition | what runs | the reason in `why` |
    |---|---|---|
    | the prompt splits into independent pieces | the pieces, side by side; no probes | decomposition |
    | a probe is verified | nothing more | probes |
    | too few tokens for another call | nothing more | probes |
    | no verifier, and the first answer leads surely (`confidence`) | nothing more | probes |
    | the model can spawn threads, and 4,096 tokens are left | the planner `threads` | threads |
    | the task has a verifier | samples, until one is right or one more gains less than a hundredth | best-of |
    | time for one more call only, or probes in prose | one call that reads all probes | refine |
    | no probe has an answer | one deep attempt | serial |
    | all answers differ | one deep attempt; a strong model refines its best probe | serial, sequential |
    | few tokens, and a strong model | it refines its best probe | sequential |
    | otherwise | samples, until the first answer leads surely | vote |

    Adaptive-Consistency (arXiv 2305.11860) decides when an answer leads surely; TTSPM (arXiv 2505.20522) sets the
    number of samples with a verifier. Differs from published methods: findings on serial against parallel reasoning
    contradict one another, so the order of the rules is our choice.

    Defaults: 4 probes (the smallest number that can agree surely), temperature 0.8, at most 16 samples.
    """

    fidelity = Fidelity("idea", "the order of the rules is ours")

    answer_calls: ClassVar[tuple[str, ...]] = ("probe", "answer")

    probe: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8),
        description="A probe, or one of the samples that follow. At temperature 0 they are all the same.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4096, temperature=0.0),
        description="One deep attempt, where probes speak for it. Its `max_tokens` are also those of the notes that "
        "`refine` reads.",
    )
    n: N = Field(default=4, ge=2, le=16)
    max_branches: MaxBranches = Field(default=16, ge=2, le=MOST_STEPS)
    confidence: Confidence = Field(default=0.95, gt=0.5)
    planners: Annotated[tuple[OnePlugin, ...], Access("planner")] = Field(
        default=(),
        description="Planners that probes may lead to, of `decompose`, `refine` and `threads`, with their options: "
        "`threads:dialect=NAME` where the model can spawn threads in a dialect that is not that of the task's name, "
        "`refine:rounds=4` where it gains from reading its own attempts, as strong reasoning models with long contexts "
        "do. What is left out is not chosen. Empty: all three.",
    )

    @model_validator(mode="after")
    def _leads_to_valid_planners(self) -> Route:
        for spec in self.planners:
            match spec.name:
                case "decompose":
                    Decompose.model_validate(spec.options)
                case "threads":
                    Threads.model_validate(spec.options)
                case "refine":
                    _build_refine(self, (1,), spec)
                case _:
                    raise PluginError(f"probes lead to decompose, refine and threads, not to {spec.name}")
        return self

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan of the probes, or the extraction plan for a prompt with several pieces."""
        return Probes(self, brief).start()

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of the probes, or of a step of the chosen strategy."""
        return delegated_reader(step, brief) or Probes(self, brief).reader(step) or super().reader(step, brief)


# The decision list of `route`: it chooses a strategy from the answers of a few probes.
#
# Sources: Adaptive-Consistency (arXiv 2305.11860) for agreement; the saturation model of test-time scaling (arXiv
# 2505.20522) for the number of samples with a verifier. The literature on serial against parallel reasoning contradicts
# itself, so the order of the rules is our choice.


RATE = 20.0
"""Assumed tokens a second of one trajectory: a time limit is short if three calls do not fit."""
THREADS_FROM = 4096
"""Minimum number of remaining tokens for threads: below about one context they cost more than they gain."""
GAIN = 0.01
"""With a verifier: sampling ends when one more sample would gain less than this."""

Choice = Literal["probes", "vote", "best-of", "threads", "serial", "refine", "sequential"]


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """The remaining budget, and facts about the model."""

    tokens: int | None = None
    """Tokens that may still be generated; `None`: no limit."""
    seconds: float | None = None
    """Seconds of the whole run; `None`: no limit."""
    call_tokens: int = 1024
    """Token limit of one more call."""
    most: int = 16
    """Maximum number of samples, probes included."""
    words: bool = True
    """Whether the model can refine: it follows general instructions, not only the prompts of its training."""
    refinements: int = 0
    """Number of rounds in which the model refines one attempt; 0 if it gains nothing from reading its own attempts."""
    threads: bool = False
    """Whether the model can spawn threads."""
    confidence: float = 0.95
    """Probability from which the first answer's lead counts as sure."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Facts about the probes' answers."""

    probes: int
    answers: int
    """Number of probes with a short answer that can be counted."""
    first: int
    """Votes for the most frequent answer."""
    second: int
    right: bool
    """Whether an answer was verified."""
    judged: bool
    """Whether the task has a verifier that can judge the answers."""

    @classmethod
    def of(cls, drafts: Sequence[Draft], verifier: bool = False) -> Signs:
        """Count the answers of probes. `verifier`: the task has a verifier, even if there is no answer to judge."""
        votes: dict[str, int] = {}
        for draft in drafts:
            if draft.key is not None and draft.claim is not None:
                votes[draft.key] = votes.get(draft.key, 0) + 1
        counts = [*sorted(votes.values(), reverse=True), 0, 0]
        judged = any(draft.verified is not None for draft in drafts) or (verifier and not votes)
        right = any(draft.verified is True for draft in drafts)
        return cls(len(drafts), sum(votes.values()), counts[0], counts[1], right, judged)


Way = tuple[Choice, int, str]
"""A next step, its number of samples or rounds, and the reason."""


def decide(signs: Signs, limits: BudgetFacts) -> Way:
    """Return the next step of the first rule that holds."""
    return next(ways(signs, limits))


def ways(signs: Signs, limits: BudgetFacts) -> Iterator[Way]:
    """Yield the next steps of the rules that hold, in the order of the rules."""
    counts = f"{signs.first} of {signs.probes} probes agree"
    if signs.right:
        yield "probes", 0, "a probe is verified"
    if limits.tokens is not None and limits.tokens < min(64, limits.call_tokens):
        yield "probes", 0, f"{limits.tokens} tokens are left, too few for another call"
        return
    sure = majority_probability(signs.first, signs.second)
    if signs.answers and sure >= limits.confidence and not signs.judged:
        yield "probes", 0, f"{counts}, the first answer leads with probability {sure:.3f}"
    if limits.threads and (limits.tokens is None or limits.tokens >= THREADS_FROM):
        yield "threads", 0, "the model can spawn threads, and there are tokens for them"
    affordable = limits.most - signs.probes
    if limits.tokens is not None:
        affordable = min(affordable, limits.tokens // limits.call_tokens)
    if signs.judged:
        p = beta_mean(0, signs.probes)
        wanted = branches_needed(p, GAIN) - signs.probes
        more = max(1, min(wanted, affordable))
        reason = f"there is a verifier, and {signs.probes} wrong probes leave a success rate of about {p:.2f}"
        yield "best-of", more, f"{reason}: {more} more samples" + _limit_note(more, wanted)
    if _is_short(limits) and limits.words:
        yield "refine", 1, f"the time allows one more call: it reads all probes ({counts})"
    strong = limits.refinements > 0 and limits.words
    if signs.answers == 0 and limits.words:
        yield "refine", 1, "the probes are prose, which no vote can count: one call reads them all"
    if signs.answers == 0:
        yield "serial", 1, "no probe came to an answer: one deep attempt"
        return
    if signs.first == 1 and signs.answers > 1:
        if strong:
            yield "sequential", _rounds(limits), f"all {signs.answers} answers differ, and the model is strong"
        yield "serial", 1, f"all {signs.answers} answers differ: one deep attempt, not more of the same"
    if strong and limits.tokens is not None and affordable < limits.most - signs.probes:
        yield "sequential", _rounds(limits), "few tokens are left, and the model is strong"
    # A vote needs a clear lead. The number of samples until one is right does not predict a lead.
    wanted = votes_needed(signs.first, signs.second, limits.confidence, limits.most) - signs.first - signs.second
    more = max(0, min(wanted, affordable))
    if more == 0:
        yield "vote", 0, f"{counts}, not surely enough ({sure:.2f})" + _limit_note(more, wanted)
    else:
        yield "vote", more, f"{counts}, not surely enough ({sure:.2f}): {more} more samples" + _limit_note(more, wanted)
    yield "serial", 1, "one deep attempt"


def _is_short(limits: BudgetFacts) -> bool:
    """Return whether the time suffices for only one more call."""
    return limits.seconds is not None and limits.seconds * RATE < 3 * limits.call_tokens


def _rounds(limits: BudgetFacts) -> int:
    left = limits.refinements if limits.tokens is None else limits.tokens // limits.call_tokens
    return max(1, min(limits.refinements, left))


def _limit_note(more: int, wanted: int) -> str:
    return f" (of {wanted}, which the limits do not allow)" if more < wanted else ""


class Probes:
    """Plans the probes of one request, and the strategy that their answers select."""

    def __init__(self, options: Route, brief: PlanningContext) -> None:
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


def _build_refine(options: Route, rounds: tuple[int, ...], spec: Plugin | None, whole: bool = False) -> Refine:
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
