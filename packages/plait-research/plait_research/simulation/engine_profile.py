"""How fast a model is on a machine, as `plait simulate calibrate` fits it to recorded runs, and an engine that is as
fast in a simulation. A file for each model and machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from random import Random
from typing import Any

from pydantic import Field, ValidationError

from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.ops import ModelCall
from plait.core.plan import template
from plait.core.result import Failure, Result, Usage
from plait.core.values import Frozen

from .latency import Host, LatencyModel, Outcome


class EngineProfile(Frozen):
    """Fitted parameters, in seconds and tokens."""

    model: str
    machine: str
    fixed: float = Field(gt=0)
    """Of a step of decoding, however many sequences."""
    each: float = Field(ge=0)
    """More for each sequence."""
    streamed: float = Field(default=0.0, ge=0)
    """More for each sequence whose text is sent while it is written."""
    context: float = Field(default=0.0, ge=0)
    """More for each token of context of all sequences."""
    typical: float = Field(default=0.0, ge=0)
    """Tokens of context that a sequence had, in the mean."""
    read: float = Field(ge=0)
    """To read one token of a prompt."""
    dispatch: float = Field(default=0.0, ge=0)
    """From the decision to send a job to its first step."""
    abort: float = Field(default=0.002, ge=0)
    """From the decision to stop a job until the engine has said that it did."""
    attempts: int = 0
    """That it was fitted to."""
    error: float = 0.0
    """Median relative error of the seconds of an attempt, over those."""
    widest: int = 0
    """Most sequences together that were seen."""
    lengths: dict[str, tuple[int, ...]] = {}
    """Tokens of steps that came to their end, by its template (`core.lengths`); in order of size."""

    def step(self, sequences: float) -> float:
        """Return the seconds of a step of decoding that streams nothing, with contexts as long as those that it was
        fitted to."""
        return self.fixed + (self.each + self.context * self.typical) * sequences

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

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


def machine() -> str:
    """Return the kind of this machine: its processor and the number of them."""
    return f"{platform.machine()}-{os.cpu_count() or 1}"


def profile_file(model: str) -> Path:
    """Return where the profile of a model on this machine is kept."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in Path(model).name)
    return state / "plait" / "profiles" / f"{name}@{machine()}.json"


def load_engine(path: Path) -> EngineProfile:
    """Read a profile. Raises `ConfigError` for any other file."""
    try:
        return EngineProfile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path} is no profile ({where}: {first['msg']}): `plait simulate calibrate` writes one"
        ) from None
