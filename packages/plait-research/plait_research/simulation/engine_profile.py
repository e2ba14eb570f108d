"""A simulated engine that is as fast as a calibrated model on this machine."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from plait.core.events import Job
from plait.core.ops import ModelCall
from plait.core.plan import template
from plait.core.result import Failure, Result, Usage
from plait.runtime.client.profile import Profile, load

from .latency import Host, LatencyModel, Outcome

__all__ = ["EngineProfile", "load_engine"]


class EngineProfile(Profile):
    """A profile that the simulator runs."""

    def host(self, name: str, slots: int, **options: Any) -> Host:
        """Return an engine of this model on this machine."""
        read = 1.0 / max(self.read, 1e-9)
        return Host(
            name,
            slots,
            prefill_rate=read,
            decode_rate=lambda n: 1.0 / (self.fixed + self.each * n),
            context=self.context,
            streamed=self.streamed,
            blocking=True,
            **options,
        )

    def latency(self, **options: Any) -> LatencyModel:
        """Return the times that are not the model's."""
        return LatencyModel(dispatch=self.dispatch, abort_latency=self.abort, **options)

    def outcome(self) -> Outcome:
        """Return the outcomes of jobs: lengths drawn from the recorded ones of steps of the same name, or of all."""
        every = tuple(sorted(length for recorded in self.lengths.values() for length in recorded))

        def drawn(job: Job, rng: Random) -> Result | Failure:
            if not isinstance(job.op, ModelCall):
                return Result()
            known = self.lengths.get(template(job.step)) or every
            limit = job.op.sampling.max_tokens
            tokens = min(limit, rng.choice(known)) if known else limit
            finish = "stop" if tokens < limit else "length"
            return Result(value="", usage=Usage(completion=max(1, tokens)), finish=finish)

        return drawn


def load_engine(path: Path) -> EngineProfile:
    """Read a profile for the simulator. Raises `ConfigError` for any other file."""
    return EngineProfile.model_validate(load(path).model_dump())
