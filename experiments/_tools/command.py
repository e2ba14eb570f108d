"""The command of an experiment that runs on the bundled models: its options, and how it reports errors.

Decides which options all of them have. It does not know what an experiment asks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from plait.apps.common.guard import guarded
from plait.apps.common.options import Common, common_options
from plait.apps.common.output import cancellable, opened
from plait.runtime.client.config import Config

from .kept import EXPERIMENTS, Kept, kept_in, pack, put_page
from .machine import usable_cores

__all__ = ["Given", "command", "command_of", "given_of", "page_options"]


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller of an experiment gave."""

    out: Path
    """Folder of the page: `README.md`, and `data/` beside it."""
    records: Path
    """Folder of the runs; a later call resumes from it."""
    problems: int = 1000
    concurrency: int = 32
    only: tuple[str, ...] = ()
    """Conditions to run, with `*` as in the shell; empty: all."""
    size: str | None = None
    """Run only the conditions of this model of the family."""
    fresh: bool = False
    report: bool = False
    """Run nothing: write the page from what is there."""
    collect: bool = False
    """Write nothing: only run what is missing."""
    processes: int = 1
    common: Common = field(default_factory=Common)
    name: str = ""
    """Of the experiment."""

    def kept(self, name: str, seed: int) -> Path:
        """Return the file of rows: questions drawn with another seed than the page's have one of their own."""
        return self.records / (f"{name}.jsonl" if seed == 0 else f"{name}-{seed}.jsonl")

    def rows(self, kept: Path, stem: str = "rows") -> Kept:
        """Return the rows of a file, or, if it is missing, those of `data/STEM.jsonl.gz` beside the experiment."""
        return kept_in(kept, EXPERIMENTS / self.name / "data" / f"{stem}.jsonl.gz")

    def write(self, page: str, kept: Kept | None = None, stem: str = "README", rows: str = "rows") -> str:
        """Write the page with its remarks, and the rows it is made of as `data/ROWS.jsonl.gz`; return the page."""
        if kept is not None:
            pack(kept, self.out / "data" / f"{rows}.jsonl.gz")
        return put_page(page, kept or Kept(), self.out, self.name, stem)


def command(name: str, run: Callable[[Given], str], *, problems: int = 1000) -> None:
    """Read the command line of the experiment `name`, run it, print the page that it returns and end the process.

    `problems`: how many are run where the caller does not say it.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @common_options
    def main(
        out: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Where page, plots and data go; build/experiments/NAME if left out."),
        ] = None,
        records: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Where the runs are kept, to resume; OUT/records if left out."),
        ] = None,
        problems: Annotated[int, typer.Option(min=2, help="Held-out problems.")] = problems,
        concurrency: Annotated[int, typer.Option(min=1, help="Problems at the same time.")] = 32,
        only: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="Run only this condition (`*` as in the shell); repeatable."),
        ] = None,
        size: Annotated[
            Literal["small", "large"] | None,
            typer.Option(help="Run only the conditions of this model of the family."),
        ] = None,
        fresh: Annotated[bool, typer.Option("--fresh", help="Discard stored results and start over.")] = False,
        report: Annotated[
            bool, typer.Option("--report", help="Run nothing: write the page from what is there.")
        ] = False,
        collect: Annotated[bool, typer.Option("--collect", help="Write nothing: only run what is missing.")] = False,
        processes: Annotated[
            int | None, typer.Option(min=1, help="Processes that compute the page; one for each core if left out.")
        ] = None,
        *,
        common: Common,
    ) -> None:
        """Run an experiment end to end; a stopped one resumes where it stopped."""
        folder = out or Path("build/experiments") / name
        given = Given(
            out=folder,
            records=records or folder / "records",
            problems=problems,
            concurrency=concurrency,
            only=tuple(only or ()),
            size=size,
            fresh=fresh,
            report=report,
            collect=collect,
            processes=processes or usable_cores(),
            common=common,
            name=name,
        )
        page = run(given)
        with opened(False) as output:
            output.people.print(page, markup=False, soft_wrap=True)

    app.command()(cancellable(main))
    prog = f"python -m experiments {name}"
    sys.exit(guarded(lambda: app(prog_name=prog, standalone_mode=False), "--json" in sys.argv))


def command_of(study: str, config: Config, problems: int) -> str:
    """Return the command of a study that runs on engines or in plain torch."""
    seed = f" --seed {config.seed}" if config.seed else ""
    engine = " --worker engine" if config.worker == "engine" else ""
    return f"python -m experiments {study} --problems {problems}{seed}{engine}"


def page_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of an experiment that reads its own: where its page goes, and `--report`."""
    folder = Path("build/experiments") / name
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR", help="folder of the page and its rows")
    parser.add_argument("--report", action="store_true", help="run nothing: write the page from what is there")


def given_of(options: argparse.Namespace, name: str) -> Given:
    """Return the effective values of those options."""
    return Given(options.out, options.out / "records", report=options.report, name=name)
