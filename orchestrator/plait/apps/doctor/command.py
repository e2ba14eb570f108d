"""`plait doctor`: check this installation, show remedies, and try the workers."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from ...core.errors import ConfigError, PlaitError
from ...core.ops import Plugin
from ...runtime.client.config import Config
from ...runtime.client.worker_factory import fit_model
from ...runtime.plugins.loader import Plugins
from ...runtime.plugins.spec import trust
from ..commands.config import list_files
from ..common.interrupt import Stopper, run_stoppable
from ..common.options import Common, Json, Planner, common_options
from ..common.output import Output, opened
from ..common.session import opened_session, preflight
from .checks import Check, all_checks, wants_engine

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_PROMPT = "3 5 7 11 -> 24"


@common_options
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Skip checks that load libraries or start anything.")] = False,
    planner: Planner = None,
    paths: Annotated[
        bool, typer.Option("--paths", help="List the files that plait writes, and check nothing.")
    ] = False,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Check Python, libraries, names, model, memory, Ray and engine; say what is wrong and what to do."""
    with opened(as_json) as output:
        if paths:
            list_files(output)
            return
        checks = [configuration(common)]
        config = None if checks[0].grade == "fail" else common.load()
        if config is None:
            config = Config()
        _say(checks[0], output)
        for check in all_checks(config, quick):
            checks.append(check)
            _say(check, output)
        if planner is not None:
            checks.append(fitting(config.model, planner))
            _say(checks[-1], output)
        if not quick and wants_engine(config) and not any(check.grade == "fail" for check in checks):
            checks.append(run_stoppable(lambda stopper: trial(config, output, stopper)))
            _say(checks[-1], output)
        grade = worst(checks)
        if as_json:
            output.result({"grade": grade, "checks": [dataclasses.asdict(check) for check in checks]})
        else:
            output.people.print(_closing(checks))
    if grade == "fail":
        raise typer.Exit(1)


def configuration(common: Common) -> Check:
    """Check that the settings can be read."""
    try:
        config = common.load()
    except ConfigError as error:
        return Check("settings", "fail", str(error), "correct it there")
    return Check("settings", "ok", f"worker {config.worker}, {config.engines} engine{'s' * (config.engines > 1)}")


def fitting(model: str, planner: str) -> Check:
    """Check that the model's tokenizer and chat template are what a planner needs."""
    try:
        spec = Plugin.of(planner)
        trust(spec)
        warnings = preflight(Plugins().planner(spec), model)
    except PlaitError as error:
        return Check("planner", "fail", str(error), "see `plait plugins planners` for what there is")
    if warnings is None and importlib.util.find_spec("tokenizers") is None:
        return Check("planner", "warn", "the model's tokenizer was not looked at", "pip install 'plait[tokenizer]'")
    if warnings is None:
        return Check("planner", "ok", f"{spec.name} asks nothing of the model's tokenizer that could be looked at here")
    if warnings:
        return Check("planner", "warn", "; ".join(warnings), "take a model that was trained on this dialect")
    return Check("planner", "ok", f"the model's tokenizer and chat template are what {spec.name} needs")


async def trial(config: Config, output: Output, stopper: Stopper) -> Check:
    """Start the workers and have them generate something."""
    began = time.monotonic()
    config = fit_model(config)
    config = config.model_copy(update={"model": config.model})  # a bundled one can generate something, too
    try:
        async with opened_session(config, output, stopper, own_engine=True) as session:
            answer = await stopper.until(
                session.orchestrator.run(_PROMPT, task="plain", planner="single:answer.max_tokens=8")
            )
    except PlaitError as error:
        return Check("trial", "fail", f"the worker {config.worker} does not start: {error}", "see the checks above")
    seconds = time.monotonic() - began
    if answer.status != "done":
        why = answer.failure.message if answer.failure is not None else answer.status
        return Check("trial", "fail", f"started, but generates nothing: {why}", "see the checks above")
    text = f"the worker {config.worker} starts and generates ({answer.total_tokens} tokens, {seconds:.1f} s in all)"
    return Check("trial", "ok", text)


def worst(checks: Sequence[Check]) -> str:
    """Return the worst grade."""
    grades = {check.grade for check in checks}
    return next((grade for grade in ("fail", "warn") if grade in grades), "ok")


def _say(check: Check, output: Output) -> None:
    console = output.people
    line = Text.assemble(
        (f"{check.grade:<4}", _STYLES[check.grade]), "  ", (f"{check.name:<15}", "bold"), " ", check.found
    )
    console.print(line, soft_wrap=True)
    if check.remedy and check.grade != "ok":
        console.print(Text(f"{'':<22}→ {check.remedy}"), soft_wrap=True)


def _closing(checks: Sequence[Check]) -> str:
    counts = {grade: sum(check.grade == grade for check in checks) for grade in ("fail", "warn")}
    if not any(counts.values()):
        return "all is well"
    words = {"fail": "failed", "warn": "with a warning"}
    return ", ".join(f"{count} {words[grade]}" for grade, count in counts.items() if count)
