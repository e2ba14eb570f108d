"""A training record: one sequence of token ids out of a run, with what a trainer has to know about each token.

A run is a graph of sequences. A sequence is a context that the model wrote into, perhaps in several steps with other
text between them; a thread that was forked off it is a sequence of its own, whose first `fork` tokens are those of its
parent. So no generated token is in two masks, and a trainer may share the prefix.
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
    """A line that is no record, or a record that contradicts itself."""

    code = "bad-record"


class WeightsSegment(Frozen):
    """Generated tokens that one version of the weights sampled in one way: places `start` to `end` (exclusive) of the
    sequence."""

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    policy: int = Field(default=0, ge=0)
    """Version of the weights; counts updates."""
    step: str = ""
    """Name of the step that wrote them."""
    role: Role = "parent"
    """`join`: continues from the results of threads; `thread`: in a sequence that another one spawned or forked."""
    temperature: float | None = None
    """At which they were drawn; `None` if that is not known."""
    top_p: float = 1.0
    form: str = ""
    """Kind of the form that they were held to."""
    others: tuple[str, ...] = ()
    """Names of other settings that changed how likely a token was, such as `top_k`."""
    advantage: float | None = None
    """Where credit differs by segment (`weighed`): in the place of the record's."""


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
    """Sequences in the rollout."""
    parent: int | None = None
    """`index` of the sequence that it was forked from or spawned by; always smaller than its own."""
    fork: int = Field(default=0, ge=0)
    """How many of its first tokens are the parent's. 0: it began afresh."""
    tokens: tuple[int, ...]
    """Token ids: prompt, generated and inserted ones, in order."""
    mask: tuple[int, ...]
    """1 for a token that the model generated in this sequence, 0 for one that it read."""
    logprobs: tuple[float, ...] = ()
    """The log-probability (nats) of each token in the distribution that it was drawn from, that is with temperature,
    `top_p` and form of its segment; 0.0 where the mask is 0. Empty where the sampler did not tell that: then the record
    is for supervised training alone."""
    segments: tuple[WeightsSegment, ...] = ()
    """Which weights generated what; they cover the mask exactly."""
    reward: float | None = None
    """Of the whole rollout; `None` if it could not be judged."""
    own: float | None = None
    """Of this sequence alone, where the task can tell."""
    advantage: float | None = None
    """Of the whole rollout among those of its group, where that is known (`weighed`)."""
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
        """The versions of the weights that generated it, in ascending order."""
        return tuple(sorted({segment.policy for segment in self.segments}))

    @property
    def temperature(self) -> float | None:
        """The temperature of all its generated tokens; `None` if it is not known of all, or differs."""
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
        """How many tokens the model generated in it."""
        return sum(self.mask)

    @property
    def judged(self) -> bool:
        """Whether it has a reward that a trainer can use."""
        return self.reward is not None and math.isfinite(self.reward)

    def line(self) -> str:
        """Return it as a line of JSON. A reward that is not a number is kept as `NaN`, to be counted by who reads."""
        fields = self.model_dump(mode="python", exclude_defaults=True)
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, line: str | bytes, where: str = "the record") -> Record:
        """Read a line of JSON. Raises `BadRecord` with the place of what is wrong."""
        try:
            return cls.model_validate(json.loads(line))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            raise BadRecord(f"{where}: {explain(json_path(detail['loc']) or 'it', detail)}") from None
        except ValueError as error:
            raise BadRecord(f"{where} is not JSON: {error}") from None


def whole(records: Sequence[Record]) -> bool:
    """Whether these are all the sequences of one rollout, in order."""
    return bool(records) and [record.index for record in records] == list(range(records[0].of))
