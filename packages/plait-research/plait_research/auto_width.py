"""`n=auto`: the number of branches that end in time, by the calibrated pace of the model (a hook of plait)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from plait.core.budget import Budget
from plait.core.errors import UsageError
from plait.core.interfaces import Planner
from plait.core.ops import Plugin
from plait.runtime.client.config import Config
from plait.runtime.client.request_preparation import AUTO
from plait.runtime.plugins.loader import Plugins

from .branch_runtimes import Branches, max_branches_within
from .simulation.engine_profile import load_engine, profile_file


def choose_width(spec: Plugin, plugins: Plugins, config: Config, budget: Budget) -> Plugin:
    """Return a planner with a number instead of `auto`: the maximum number of branches that all end within the
    budget's seconds with probability 0.9, by the recorded lengths of such steps and the engine's pace, on one engine
    with nothing else to do. At least one.

    Raises `UsageError` without a limit of seconds and where the model is not calibrated on this machine.
    """
    if spec.options.get("n") != AUTO:
        return spec
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
    profile = load_engine(path)
    known = next((recorded for name, recorded in profile.lengths.items() if name.startswith(spec.name)), ())
    lengths = known or tuple(length for recorded in profile.lengths.values() for length in recorded)
    made = plugins.planner(Plugin(name=spec.name, options={**spec.options, "n": 1}))
    prompts = (getattr(made, name) for name in planner.says_answer())
    limit = max((prompt.max_tokens or 0 for prompt in prompts), default=0) or 512
    branches = Branches([max(1, min(length, limit)) for length in lengths or (limit,)])
    number = max_branches_within(budget.seconds - profile.dispatch, branches, profile.step)
    return Plugin(name=spec.name, options={**spec.options, "n": max(1, number)})
