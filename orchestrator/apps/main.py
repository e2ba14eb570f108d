"""The command `plait`: puts the groups of commands together, and leaves with an exit code.

0: an answer; 1: none, or something is wrong; 2: the caller's mistake; 130: Ctrl-C. It knows no command: each group has
a module of its own. Nothing is imported before it is needed, so that `plait --help` is quick.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["build", "main", "run"]


def main() -> None:
    """Run the command that the process was started with, and leave with its exit code."""
    code = 130
    try:
        code = run(sys.argv[1:])
        # What is left to do is leaving: a Ctrl-C now should end the process at once, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # while our own modules were being loaded, or just now
        sys.stderr.write("cancelled\n")
    sys.exit(code)


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    from .common.output import guarded

    return guarded(lambda: build()(args=list(words), prog_name="plait", standalone_mode=False), "--json" in words)


def build() -> typer.Typer:
    """Return the application with all its commands."""
    import typer

    from .batch import command as batch
    from .commands import demo, eval as evaluate, names as listing, plan, replay, run as running, runs, simulate
    from .common.output import cancellable
    from .doctor import command as doctor
    from .jobs import command as jobs
    from .repl import cli as repl
    from .trace import command as trace
    from .viewer import command as view

    app = typer.Typer(
        name="plait",
        help="Braids parallel lines of model reasoning into one answer.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(listing.root)
    for name, command in {
        "demo": demo.demo,
        "run": running.run,
        "eval": evaluate.evaluate,
        "batch": batch.batch,
        "plan": plan.plan,
        "simulate": simulate.simulate,
        "replay": replay.replay,
        "view": view.view,
        "trace": trace.trace,
        "repl": repl.repl,
        "names": listing.names,
        "doctor": doctor.doctor,
        "version": listing.version,
    }.items():
        app.command(name)(cancellable(command))
    app.add_typer(jobs.group(), name="job")
    app.add_typer(runs.group(), name="runs")
    return app


if __name__ == "__main__":
    main()
