"""`n=auto`: as many branches as end within the run's time, by what `plait simulate calibrate` knows of the model."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.errors import UsageError
from ...core.ops import Plugin
from ...core.runtime_distribution import Branches, n_for
from ..plugins.loader import Plugins
from ..simulation.profile import load, profile_file
from .config import Config

AUTO = "auto"
MOST = 256
"""Most branches that are chosen."""


def settled(spec: Plugin, plugins: Plugins, config: Config, budget: Budget) -> Plugin:
    """Return a planner with a number in the place of `auto`: the most branches of which all have ended within the
    budget's seconds with probability 0.9, by the recorded lengths of such steps and the engine's pace, on one engine
    with nothing else to do. At least one.

    Raises `UsageError` without a limit of seconds and where the model is not calibrated on this machine.
    """
    if AUTO not in spec.options.values():
        return spec
    option: object = getattr(plugins.class_of("planner", spec.name), "n_option", None)
    if not isinstance(option, str) or spec.options.get(option) != AUTO:
        return spec
    if budget.seconds is None:
        raise UsageError(f"{option}=auto takes as many branches as end in time: say how long that is (seconds)")
    path = profile_file(config.model)
    if not path.exists():
        raise UsageError(
            f"{option}=auto needs to know how fast {Path(config.model).name} is here, and it is uncalibrated: "
            f"run `plait simulate calibrate --probe`, or give {option} as a number"
        )
    profile = load(path)
    known = next((each for name, each in profile.lengths.items() if name.startswith(spec.name)), ())
    lengths = known or tuple(length for each in profile.lengths.values() for length in each)
    most: JsonValue = spec.options.get("max_tokens")
    limit = most if isinstance(most, int) else 512
    branches = Branches([max(1, min(length, limit)) for length in lengths or (limit,)])
    number = n_for(budget.seconds - profile.dispatch, branches, profile.step, most=MOST)
    return Plugin(name=spec.name, options={**spec.options, option: max(1, number)})
