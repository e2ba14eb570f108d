"""A model's speed on a machine, which `plait simulate calibrate` fits to recorded runs, and a simulated engine of this
speed. Each model and machine has a file."""

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
from plait.runtime.client.config import Config
from plait.runtime.client.worker_factory import fit_model

from .latency import Host, LatencyModel, Outcome


class EngineProfile(Frozen):
    """Fitted parameters, in seconds and tokens."""

    model: str
    machine: str
    fixed: float = Field(gt=0)
    """Constant time of a decoding step."""
    each: float = Field(ge=0)
    """Additional time of a decoding step for each sequence."""
    streamed: float = Field(default=0.0, ge=0)
    """Additional time for each streaming sequence."""
    context: float = Field(default=0.0, ge=0)
    """Additional time for each token of context of all sequences."""
    typical: float = Field(default=0.0, ge=0)
    """Mean number of a sequence's context tokens."""
    read: float = Field(ge=0)
    """Time to prefill one token of a prompt."""
    dispatch: float = Field(default=0.0, ge=0)
    """Time from the decision to send a job to its first step."""
    abort: float = Field(default=0.002, ge=0)
    """Time from the decision to stop a job to the engine's confirmation."""
    attempts: int = 0
    """Number of attempts that the profile was fitted to."""
    error: float = 0.0
    """Median relative error of an attempt's seconds over these attempts."""
    widest: int = 0
    """Maximum number of concurrent sequences in the recorded attempts."""
    lengths: dict[str, tuple[int, ...]] = {}
    """Sorted token counts of steps that ended by themselves, by the step's template (`core.lengths`)."""

    def step(self, sequences: float) -> float:
        """Return the seconds of a decoding step without streaming, with contexts of the mean length of the fitted
        attempts."""
        return self.fixed + (self.each + self.context * self.typical) * sequences

    def write(self, path: Path) -> None:
        """Write the profile to a file."""
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
        """Return the latencies outside the model."""
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


def named_model(config: Config, task: str) -> str:
    """Return the model that a configuration runs a task on; `default` if none is named or fetched."""
    config = config if task == "countdown" else fit_model(config)
    return config.model if "model" in config.model_fields_set or task == "countdown" else "default"


def machine() -> str:
    """Return the kind of this machine: its processor and the number of processors."""
    return f"{platform.machine()}-{os.cpu_count() or 1}"


def profile_file(model: str) -> Path:
    """Return the path of a model's profile on this machine."""
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
