"""The command `plait`: the table of its commands, and the exit code that the process leaves with.

Exit codes: 0: an answer; 1: none, or something is wrong; 2: the caller's mistake; 130: Ctrl-C. The module of a command
is imported when that command is called, so that `plait --help` is quick.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .common.guard import guarded
from .common.output import cancellable

__all__ = ["COMMANDS", "build", "check_words", "main", "run"]

COMMANDS = {
    "demo": (
        ".commands.demo",
        "demo",
        "Solve puzzles by threads, answer questions by plans of tool calls, split a request.",
    ),
    "run": (".commands.run", "run", "Solve one request: plan it, run it, print the answer and what it took."),
    "eval": (".commands.eval", "evaluate", "Solve many problems and count how many are right."),
    "compare": (".commands.compare", "compare", "Compare saved results of several planners on the same problems."),
    "batch": (".batch.command", "batch", "Run every row of a file; killed, it goes on where it was."),
    "rollouts": (
        ".rollouts.command",
        "rollouts",
        "Run prompts many times and write token-exact records for training; killed, it goes on.",
    ),
    "learn": (".learn.command", "app", "Learn from runs: which strategy, which prompt text; with versions to undo."),
    "route": (".route.command", "app", "Learn from runs which planner a request is worth, for the planner auto."),
    "plan": (".commands.plan", "plan", "Show the first plan for a request: steps by wave, width, critical path."),
    "simulate": (".commands.simulate", "simulate", "Run a plan in virtual time and compare policies."),
    "tune": (".commands.tune", "tune", "Choose engines, slots, policy and width for a workload, by simulation."),
    "calibrate": (".commands.calibrate", "calibrate", "Fit the simulator to a model on this machine."),
    "replay": (".commands.replay", "replay", "Feed a journal's events to a new machine and compare what it does."),
    "view": (".viewer.command", "view", "Write the pictures of a run into one HTML file."),
    "trace": (".trace.command", "trace", "Write a run as a Chrome trace, as OpenTelemetry spans or as plain JSON."),
    "repl": (".repl.cli", "repl", "Talk to a model and a planner, and watch the branches."),
    "names": (".commands.names", "names", "List planners, policies, merges, tasks and workers."),
    "doctor": (".doctor.command", "doctor", "Check this installation, and say what is wrong and what to do."),
    "version": (".commands.names", "version", "Print the versions of plait and of the libraries below it."),
    "ctl": (".control.command", "app", "List, watch and steer running runs of this host."),
    "top": (".control.top", "top", "Show all running runs of this host, live."),
    "serve": (".serve.command", "serve", "Serve the OpenAI API, answered by planners."),
    "mcp": (".mcp.command", "mcp", "Offer plait as tools of the Model Context Protocol."),
    "job": (".jobs.command", "app", "Run plait commands as jobs on a Ray cluster."),
    "questions": (".commands.questions", "questions", "List what tools ask people, and answer it, in any process."),
    "runs": (".commands.runs", "app", "List, show, resume and delete the runs that were written down."),
}
"""Name of a command: its module, the function (or group of commands) there, and what `plait --help` says of it."""


class _Unloaded(TyperCommand):
    """A command as the list of commands shows it; its module is not imported yet."""

    def loaded(self) -> Any:
        """Import the module and return the command itself."""
        assert self.name is not None
        module, attribute, _ = COMMANDS[self.name]
        found = getattr(importlib.import_module(module, __package__), attribute)
        if not isinstance(found, typer.Typer):
            single = _new_app()
            single.command(self.name)(cancellable(found))
            found = single
        command = typer.main.get_command(found)
        command.name = self.name
        return command


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the words name, and the words after it."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, _Unloaded):
            command = command.loaded()
        return name, command, rest

    def load_all(self) -> None:
        """Import every command, for a listing of all their options."""
        for name, command in self.commands.items():
            if isinstance(command, _Unloaded):
                self.commands[name] = command.loaded()


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
    command = build()
    return guarded(lambda: command.main(list(words), prog_name="plait", standalone_mode=False), "--json" in words)


def check_words(words: Sequence[str]) -> None:
    """Raise what the words of a command get wrong (its name, an option, a number), and run nothing."""
    if not {"-h", "--help", "--version"} & set(words):
        group = build()
        context = typer.Context(group, info_name="plait")
        name, command, rest = group.resolve_command(context, list(words))
        command.make_context(name, rest, parent=context)


def build() -> LazyGroup:
    """Return the group of all commands."""
    app = _new_app(cls=LazyGroup)
    app.callback()(_root)
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    for name, (_, _, about) in COMMANDS.items():
        group.add_command(_Unloaded(name, help=about))
    return group


def _new_app(**options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"plait {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Braids parallel lines of model reasoning into one answer.

    Try `plait demo`, then `plait run "3 5 7 11 -> 24" --task countdown --planner threads -v`.
    """


if __name__ == "__main__":
    main()
