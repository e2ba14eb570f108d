"""A route among recorded models: `python -m experiments effort --from FILE`, samples of two models or more.

The first sample of a question by each model counts. A route is fitted to half of the questions and followed on the
other, both ways round, once where nothing is checked and once where wrong answers are noticed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from plait.core.errors import UsageError
from plait.core.ops import Plugin
from plait_research.route.fit import RouteRow
from plait_research.samples.recordings import RecordedSample

from .._tools.base import Findings
from .._tools.routes import choices
from .._tools.samples import read_samples

__all__ = ["main", "page_of", "rows_of"]

MILLION = 1_000_000


def rows_of(samples: Iterable[RecordedSample]) -> list[RouteRow]:
    """Return each model's result on each question that all of them answered: its first sample with a verdict. What
    it took are millionths of a dollar where every sample says its cost, else tokens."""
    first: dict[str, dict[str, RecordedSample]] = {}
    for sample in samples:
        if sample.right is not None and (sample.cost is not None or sample.tokens is not None):
            first.setdefault(sample.question, {}).setdefault(sample.model, sample)
    models = {model for by_model in first.values() for model in by_model}
    whole = {text: by_model for text, by_model in first.items() if by_model.keys() == models}
    priced = all(sample.cost is not None for by_model in whole.values() for sample in by_model.values())
    return [
        RouteRow(text, Plugin(name="single", options={"model": model}), float(sample.right is True),
                 MILLION * (sample.cost or 0.0) if priced else float(sample.tokens or 0))
        for text, by_model in whole.items() for model, sample in by_model.items()
    ]  # fmt: skip


def page_of(path: Path) -> str:
    """Return a page in Markdown. Raises `UsageError` where there is nothing to choose among."""
    rows = rows_of(read_samples(path))
    models, texts = {str(row.planner.options["model"]) for row in rows}, {row.text for row in rows}
    if len(models) < 2 or len(texts) < 4:
        raise UsageError(
            f"{path} has {len(texts)} questions that {len(models)} models answered, with verdict and tokens or cost: a "
            "route needs 4 questions and 2 models or more"
        )
    found = Findings()
    for checked in (False, True):
        choices(found, "recorded", f"models of {path.name}", rows, checked)
    lines = [f"# Routes on {path.name}", "", f"{len(texts)} questions, {len(models)} models."]
    for table in found.tables:
        lines += ["", f"## {table.title}", "", f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
        lines += [*(f"| {' | '.join(row)} |" for row in table.rows), "", table.note]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the file and print the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments effort", description=__doc__)
    parser.add_argument("--from", type=Path, required=True, dest="file", metavar="FILE", help="samples, one a line")
    print(page_of(parser.parse_args().file))
