"""`plait simulate calibrate`: fits the simulator to recorded runs, or to a short probe of the engine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from plait.apps.common.options import Common, Json, common_options
from plait.apps.common.output import Output, opened
from plait.apps.common.session import choose_model
from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.journal.code_trust import refuse_names
from plait.runtime.journal.directory import default_folder, entries

from .simulation.calibrate import RecordedAttempt, fit, recorded
from .simulation.engine_profile import EngineProfile, named_model, profile_file

_NEWEST = 5
"""Journals that are read where none is named."""
_LOTS = (*((width, False) for width in (1, 2, 4, 8, 32, 64, 16, 2)), *((width, True) for width in (4, 32, 8)))
"""Answers at the same time in a probe, one lot after another, and whether their text streams: that takes time too, and
most steps of a plan do not."""
_TOKENS = 64


@common_options
def calibrate(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Journals of runs of the model; by default the newest ones.")
    ] = None,
    probing: Annotated[bool, typer.Option("--probe", help="Measure some short answers on the engine first.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file for the profile.")] = None,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Fit the simulator to a model on this machine: seconds of a decoding step by the number of sequences, of a prompt
    token, of dispatch and abort, and lengths of steps. `plait simulate` uses the profile from then on.
    Example: `plait simulate calibrate --probe`."""
    config = choose_model(common.load()) if probing else common.load()
    model = named_model(config, "plain")
    with opened(as_json) as output:
        attempts, aborts = _attempts(config, files, probing)
        profile = fit(attempts, aborts, model=model)
        path = out or profile_file(model)
        profile.write(path)
        if as_json:
            figures = profile.model_dump(mode="json", exclude={"lengths"})
            output.result({**figures, "file": str(path)})
        else:
            _show(profile, path, output)


def _attempts(config: Config, files: Sequence[Path] | None, probing: bool) -> tuple[list[RecordedAttempt], list[float]]:
    attempts: list[RecordedAttempt] = []
    aborts: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = list(files or ())
        if probing:
            paths.append(Path(folder) / "probe.jsonl")
            asyncio.run(probe(config, paths[-1]))
        if not paths:
            place = config.journal if isinstance(config.journal, Path) else default_folder()
            there = entries(place, []) if place.exists() else []
            paths = list(dict.fromkeys(entry.path for entry in there if isinstance(entry.path, Path)))[:_NEWEST]
        if not paths:
            raise UsageError("no runs of this model are recorded: name journals, or give --probe")
        for at, path in enumerate(paths):
            refuse_names(path)
            attempts_there, stops = recorded(path)
            # workers of two journals are two workers: their times have nothing to do with one another
            attempts += [replace(attempt, worker=f"{at}:{attempt.worker}") for attempt in attempts_there]
            aborts += stops
    return attempts, aborts


async def probe(config: Config, journal: Path) -> None:
    """Run short answers on the engine, more and more at the same time, and write them down."""
    config = config.model_copy(update={"model": config.model, "journal": journal, "cache": None, "max_waiting": None})
    async with AsyncOrchestrator(config=config) as orchestrator:
        for lot, (width, streams) in enumerate(_LOTS):
            options = {"answer": {"max_tokens": _TOKENS, "temperature": 1.0, "stream": streams}}
            planner = Plugin(name="single", options=options)
            # of equal length in a lot: else each lot has the same context per sequence, and its cost cannot be measured
            texts = [f"{lot} {i}: {'What comes next? ' * (1, 12, 4)[lot % 3]}" for i in range(width)]
            runs = (
                orchestrator.run(text, task="plain", planner=planner, seed=i, budget=None)
                for i, text in enumerate(texts)
            )
            await asyncio.gather(*runs)


def _show(profile: EngineProfile, path: Path, output: Output) -> None:
    say = output.people.print
    say(f"{profile.model} on {profile.machine}, by {profile.attempts} recorded attempts", markup=False)
    say(
        f"a step: {profile.fixed * 1e3:.3g} ms and {profile.each * 1e3:.3g} ms for each sequence (up to "
        f"{profile.widest} were seen), {profile.streamed * 1e3:.3g} ms more for one that streams, "
        f"{profile.context * 1e6:.3g} µs for each token of context; "
        f"a prompt token: {profile.read * 1e6:.3g} µs; "
        f"dispatch {profile.dispatch * 1e3:.3g} ms, abort {profile.abort * 1e3:.3g} ms",
        markup=False,
    )
    say(f"attempts are predicted to {profile.error:.1%} (median); written to {path}", markup=False, soft_wrap=True)
