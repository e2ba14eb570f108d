"""Stop rules on samples of anybody's model: `python -m experiments votes --from FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from plait.core.errors import UsageError

from .._tools.samples import questions, read_samples
from .._tools.statistics import mean, share
from .._tools.ways import COLUMNS, FULL, HALVES, WAYS, chosen, voted

__all__ = ["main", "page_of"]


def page_of(path: Path) -> str:
    """Return a page in Markdown. Raises `UsageError` where there is nothing to vote on."""
    found = questions(read_samples(path))
    if len(found) < 2:
        raise UsageError(f"{path} has {len(found)} questions whose samples have verdict and length: it needs 2 or more")
    votes = {way.key: voted(way, found) for way in WAYS}
    single = mean([sum(each in q.right for each in q.answers) / len(q.answers) for q in found])
    full = share([float(each) for each in votes[FULL.key]["right"]])
    samples = sum(len(each.answers) for each in found)
    rows = [way.cells(family) for family, way in chosen(votes, found)]
    lines = [
        f"# Stop rules on {path.name}", "",
        f"{len(found)} questions, {samples} samples. One sample is right in {single.percent()}, a vote of all in "
        f"{full.percent()}. {HALVES}", "",
        "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the file and print the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments votes", description=__doc__)
    parser.add_argument(
        "--from", type=Path, required=True, dest="file", metavar="FILE",
        help="samples, as `plait runs export --format samples` and `experiments._tools.recordings` write them",
    )  # fmt: skip
    print(page_of(parser.parse_args().file))
