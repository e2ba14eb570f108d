"""How fast a model is on a machine, as `plait simulate calibrate` fits it to recorded runs. A file for each model and
machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import cast

from pydantic import Field, ValidationError

from ...core.budget import Budget
from ...core.errors import ConfigError, UsageError
from ...core.interfaces import Planner
from ...core.ops import Plugin
from ...core.values import Frozen
from ..plugins.loader import Plugins
from .config import Config


class Profile(Frozen):
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


def machine() -> str:
    """Return the kind of this machine: its processor and the number of them."""
    return f"{platform.machine()}-{os.cpu_count() or 1}"


def profile_file(model: str) -> Path:
    """Return where the profile of a model on this machine is kept."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    name = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in Path(model).name)
    return state / "plait" / "profiles" / f"{name}@{machine()}.json"


def load(path: Path) -> Profile:
    """Read a profile. Raises `ConfigError` for any other file."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path} is no profile ({where}: {first['msg']}): `plait simulate calibrate` writes one"
        ) from None


AUTO = "auto"
MOST = 256
"""Most branches that are chosen."""


def settled(spec: Plugin, plugins: Plugins, config: Config, budget: Budget) -> Plugin:
    """Return a planner with a number instead of `auto`: the maximum number of branches that all end within the
    budget's seconds with probability 0.9, by the recorded lengths of such steps and the engine's pace, on one engine
    with nothing else to do. At least one.

    Raises `UsageError` without a limit of seconds and where the model is not calibrated on this machine.
    """
    if spec.options.get("n") != AUTO:
        return spec
    from ...core.runtime_distribution import Branches, max_branches_within
    from .profile import load, profile_file

    planner = cast("type[Planner]", plugins.class_of("planner", spec.name))
    if "n" not in planner.model_fields:  # the planner's own refusal is clearer
        return spec
    if budget.seconds is None:
        raise UsageError("n=auto takes as many branches as end in time: say how long that is (seconds)")
    path = profile_file(config.model)
    if not path.exists():
        raise UsageError(
            f"n=auto needs to know how fast {Path(config.model).name} is here, and it is uncalibrated: "
            "run `plait simulate calibrate --probe`, or give n as a number"
        )
    profile = load(path)
    known = next((recorded for name, recorded in profile.lengths.items() if name.startswith(spec.name)), ())
    lengths = known or tuple(length for recorded in profile.lengths.values() for length in recorded)
    made = plugins.planner(Plugin(name=spec.name, options={**spec.options, "n": 1}))
    prompts = (getattr(made, name) for name in planner.says_answer())
    limit = max((prompt.max_tokens or 0 for prompt in prompts), default=0) or 512
    branches = Branches([max(1, min(length, limit)) for length in lengths or (limit,)])
    number = max_branches_within(budget.seconds - profile.dispatch, branches, profile.step, most=MOST)
    return Plugin(name=spec.name, options={**spec.options, "n": max(1, number)})
