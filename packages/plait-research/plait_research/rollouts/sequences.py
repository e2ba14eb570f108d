"""The sequences of a run: model calls that continue one context, and the forks from it.

A step that continues another (`ModelCall.after`) has that one's tokens at the beginning of its prompt. If it has all of
them, it continues the same sequence; if several steps do, the last one continues it, and the others are forks:

    round-1 ──┬─ child-1            sequence 1, forked off 0
              ├─ child-2            sequence 2, forked off 0
              └─ (join) round-2     sequence 0 continues

A step that begins afresh is a sequence of its own; its parent is the sequence of the step whose expansion it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from plait.core.graph import context_lines
from plait.core.ops import ModelCall
from plait.core.record import StepRecord
from plait.core.result import TokenDraws
from plait.runtime.runlog import AttemptRecord, RunRecord

from .record import BadRecord, Record, Role, WeightsSegment


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
    """Of what is written in it next."""
    how: WeightsSegment | None = None
    """How its last tokens were drawn."""
    known: bool = True
    """The log-probability of every generated token is known, in the distribution that it was drawn from."""
    end: tuple[int, float] | None = None
    """The token that ended it, if it is not among the tokens yet."""


def records(run: RunRecord, group: str, branch: int = 0, reward: float | None = None) -> list[Record]:
    """Return a run's sequences. Log-probabilities are left out (empty) if the worker reported none.

    Raises `BadRecord` for a run whose worker reported no token ids.
    """
    made: list[_Sequence] = []
    where: dict[str, tuple[_Sequence, int]] = {}
    """By step: its sequence, and the end of its own tokens there."""
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
    """Return, for each step whose whole context others begin with, the last of them: it continues the sequence."""
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
        # Of two contexts that are continued as far, the longer one is the later in the line.
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
    """Append what a model call read and wrote."""
    result = attempt.result
    assert result is not None
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
    sequence.end = None if drawn is None or result.finish != "stop" else drawn.end
    policies = (drawn.policies if drawn is not None else ()) or ((0, 0),)
    for place, (begin, policy) in enumerate(policies):
        end = policies[place + 1][0] if place + 1 < len(policies) else count
        if begin < min(end, count):
            stretch = {"start": start + begin, "end": start + min(end, count), "policy": policy}
            sequence.segments.append(how.model_copy(update=stretch))


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
    if sequence.end is not None and sequence.how is not None:
        place, policy = len(sequence.tokens), sequence.segments[-1].policy if sequence.segments else 0
        sequence.tokens.append(sequence.end[0])
        sequence.mask.append(1)
        sequence.logprobs.append(sequence.end[1])
        stretch = {"start": place, "end": place + 1, "policy": policy}
        sequence.segments.append(sequence.how.model_copy(update=stretch))
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
