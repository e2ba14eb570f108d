"""A training record: one sequence of token ids from a run, with the facts about each token that a trainer needs.

A run is a graph of sequences. A sequence is a context that the model wrote into, perhaps in several steps with other
text between them. A forked thread is a separate sequence that shares its first `fork` tokens with its parent. So no
generated token is in two masks, and a trainer may share the prefix.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from plait.apps.common.graph import context_lines
from plait.core.errors import PlaitError
from plait.core.messages import explain, json_path
from plait.core.ops import ModelCall
from plait.core.record import StepRecord
from plait.core.result import TokenDraws
from plait.core.values import Frozen
from plait.runtime.runlog import AttemptRecord, RunRecord

Role = Literal["parent", "thread", "join"]


class BadRecord(PlaitError):
    """Raised for a line that is not a record, or a record that contradicts itself."""


class WeightsSegment(Frozen):
    """Generated tokens that one version of the weights sampled in one way: places `start` to `end` (exclusive) of the
    sequence."""

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    policy: int = Field(default=0, ge=0)
    """Version of the weights; counts updates."""
    step: str = ""
    """Name of the step that wrote these tokens."""
    role: Role = "parent"
    """`join`: continues from the results of threads; `thread`: in a sequence that another one spawned or forked."""
    temperature: float | None = None
    """Sampling temperature of these tokens; `None` if unknown."""
    top_p: float = 1.0
    form: str = ""
    """Kind of the form that constrained these tokens."""
    others: tuple[str, ...] = ()
    """Names of other settings that changed how likely a token was, such as `top_k`."""
    advantage: float | None = None
    """The segment's advantage, which replaces the record's if credit differs by segment (`weighed`)."""


class Record(Frozen):
    """One sequence of one rollout."""

    rollout: str
    """Id of the rollout: `group/branch`."""
    group: str
    """Rollouts of one prompt have one group."""
    branch: int = Field(default=0, ge=0)
    index: int = Field(default=0, ge=0)
    """Number of the sequence in its rollout."""
    of: int = Field(default=1, ge=1)
    """Number of sequences in the rollout."""
    parent: int | None = None
    """`index` of the sequence that forked or spawned this sequence; always smaller than its own."""
    fork: int = Field(default=0, ge=0)
    """Number of leading tokens that it shares with its parent. 0: it has its own context."""
    tokens: tuple[int, ...]
    """Token ids: prompt, generated and inserted ones, in order."""
    mask: tuple[int, ...]
    """1 for a token that the model generated in this sequence, 0 for one that it read."""
    logprobs: tuple[float, ...] = ()
    """The log-probability (nats) of each token in its sampling distribution, with the temperature, `top_p` and form of
    its segment; 0.0 where the mask is 0. Empty if the sampler did not report them: the record is then only for
    supervised training."""
    segments: tuple[WeightsSegment, ...] = ()
    """Segments by the weights that generated them; they cover the mask exactly."""
    reward: float | None = None
    """Reward of the whole rollout; `None` if it could not be judged."""
    own: float | None = None
    """Reward of this sequence alone, if the task can judge it."""
    advantage: float | None = None
    """Advantage of the whole rollout in its group, if known (`weighed`)."""
    meta: dict[str, JsonValue] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.tokens)
        if len(self.mask) != count or len(self.logprobs) not in (0, count):
            raise ValueError(f"{count} tokens, {len(self.mask)} places in the mask, {len(self.logprobs)} logprobs")
        if not 0 <= self.index < self.of:
            raise ValueError(f"sequence {self.index} of {self.of}")
        if self.parent is not None and not 0 <= self.parent < self.index:
            raise ValueError(f"the parent of sequence {self.index} is {self.parent}, which does not come before it")
        if self.fork > (0 if self.parent is None else count):
            raise ValueError(f"{self.fork} tokens are the parent's, of {count}")
        if min(self.tokens, default=0) < 0 or not set(self.mask) <= {0, 1} or any(self.mask[: self.fork]):
            raise ValueError("token ids are 0 or more, a mask is 0 or 1, and 0 in what is the parent's")
        if not all(math.isfinite(logprob) and logprob <= 1e-6 for logprob in self.logprobs):
            raise ValueError("a log-probability is finite and not above 0")
        covered = [place for segment in self.segments for place in range(segment.start, min(segment.end, count + 1))]
        if covered != [place for place, one in enumerate(self.mask) if one]:
            raise ValueError("the segments do not cover the mask")
        return self

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the weights that generated the sequence, in ascending order."""
        return tuple(sorted({segment.policy for segment in self.segments}))

    @property
    def temperature(self) -> float | None:
        """The temperature of all generated tokens; `None` if it is unknown or differs."""
        there = {segment.temperature for segment in self.segments}
        return there.pop() if len(there) == 1 else None

    @property
    def token_advantages(self) -> tuple[float, ...]:
        """The advantage of each token, 0.0 where the mask is 0. Raises `BadRecord` for a record without one."""
        out = [0.0] * len(self.tokens)
        for segment in self.segments:
            advantage = self.advantage if segment.advantage is None else segment.advantage
            if advantage is None:
                raise BadRecord(f"sequence {self.index} of {self.rollout} has no advantage: `weighed` gives it one")
            out[segment.start : segment.end] = [advantage] * (segment.end - segment.start)
        return tuple(out)

    @property
    def generated(self) -> int:
        """Number of tokens that the model generated in the sequence."""
        return sum(self.mask)

    @property
    def judged(self) -> bool:
        """Whether the record has a reward that a trainer can use."""
        return self.reward is not None and math.isfinite(self.reward)

    def line(self) -> str:
        """Return the record as a line of JSON. An invalid reward is kept as `NaN`, so that readers can count it."""
        fields = self.model_dump(mode="python", exclude_defaults=True)
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, line: str | bytes, where: str = "the record") -> Record:
        """Read a line of JSON. Raises `BadRecord` with the place of the error."""
        try:
            return cls.model_validate(json.loads(line))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            raise BadRecord(f"{where}: {explain(json_path(detail['loc']) or 'it', detail)}") from None
        except ValueError as error:
            raise BadRecord(f"{where} is not JSON: {error}") from None


def whole(records: Sequence[Record]) -> bool:
    """Return whether these are all sequences of one rollout, in order."""
    return bool(records) and [record.index for record in records] == list(range(records[0].of))


# The sequences of a run: model calls that continue one context, and the forks from it.
#
# A step that continues another (`ModelCall.after`) has the other step's tokens at the beginning of its prompt. If it
# has all of them, it continues the same sequence; if several steps do, the last step continues it, and the others are
# forks:
#
#     round-1 ──┬─ child-1            sequence 1, forked off 0
#               ├─ child-2            sequence 2, forked off 0
#               └─ (join) round-2     sequence 0 continues
#
# A step with a new context is a separate sequence; its parent is the sequence of the step that expanded into it.


@dataclass(slots=True)
class _Sequence:
    index: int
    parent: int | None
    fork: int
    tokens: list[int]
    mask: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    segments: list[WeightsSegment] = field(default_factory=list[WeightsSegment])
    steps: list[str] = field(default_factory=list[str])
    role: Role = "parent"
    """Role of the next tokens in the sequence."""
    how: WeightsSegment | None = None
    """Segment of its last tokens, with their sampling."""
    known: bool = True
    """Whether the log-probability of every generated token in its sampling distribution is known."""
    end: tuple[int, float, int] | None = None
    """The token that ended it, if it is not among the tokens yet: id, log-probability, version of the weights."""


def records(run: RunRecord, group: str, branch: int = 0, reward: float | None = None) -> list[Record]:
    """Return a run's sequences. Log-probabilities are left out (empty) if the worker reported none.

    Raises `BadRecord` for a run whose worker reported no token ids.
    """
    made: list[_Sequence] = []
    where: dict[str, tuple[_Sequence, int]] = {}
    """Each step's sequence, and the end of the step's tokens in it."""
    steps, calls = {step.step: step for step in run.steps}, run.calls
    line_of = context_lines(run.steps)
    heirs = _heirs(calls, line_of)
    for attempt in calls:
        result = attempt.result
        if result is None or not result.prompt_ids:
            raise BadRecord(
                f"run {run.id}: the worker {attempt.worker!r} tells no token ids, and a record is made of them: use "
                "an engine, or a server that returns them"
            )
        prompt, step = list(result.prompt_ids), steps.get(attempt.step)
        before, common = _continued(line_of(attempt.step), prompt, where)
        # If several continue a context, one of them continues its sequence; the others fork from it.
        if before is not None and heirs.get(before[0]) == attempt.step:
            sequence = where[before[0]][0]
            if _joins(step, steps):
                sequence.role = "join"
        else:
            parent = where[before[0]][0].index if before is not None else _owner(step, steps, where)
            sequence = _Sequence(len(made), parent, common if before is not None else 0, [])
            sequence.role = "parent" if parent is None else "thread"
            made.append(sequence)
        _write(sequence, prompt, attempt)
        where[attempt.step] = (sequence, len(sequence.tokens))
    return [_record(sequence, run, group, branch, len(made), reward) for sequence in made if sequence.steps]


def _heirs(calls: Sequence[AttemptRecord], line_of: Callable[[str], list[str]]) -> dict[str, str]:
    """Return for each step the last step that begins with its whole context: this step continues the sequence."""
    heirs: dict[str, str] = {}
    whole: dict[str, tuple[_Sequence, int]] = {}
    for attempt in calls:
        result = attempt.result
        if result is None:
            continue
        prompt = list(result.prompt_ids)
        before, common = _continued(line_of(attempt.step), prompt, whole)
        if before is not None and common == before[1]:
            heirs[before[0]] = attempt.step
        context = _Sequence(0, None, 0, [*prompt, *result.token_ids])
        whole[attempt.step] = (context, len(context.tokens))
    return heirs


def _continued(
    line: Iterable[str], prompt: Sequence[int], where: Mapping[str, tuple[_Sequence, int]]
) -> tuple[tuple[str, int] | None, int]:
    """Return the step of a line whose context a prompt continues, with the length of that context, and how much of it
    the prompt has; `None` and 0 for a prompt that begins afresh."""
    best: tuple[str, int] | None = None
    most = 0
    for name in line:
        if name not in where:
            continue
        sequence, length = where[name]
        common = _common(sequence.tokens, length, prompt)
        # If a prompt continues two contexts equally far, the longer context is the later step.
        if common and (common, length) > (most, best[1] if best else 0):
            best, most = (name, length), common
    return best, most


def _owner(
    step: StepRecord | None, steps: Mapping[str, StepRecord], where: Mapping[str, tuple[_Sequence, int]]
) -> int | None:
    """Return the sequence of the model call by whose expansion a step came into the plan."""
    seen: set[str] = set()
    name = None if step is None else step.owner
    while name is not None and name not in seen:
        if name in where:
            return where[name][0].index
        seen.add(name)
        known = steps.get(name)
        branches = [] if known is None else [need for need in known.needs if need in where]
        if branches and known is not None and known.kind == "join":
            return min(where[branch][0].index for branch in branches)
        name = None if known is None else known.owner
    return None


def _joins(step: StepRecord | None, steps: Mapping[str, StepRecord]) -> bool:
    """Return whether a step that continues its sequence continues from a join of several branches."""
    near = [] if step is None else [*step.needs, step.owner]
    return any(name in steps and steps[name].kind == "join" for name in near if name is not None)


def _common(tokens: Sequence[int], length: int, prompt: Sequence[int]) -> int:
    most = min(length, len(prompt))
    for place in range(most):
        if tokens[place] != prompt[place]:
            return place
    return most


def _write(sequence: _Sequence, prompt: list[int], attempt: AttemptRecord) -> None:
    """Append a model call's prompt and output."""
    result = attempt.result
    assert result is not None
    if sequence.end is not None and prompt[len(sequence.tokens) :][:1] == [sequence.end[0]]:
        _write_end(sequence)  # the template repeats what the model drew: it learns to end each turn
    read = prompt[len(sequence.tokens) :]
    sequence.tokens += read
    sequence.mask += [0] * len(read)
    sequence.logprobs += [0.0] * len(read)
    start, drawn = len(sequence.tokens), result.drawn
    count = len(result.token_ids)
    sequence.tokens += result.token_ids
    sequence.mask += [1] * count
    how = sequence.how = _how(attempt, drawn).model_copy(update={"role": sequence.role})
    # Zeros keep the positions; the sequence as a whole is marked as unknown.
    if drawn is None or len(drawn.logprobs) != count or not (drawn.processed or _plain(how)):
        sequence.known = False
        sequence.logprobs += [0.0] * count
    else:
        sequence.logprobs += drawn.logprobs
    sequence.steps.append(attempt.step.partition(":")[2])
    policies = (drawn.policies if drawn is not None else ()) or ((0, 0),)
    last = None if drawn is None or result.finish != "stop" else drawn.end
    sequence.end = None if last is None else (*last, policies[-1][1])
    for place, (begin, policy) in enumerate(policies):
        end = policies[place + 1][0] if place + 1 < len(policies) else count
        if begin < min(end, count):
            stretch = {"start": start + begin, "end": start + min(end, count), "policy": policy}
            sequence.segments.append(how.model_copy(update=stretch))


def _write_end(sequence: _Sequence) -> None:
    """Append the token that ended the last turn, if the model drew one."""
    if sequence.end is None or sequence.how is None:
        return
    place = len(sequence.tokens)
    token, logprob, policy = sequence.end
    sequence.tokens.append(token)
    sequence.mask.append(1)
    sequence.logprobs.append(logprob)
    stretch = {"start": place, "end": place + 1, "policy": policy}
    sequence.segments.append(sequence.how.model_copy(update=stretch))
    sequence.end = None


def _how(attempt: AttemptRecord, drawn: TokenDraws | None) -> WeightsSegment:
    """Return a segment with the sampling of a call's tokens: the worker's report, else the request's options."""
    assert isinstance(attempt.op, ModelCall)
    asked, extra = attempt.op.sampling, tuple(attempt.op.sampling.extra_body)
    step = attempt.step.partition(":")[2]
    if drawn is not None and drawn.temperature is not None:
        top_p, form = drawn.top_p, drawn.form
        others, temperature = (*drawn.others, *extra), drawn.temperature
    else:
        form = "" if asked.structured is None else asked.structured.kind
        top_p, others, temperature = asked.top_p, (*asked.others, *extra), asked.temperature
    return WeightsSegment(
        start=0, end=1, step=step, temperature=temperature, top_p=1.0 if top_p is None else top_p, form=form,
        others=others,
    )  # fmt: skip


def _plain(how: WeightsSegment) -> bool:
    """Return whether tokens were drawn from the model's own distribution; all workers report its log-probabilities."""
    return how.temperature == 1.0 and how.top_p == 1.0 and not (how.form or how.others)


def _record(sequence: _Sequence, run: RunRecord, group: str, branch: int, of: int, reward: float | None) -> Record:
    _write_end(sequence)
    return Record(
        rollout=f"{group}/{branch}",
        group=group,
        branch=branch,
        index=sequence.index,
        of=of,
        parent=sequence.parent,
        fork=sequence.fork,
        tokens=tuple(sequence.tokens),
        mask=tuple(sequence.mask),
        logprobs=tuple(sequence.logprobs) if sequence.known else (),
        segments=tuple(sequence.segments),
        reward=reward,
        meta={"run": run.id, "steps": list(sequence.steps)},
    )
