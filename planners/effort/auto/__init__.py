"""Planner `auto`: a few probes first, then the way of solving that their answers speak for (`rules.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, TypeAdapter, model_validator

from plait.core.errors import PluginError, TaskError
from plait.core.interfaces import MOST_STEPS, Brief, Planner, Reader
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.task import Task

from ..._shared.drafts import Draft, drafts_of, ranked, verified
from ..._shared.seeds import derive
from ..._shared.steps import Asker, OnResult, through
from ...split.decompose import Decompose, signals
from ...threads.threads import Threads, dialect_names
from ...votes.refine import Refine
from ..by_complexity import ByComplexity, routed_reader
from .rules import BudgetFacts, Signs, counterfactual, decide

__all__ = ["Auto"]

_routes = TypeAdapter(dict[str, Plugin])


class Auto(Planner):
    """Serial, vote, threads, decomposition or refinement, chosen by the request and a few probes.

    `probe-1` … `probe-n` try the request. The first rule whose condition holds decides:

    | condition | what runs | the reason in `why` |
    |---|---|---|
    | `routes` has this task | the tiers that its recorded runs speak for; no probes | by-complexity |
    | the prompt splits into independent pieces | the pieces, side by side; no probes | decomposition |
    | a probe is verified | nothing more | probes |
    | too few tokens for another call | nothing more | probes |
    | no verifier, and the first answer leads surely (`agreement`) | nothing more | probes |
    | the model can spawn (`threads`), with `threads_from` tokens left | the planner `threads` | threads |
    | the task has a verifier | samples, until one is right or one more gains less than `epsilon` | best-of |
    | time for one more call only, or probes in prose | one call that reads all probes | refine |
    | no probe has an answer | one deep attempt | serial |
    | all answers differ | one deep attempt; a strong model refines its best probe | serial, sequential |
    | few tokens, and a strong model | it refines its best probe | sequential |
    | otherwise | samples, until the first answer leads surely | vote |

    Adaptive-Consistency (arXiv 2305.11860) says when an answer leads surely, TTSPM (arXiv 2505.20522) how many samples
    a verifier needs. Differs from all that is published: findings on serial against parallel reasoning contradict one
    another, so the order of the rules is our reading, and every threshold is an option. Defaults: 4 probes (the fewest
    that can agree surely), temperature 0.8, 16 samples at most.

    Fidelity: idea; no oracle.
    """

    n: int = Field(default=4, ge=2, le=16)
    """Samples before the decision."""
    most: int = Field(default=16, ge=2, le=MOST_STEPS)
    """Most samples of a vote or best-of-n, probes included."""
    tokens: int = Field(default=1024, ge=1)
    """Most tokens of a probe, sample or refinement."""
    deep_tokens: int = Field(default=4096, ge=1)
    """Most tokens of one deep attempt."""
    temperature: float = Field(default=0.8, ge=0.0)
    """Of probes and samples; 0 is greedy and makes them all the same."""
    agreement: float = Field(default=0.95, gt=0.5, le=1.0)
    """Probability at which the first answer leads surely."""
    epsilon: float = Field(default=0.01, gt=0.0, lt=1.0)
    """With a verifier: gain of one more sample below which there are enough."""
    strong: bool = False
    """The model gains from reading its own attempts: strong reasoning models with long contexts do, small ones do not.
    It then refines an attempt where another model would start anew."""
    threads: str | None = "auto"
    """Dialect in which the model can spawn threads. `auto`: that of the task's name, if the task has prompts for
    threads, which are for models that were trained to spawn them. `null`: it cannot."""
    threads_from: int = Field(default=4096, ge=0)
    """Tokens that must be left for threads: below about one context's worth they cost more than they bring."""
    rate: float = Field(default=20.0, gt=0)
    """Tokens a second of one line of generation. A time limit is short if it has no room for three calls."""
    split: Literal["auto", "off"] = "auto"
    """`auto`: prompts with signs of several pieces go to the planner `decompose` first."""
    routes: str | None = None
    """File with what recorded runs say, by task (`plait learn route --out FILE`). Requests of a task that it has go to
    the planner `by-complexity` with these numbers; others as if there were no file."""
    options: dict[str, dict[str, JsonValue]] = {}
    """Options of the planners `decompose`, `refine` and `threads`, by name, for when they are chosen."""
    counterfactual: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of the requests whose `why` and labels also name the way of the next rule that holds, for calibrating the
    thresholds; that way is not run. The requests are drawn by seed and text, so a replay names the same."""

    @model_validator(mode="after")
    def _ways_are_there(self) -> Auto:
        """Refuse a dialect or option that does not exist before the probes are paid for."""
        unknown = sorted(self.options.keys() - {"decompose", "refine", "threads"})
        if unknown:
            raise PluginError(f"`options` are for decompose, refine and threads, not for {', '.join(unknown)}")
        self._decompose()
        self._refine((1,))
        if self.threads not in (None, "auto"):
            self._threads(self.threads)
        elif "threads" in self.options and self.threads is None:
            raise PluginError("`options` for threads need the dialect that the model can spawn in: give `threads` too")
        return self

    def start(self, brief: Brief) -> Plan:
        """Return the extraction for a prompt with signs of several pieces, else the probes."""
        asker = Asker("auto", brief)
        if (route := self._route(brief)) is not None:
            return route.start(brief)
        if self.split == "auto" and brief.task.chat() and signals(brief.request.text):
            extract = self._decompose().extraction(asker, expands=True)
            end = through("answer", "extract", expands=True, tolerate=True)
            return Plan(steps=(extract, end), output="answer")
        return self._probe(asker)

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a reader of the extraction, of the probes, or of what was chosen."""
        if (routed := routed_reader(step, brief)) is not None:
            return routed
        asker = Asker("auto", brief)
        match step.name:
            case "extract":
                return OnResult(lambda result: self._extracted(asker, result))
            case "answer":  # the extraction or one of its pieces failed
                return OnResult(lambda result: None if result.value is not None else self._probe(asker))
            case "probes":
                return OnResult(lambda result: self._decided(asker, result))
            case name if name.startswith("round-") and isinstance(step.op, Join):
                return self._refine((1,) * 4).reader(step, brief)
            case _ if (dialect := self._dialect(brief)) is not None:
                return self._threads(dialect).reader(step, brief)
            case _:
                return super().reader(step, brief)

    def _route(self, brief: Brief) -> ByComplexity | None:
        """Return the planner that recorded runs of the request's task speak for. Raises `PluginError` for a file that
        cannot be read."""
        if self.routes is None:
            return None
        try:
            routes = _routes.validate_json(Path(self.routes).read_bytes())
            found = routes.get(brief.request.task.name)
            return None if found is None else ByComplexity.model_validate(found.options)
        except (OSError, ValueError) as error:
            raise PluginError(
                f"{self.routes} has no routes ({_first_line(error)}): write it with `plait learn route --out FILE`"
            ) from None

    def _extracted(self, asker: Asker, result: Result) -> Plan:
        found = self._decompose().split(asker, result)
        if isinstance(found, str):
            return self._probe(asker)
        items = sum(step.name.startswith("item-") for step in found.steps)
        return _said(found, f"decomposition: {items} pieces that do not depend on one another, a critical path of 1")

    def _probe(self, asker: Asker) -> Plan:
        names = tuple(f"probe-{i}" for i in range(1, self.n + 1))
        steps = [self._sample(asker, name) for name in names]
        merge = Plugin(name="synthesis-drafts", options={"settle": True})
        op = Join(merge=merge, tolerate="best-effort", early=True)
        join = Step(name="probes", op=op, needs=names, expands=True, label=f"{self.n} probes")
        return Plan(steps=(*steps, join), output="probes")

    def _decided(self, asker: Asker, result: Result) -> Plan:
        """Return the plan of the rule that the probes meet."""
        drafts = drafts_of(result)
        budget = asker.brief.request.budget
        left = None if budget.tokens is None else max(0, budget.tokens - sum(draft.tokens for draft in drafts))
        spawning, unable = self._spawning(asker)
        limits = BudgetFacts(
            tokens=left,
            seconds=budget.seconds,
            call_tokens=self.tokens,
            deep_tokens=self.deep_tokens,
            rate=self.rate,
            most=self.most,
            words=asker.brief.task.chat(),
            strong=self.strong,
            threads=spawning is not None,
            threads_from=self.threads_from,
            agreement=self.agreement,
            epsilon=self.epsilon,
        )
        signs = Signs.of(drafts, type(asker.brief.task).verify is not Task.verify)
        choice, count, reason = decide(signs, limits)
        reason += unable + self._not_chosen(asker, signs, limits)
        match choice:
            case "probes":
                right = verified(drafts) or ranked(drafts)[0]
                return Plan(steps=(through("chosen", right.name, f"probes: {reason}"),), output="chosen")
            case "vote" | "best-of":
                plan = self._more(asker, drafts, count, "majority" if choice == "vote" else "best-of")
            case "threads":
                assert spawning is not None
                plan = spawning
            case "serial":
                plan = self._deep(asker)
            case "refine":
                plan = self._refine((len(drafts), 1)).next_round(asker, 1, drafts)
            case "sequential":
                plan = self._refine((1,) * 4).next_round(asker, 4 - count, ranked(drafts)[:1])
        return _said(plan, f"{choice}: {reason}")

    def _spawning(self, asker: Asker) -> tuple[Plan | None, str]:
        """Return the plan of the planner `threads`, or why the dialect cannot put this request."""
        dialect = self._dialect(asker.brief)
        if dialect is None:
            return None, ""
        try:
            return self._threads(dialect).start(asker.brief), ""
        except TaskError as error:
            return None, f"; threads were not possible ({error})"

    def _not_chosen(self, asker: Asker, signs: Signs, limits: BudgetFacts) -> str:
        """Return the way of the next rule, for a sample of the requests; else nothing."""
        drawn = derive(asker.brief.request.seed, "auto", "counterfactual", asker.brief.request.text)
        if drawn % 10_000 >= round(self.counterfactual * 10_000):
            return ""
        other = counterfactual(signs, limits)
        return f"; not chosen: {other[0]}, {other[2]}" if other is not None else "; nothing else was possible"

    def _more(self, asker: Asker, drafts: list[Draft], count: int, merge: str) -> Plan:
        """Return more samples, and the join of all."""
        names = tuple(f"sample-{i}" for i in range(1, count + 1))
        steps = [self._sample(asker, name) for name in names]
        needs = (*(draft.name for draft in drafts), *names)
        op = Join(merge=Plugin(name=merge), tolerate="best-effort", early=True)
        join = Step(name="vote", op=op, needs=needs, label=f"{merge} of {len(needs)}")
        return Plan(steps=(*steps, join), output="vote")

    def _sample(self, asker: Asker, name: str) -> Step:
        return asker.step(name, asker.question, max_tokens=self.tokens, temperature=self.temperature, label=name)

    def _deep(self, asker: Asker) -> Plan:
        """Return one long greedy attempt."""
        step = asker.step("deep", asker.question, max_tokens=self.deep_tokens, label="one deep attempt")
        return Plan(steps=(step,), output="deep")

    def _decompose(self) -> Decompose:
        return Decompose.model_validate(self.options.get("decompose", {}))

    def _refine(self, rounds: tuple[int, ...]) -> Refine:
        # All drafts as they are, so that it is one call and not a summary first.
        whole: dict[str, JsonValue] = {
            "distiller": "shared-top-k",
            "k": self.most,
            "summary": {"max_tokens": self.deep_tokens},
        }
        drafts: dict[str, JsonValue] = {"draft": {"max_tokens": self.tokens, "temperature": self.temperature}}
        given = {**whole, **drafts, **self.options.get("refine", {})}
        return Refine.model_validate({**given, "rounds": rounds})

    def _dialect(self, brief: Brief) -> str | None:
        """Return the dialect in which the model can spawn threads, as far as that is known."""
        task, name = brief.task, brief.request.task.name
        if self.threads != "auto":
            return self.threads
        if task.chat() or name not in dialect_names() or task.render("threads") == task.render("serial"):
            return None
        return name

    def _threads(self, dialect: str) -> Threads:
        return Threads.model_validate({**self.options.get("threads", {}), "dialect": dialect})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _said(plan: Plan, note: str) -> Plan:
    """Return a plan whose answer says why it was chosen."""
    assert plan.output is not None
    return Plan(steps=(*plan.steps, through("chosen", plan.output, note)), output="chosen")
