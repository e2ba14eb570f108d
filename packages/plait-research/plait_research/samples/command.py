"""`plait learn import`: other people's recordings as samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from plait.apps.common.options import Json
from plait.apps.common.output import opened
from plait.core.errors import UsageError
from plait.core.messages import did_you_mean, pluralise

from .recordings import SOURCES, recorded_samples
from .sample import RecordedSample, write_samples


def import_samples(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=", ".join(SOURCES))],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files or folders as they are published.")],
    out: Annotated[Path, typer.Option(metavar="OUT.jsonl", help="Output file, one sample per line.")],
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Lines of `question` and `answer` for those without (atts)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read other people's recordings of their models, and write them as samples.

    A sample has the question, the answer as votes count it, the verdict, the tokens (estimated from the text where
    no count was recorded) and the text. `python -m experiments votes --from OUT.jsonl` compares ways to vote on them.
    """
    if source not in SOURCES:
        raise UsageError(
            f"there is no source {source!r}{did_you_mean(source, SOURCES)}: it is one of {', '.join(SOURCES)}"
        )
    samples: list[RecordedSample] = [sample for path in paths for sample in recorded_samples(source, path, answers)]
    write_samples(samples, out)
    judged = [sample for sample in samples if sample.right is not None]
    summary = {
        "samples": len(samples),
        "questions": len({sample.question for sample in samples}),
        "models": dict(Counter(sample.model for sample in samples)),
        "judged": len(judged),
        "right": sum(sample.right is True for sample in judged),
        "out": str(out),
    }
    with opened(as_json) as output:
        line = f"{out}: {pluralise(len(samples), 'sample')} of {pluralise(summary['questions'], 'question')}"
        output.report(summary, f"{line}, {summary['right']} right of {len(judged)} judged")
