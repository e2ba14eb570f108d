"""A training record: one sequence of token ids from a run, with the facts about each token that a trainer needs.

A run is a graph of sequences. A sequence is a context that the model wrote into, perhaps in several steps with other
text between them. A forked thread is a separate sequence that shares its first `fork` tokens with its parent. So no
generated token is in two masks, and a trainer may share the prefix.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from plait.core.errors import PlaitError
from plait.core.messages import explain, json_path
from plait.core.values import Frozen

Role = Literal["parent", "thread", "join"]


class BadRecord(PlaitError):
    """Raised for a line that is not a record, or a record that contradicts itself."""

    code = "bad-record"


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
