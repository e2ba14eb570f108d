"""Counters and statistics in the records: an attempt's progress, a step's outcome, a run's usage, a worker's speed, the
service of a share, ended steps.

Plain data that refers to no step, run or worker: the leaves under `records.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Literal

from ..core.causes import Cause
from ..core.lengths import ENOUGH, LATEST
from ..core.ops import ModelCall, Op
from ..core.plan import Step, template
from ..core.result import NO_SOURCES, NO_USAGE, Failure, Price, Result, Sources, Usage
from ..core.value_sizes import ValueSize
from ..core.view import AttemptEnd


@dataclass(slots=True, eq=False)
class Charge:
    """Reservations and charges of an attempt at a model step in its budgets."""

    counted: bool = False
    """Its reports are charged as they come, and it is cut when a budget is used up."""
    likely: int = 0
    """Tokens that it was likely to generate at its start."""
    thoughts: int = 0
    """Tokens reserved for its thoughts."""
    prompt: int = 0
    """Prompt tokens charged."""
    margin: int = 0
    """Tokens by which the prompt may turn out longer."""
    estimated: bool = False
    """Whether `prompt` is an estimate."""
    price: Price | None = None
    """Price of its model, if a budget limits the cost."""
    cost: float = 0.0
    """Cost charged so far."""
    priced_until: float = 0.0
    """Time up to which its duration is charged."""


# Calls, and model steps without a budget, share this one. Nothing writes to it: `Slots.begin` makes its own.
NO_CHARGE = Charge()


@dataclass(slots=True, eq=False)
class Figures:
    """The figures of one dispatch of a step to a worker."""

    id: int
    reserved: int
    """Tokens that it may generate."""
    short: str
    """The limit that made `reserved` less than its step requested, as a message; empty without one."""
    started: float
    heartbeat: float
    """Time of its last report."""
    priority: int
    left: int
    """Tokens of its reservation that it has not reported as used."""
    resumed_from: Checkpoint | None = None
    """The checkpoint that it was sent to continue; `None` again if its worker restarted the text."""
    continues: bool = False
    """Its reports show that it continues the checkpoint."""
    state: Literal["live", "stopping", "ended"] = "live"
    tokens: int = 0
    """Tokens that it generated, without those of its checkpoint."""
    largest: int = 0
    """Tokens of its largest report: about as many may be missing when its worker dies."""
    text: list[str] | tuple[()] = ()
    """Pieces of text; a list once there is one."""
    ids: list[int] | None = None
    """Token ids that it generated, if its worker reports them."""
    group: float | None = None
    lowest: float | None = None
    due: int = 0
    """Units that its share still expects to be charged for it (`Share`)."""
    context: int = 0
    """Tokens of context that it alone may come to hold on its worker, in a run with policies."""
    beside: int = 0
    """Attempts on its worker when it began, itself included."""
    expected: int = 0
    """Bytes of its context that were expected in its worker's cache, in a run with policies."""
    charge: Charge = NO_CHARGE
    """Its reservations and charges in budgets."""
    cut: str = ""
    """The limit for which it is being cut, as a message."""

    @property
    def generated(self) -> int:
        """Tokens of its text so far, including those of its checkpoint."""
        return self.tokens + len(self.resumed_from.ids) if self.resumed_from is not None else self.tokens

    def add_text(self, text: str) -> None:
        """Add a piece of text."""
        if isinstance(self.text, list):
            self.text.append(text)
        else:
            self.text = [text]

    def settle_resumption(self, has_ids: bool) -> str:
        """Record from the first report whether the worker continued the checkpoint; return the checkpoint's text."""
        assert self.resumed_from is not None
        self.continues = has_ids
        if has_ids:
            return self.resumed_from.text
        self.resumed_from = None  # a worker that reports no ids accepts none either: it restarted the text
        return ""

    def count_reused(self, result: Result) -> int:
        """Return the number of tokens of its result that come from its checkpoint."""
        if self.resumed_from is None:
            return 0
        ids = self.resumed_from.ids
        # Without reports only the result can show it: its ids begin with the checkpoint's and exceed its usage.
        fewer = result.token_ids[: len(ids)] == ids and result.usage.completion < len(result.token_ids)
        return len(ids) if self.continues or fewer else 0

    def length(self, result: Result) -> int:
        """Return the tokens of the result, including those of an earlier attempt that this one continued."""
        before, own = len(self.resumed_from.ids) if self.resumed_from is not None else 0, result.length
        return before + (own if own > self.tokens else self.tokens)

    def checkpoint(self) -> Checkpoint | None:
        """Return the text so far as a checkpoint for another attempt, if its token ids are known."""
        # With ids missing, the text could only be continued from the checkpoint that this attempt began with.
        if not self.ids or len(self.ids) != self.tokens:
            return self.resumed_from
        before = self.resumed_from.ids if self.resumed_from is not None else ()
        return Checkpoint((*before, *self.ids), "".join(self.text))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The beginning of a step's text, as token ids."""

    ids: tuple[int, ...]
    text: str
    """The same as text, if the step streams."""


def lane_of(op: Op) -> str:
    """Return the name of the queue that a step waits in: its kind, and its model if it names one."""
    if isinstance(op, ModelCall):
        return "think" if op.model is None else f"think {op.model}"
    return op.kind


@dataclass(slots=True, eq=False)
class Outcome:
    """The end of a step: its results, its failure, its cause."""

    own: Result | None = None
    """The result of its own attempt (or merge)."""
    result: Result | None = None
    """Its value to others: its own, or that of its expansion."""
    weight: ValueSize | None = None
    """The size of that value, once it was first read."""
    failure: Failure | None = None
    merged_into: str | None = None
    """Id of the step in whose favour a policy cancelled it."""
    limited: Failure | None = None
    """The budget or deadline that limited it or one of its inputs."""
    cause: Cause | None = None
    """The cause of its cancellation."""


@dataclass(slots=True, eq=False)
class PathTokens:
    """Generated tokens along the chains of steps through a step."""

    upward_rank: float = 0.0
    """Longest path from its start to the output, in tokens that may be generated."""
    before: int = 0
    """Maximum tokens along any chain that leads to its start."""
    own: int = 0
    """`before` and its own tokens."""
    total: int = 0
    """Maximum tokens along any chain that its value was made from."""


@dataclass(slots=True, eq=False)
class HeldBack:
    """Reservations of an account for live attempts, beyond its charges."""

    tokens: int = 0
    """Tokens that they are likely to report, or may still generate (`budgets._held`)."""
    thoughts: int = 0
    cost: float = 0.0
    """Cost of these tokens, and of the margins."""
    margin: int = 0
    """Tokens by which their prompts may turn out longer."""
    estimates: int = 0
    """Attempts whose prompt size is an estimate."""


@dataclass(slots=True, eq=False)
class Meter:
    """Running sum of usage."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cancelled: int = 0
    cost: float = 0.0
    reused: int = 0
    thoughts: int = 0
    uncounted: int = 0
    uncounted_prompt: int = 0
    sources: Sources = NO_SOURCES

    def add(self, usage: Usage, read: bool) -> None:
        """Add an attempt's usage; `read`: its tokens went into a step's value."""
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.completion += usage.completion
        self.cost += usage.cost
        self.reused += usage.reused
        self.thoughts += usage.thoughts
        self.uncounted += usage.uncounted
        self.uncounted_prompt += usage.uncounted_prompt
        if usage.sources is not self.sources:
            self.sources += usage.sources
        if not read:
            self.cancelled += usage.completion

    def reuse(self, tokens: int) -> None:
        """Count tokens of a cancelled attempt as used, because a step's value includes them."""
        self.cancelled -= tokens

    def usage(self) -> Usage:
        """Return the sum."""
        sums: dict[str, object] = {
            "prompt": self.prompt,
            "cached": self.cached,
            "completion": self.completion,
            "thoughts": self.thoughts,
            "cancelled": max(0, self.cancelled),
            "cost": self.cost,
            "reused": self.reused,
            "uncounted": self.uncounted,
            "uncounted_prompt": self.uncounted_prompt,
            "sources": self.sources,
        }
        return NO_USAGE.model_copy(update=sums)


_KEEP = 0.98
"""Decay of a point's weight per further point: half after 34 points."""
_LEAST = 8
"""Minimum tokens of a sample: the time of a shorter attempt is dominated by its prompt."""
_PRIOR = 4.0
"""Variance of the number of attempts at which the fitted slope counts as much as the assumed one."""


@dataclass(slots=True)
class DecodeSpeed:
    """A worker's seconds per token as a function of its number of attempts: sums over the attempts that ended there.

    Engines decode all their sequences together; each is slower with more sequences. Over a worker's usual range,
    seconds per token are about linear in the number of sequences, so a line is fitted with decaying weights.
    """

    n: float = 0.0
    beside: float = 0.0
    seconds: float = 0.0
    square: float = 0.0
    product: float = 0.0

    def add(self, beside: float, seconds: float, tokens: int) -> None:
        """Add an ended attempt; `beside`: mean number of attempts on the worker meanwhile, itself included."""
        if tokens < _LEAST:
            return
        each_token = seconds / tokens
        self.n = self.n * _KEEP + 1.0
        self.beside = self.beside * _KEEP + beside
        self.seconds = self.seconds * _KEEP + each_token
        self.square = self.square * _KEEP + beside * beside
        self.product = self.product * _KEEP + beside * each_token

    def seconds_per_token(self, attempts: int) -> float | None:
        """Return the expected seconds per token with this number of attempts, or `None` before the first end.

        If all points lie close together, the slope is assumed to be half of the proportional one.
        """
        if not self.n:
            return None
        beside, seconds = self.beside / self.n, self.seconds / self.n
        variance = max(0.0, self.square / self.n - beside * beside)
        covariance = self.product / self.n - beside * seconds
        assumed = seconds / (2.0 * max(1.0, beside))
        slope = max(0.0, covariance + _PRIOR * assumed) / (variance + _PRIOR)
        return max(0.1 * seconds, seconds + slope * (attempts - beside))


GENERATED = 2
"""Units of a generated token; an uncached prompt token counts one."""


@dataclass(slots=True, eq=False)
class ServiceCounter:
    """The service of a share in one kind of step."""

    base: float = 0.0
    """Counter value when it last began to wait."""
    served: int = 0
    """Units since then."""
    due: int = 0
    """Units that its running attempts are still expected to take."""
    ended: int = 0
    """Attempts that ended."""
    units: int = 0
    """Units of the attempts that ended."""
    weight: float = 1.0

    @property
    def counter(self) -> float:
        """Units served per unit of weight."""
        return self.base + self.served / self.weight

    @property
    def key(self) -> float:
        """Units served and due per unit of weight: the smallest goes first."""
        return self.base + (self.served + self.due) / self.weight

    def lift(self, least: float) -> None:
        """Raise the counter of a share that begins to wait to `least`, the smallest counter of those that wait."""
        if self.counter < least:
            self.base, self.served = least, 0

    def weigh(self, weight: float) -> None:
        """Set a new weight for future service."""
        if weight != self.weight:
            self.base, self.served, self.weight = self.counter, 0, weight

    def begin(self) -> int:
        """Count the start of an attempt; return its expected units."""
        expected = max(1, self.units // self.ended) if self.ended else 1
        self.due += expected
        return expected

    def count_tokens(self, tokens: int, due: int) -> int:
        """Count tokens that an attempt generated; return the rest of its expected units."""
        units = GENERATED * tokens
        self.served += units
        used = min(due, units)
        self.due -= used
        return due - used

    def end(self, usage: Usage, charged: int, due: int) -> None:
        """Record an ended attempt. `charged`: tokens already charged. `due`: units still reserved for it."""
        more, read = usage.completion - charged, usage.prompt - usage.cached
        units = (GENERATED * more if more > 0 else 0) + (read if read > 0 else 0)
        self.due -= due
        self.served += units
        self.units += GENERATED * charged + units
        self.ended += 1


@dataclass(slots=True, eq=False)
class Share:
    """A run, or the runs of a fairness group (`Request.fairness_group`), and the service that they have received.

    Among shares with a step that could start now, the one with the least service goes first: a virtual token counter,
    as in "Fairness in serving large language models" (Sheng et al., OSDI 2024). A share that begins to wait again
    starts at no less than the smallest counter of the waiting shares, so that idle time earns no slots. Service is
    divided by the weight: with weight 2 a share gets twice the tokens.

    Think steps are counted in tokens: two units per generated token and one per uncached prompt token, the paper's
    weights. Calls are counted by their number, apart from tokens, since other workers make them. Until it ends, a
    running attempt counts as much as the share's average attempt.

    The counters are integers and are combined only when they are read, so that a replay that merges several reports
    into one gives the same result.
    """

    name: str
    number: int
    """Arrival number: among equals the smallest goes first."""
    runs: int = 0
    """Runs that are not over."""
    think: ServiceCounter = field(default_factory=ServiceCounter)
    call: ServiceCounter = field(default_factory=ServiceCounter)

    def weigh(self, weight: float) -> None:
        """Set the weight for future service."""
        self.think.weigh(weight)
        self.call.weigh(weight)


REMEMBERED = 256
"""Number of ends kept per template."""
FIRST_SHARE, FIRST_LEAST = 32, 16
"""Reservation before any end of a template: an attempt's token limit divided by the first, at least the second."""

TemplateKeys = tuple[Hashable, Hashable | None]
"""Key of a wide class of steps, and key of the template (think steps only)."""


def template_keys(step: Step, planner: str) -> TemplateKeys:
    """Return the keys by which a step of a planner is compared with others.

    A template is a planner, a step's name without its numbers, a model, a token limit, and whether the step begins a
    context: `sample-1` and `sample-7` of the same planner share one. A call's key is its tool.
    """
    op = step.op
    # Attempts at calls generate no tokens, so their lengths need no template.
    if op.kind != "think":
        return (op.tool if op.kind == "call" else None), None
    wide = op.model, op.sampling.max_tokens, op.after is None
    return wide, (planner, template(step.name), wide)


@dataclass(slots=True, eq=False)
class EndedSteps:
    """The latest steps of each template that ended with a value, over all runs: seconds and generated tokens."""

    ends: dict[Hashable, deque[AttemptEnd]] = field(default_factory=dict["Hashable", "deque[AttemptEnd]"])
    """By template and by wide class."""
    _medians: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Cached medians of their tokens."""

    def add(self, keys: TemplateKeys, ended: AttemptEnd, lengths: dict[Hashable, deque[int]]) -> None:
        """Record an attempt that ended by itself, also in the `lengths` of its run."""
        wide, key = keys
        ends = self.ends.get(wide)
        if ends is None:
            ends = self.ends[wide] = deque(maxlen=REMEMBERED)
        ends.append(ended)
        if key is not None:
            self.ends.setdefault(key, deque(maxlen=REMEMBERED)).append(ended)
            lengths.setdefault(key, deque(maxlen=LATEST)).append(ended.tokens)
            self._medians.pop(key, None)

    def find_similar(self, keys: TemplateKeys) -> Sequence[AttemptEnd]:
        """Return the ends of a step's template, the oldest first; if these are few, those of its wide class."""
        wide, key = keys
        ends = self.ends.get(key, ())
        return tuple(ends if len(ends) >= ENOUGH else self.ends.get(wide, ()))

    def samples(self, keys: TemplateKeys, lengths: Mapping[Hashable, Sequence[int]]) -> list[Sequence[int]]:
        """Return samples of lengths that predict a think step's length (`core.lengths`): its siblings' (`lengths`, of
        its run), then, while these are few, those of its template and of its wide class in all runs."""
        wide, key = keys
        if key is None or wide not in self.ends:
            return []
        samples: list[Sequence[int]] = [tuple(lengths.get(key, ()))]
        for wider in (key, wide):
            if len(samples[-1]) < ENOUGH:
                samples.append([ended.tokens for ended in self.ends.get(wider, ())])
        return samples

    def reserved(self, keys: TemplateKeys, most: int, known: int = 0) -> int:
        """Return the tokens to reserve for an attempt at a think step that may generate `most` and has `known` already:
        the median of its template.

        Lengths are skewed to the right: the median lies below the mean, so that the reservations of many attempts stay
        below their use, and do not delay a run that fits into its budget. A higher quantile would start fewer attempts
        of a run that does not fit, and let more of them finish.
        """
        _, key = keys
        ends = self.ends.get(key)
        if not ends:
            return max(1, min(most, max(FIRST_LEAST, (most + known) // FIRST_SHARE) - known))
        median = self._medians.get(key)
        if median is None:
            median = self._medians[key] = median_low([ended.tokens for ended in ends][-LATEST:])
        return max(1, min(most, median - known))


@dataclass(slots=True, eq=False)
class Habits:
    """Growth of contexts: tokens added for each token that the plan allowed to generate, final sizes, and times."""

    grown: float = 0.0
    allowed: float = 0.0
    turns: int = 0
    turn_seconds: float = 0.0
    """Seconds of all turns."""
    gaps: int = 0
    gap_seconds: float = 0.0
    """Seconds between the turns, which tool calls took."""
    finals: deque[int] = field(default_factory=lambda: deque[int](maxlen=LATEST))

    @property
    def gap(self) -> float:
        """Mean seconds between two turns; 0 before any."""
        return self.gap_seconds / max(1, self.gaps)

    def add_turn(self, grown: float, allowed: float) -> None:
        """Record a turn: the tokens that it added, and the generated tokens that the plan allowed for it."""
        if allowed > 0:
            self.grown, self.allowed = self.grown + grown, self.allowed + allowed

    def add_gap(self, seconds: float) -> None:
        """Record the time between two turns."""
        self.gaps, self.gap_seconds = self.gaps + 1, self.gap_seconds + seconds


@dataclass(slots=True, eq=False)
class ProgramContext:
    """The end of a trajectory."""

    worker: str
    tokens: int
    """Its tokens, without those that it shares with other programs."""
    growth: int = 0
    """Tokens by which it is expected to grow."""
    ahead: float = 0.0
    """Tokens that may be generated between it and the output of the plan."""
    running: bool = True


@dataclass(slots=True, eq=False)
class ProgramRecord:
    """The contexts of a run or a session, and its running tool calls."""

    name: str
    planner: str
    arrival: int
    """Ticket of its first model call: programs are admitted in this order."""
    first: int
    """Tokens of its first prompt."""
    contexts: dict[str, ProgramContext] = field(default_factory=dict[str, ProgramContext])
    """By the id of the step, the oldest first."""
    calls: dict[str, float] = field(default_factory=dict[str, float])
    """Running tool calls, with the time of their start."""
    header: int | None = None
    """Tokens at its beginning that another program had left in the cache."""
    running: int = 0
    widest: int = 1
    """Maximum number of simultaneous model calls so far."""
    habits: Habits = field(default_factory=Habits)
    idle_since: float = 0.0
    """Time at which its last model call ended."""
    runs: int = 0
    """Its runs that are not over."""
