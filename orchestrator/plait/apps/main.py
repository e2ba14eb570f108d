"""The command `plait`: how its commands are found (command_table.py), and the exit code of the process.

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
from ..distributions import CONTENTS, explain_missing
from .command_table import all_commands, all_families
from .common.guard import guarded
from .common.output import SECOND_WORD, cancellable

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
        function = getattr(importlib.import_module(self._module), self._attribute)
        single.command(self.name, context_settings=free)(cancellable(function))
        command = typer.main.get_command(single)
        command.name = self.name
        more = [words for group in all_commands().values() for words in group if words.startswith(f"{self._words} ")]
        if more:
            command.epilog = f"See also: {', '.join(f'plait {words}' for words in more)}."
        return command


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is called."""

    default: TyperCommand | None = None
    """What its name alone is."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the words name, and the words after it."""
        if ctx.parent is None and args:
            self._refuse_missing(ctx, args)
            longer = [name for rows in all_commands().values() for name in rows if name.split()[1:] == args[:1]]
            if args[0] not in self.commands and longer:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {longer[0]!r}?")
        name, command, rest = super().resolve_command(ctx, args)
        if (
            isinstance(command, LazyGroup)
            and command.default is not None
            and (not rest or rest[0] not in command.commands)
        ):
            ctx.meta[SECOND_WORD] = (rest[0] if rest else "", list(command.commands))
            command = command.default
        return name, command.loaded() if isinstance(command, _LazyCommand) else command, rest

    def _refuse_missing(self, ctx: Any, args: list[str]) -> None:
        """Fail for a command, or the first word of commands, of a distribution that is not installed."""
        known = {words for rows in all_commands().values() for words in rows}
        missing = [words for kinds in CONTENTS.values() for words in kinds.get("command", ()) if words not in known]
        for words in (" ".join(args[:2]), args[0]):
            if words in missing:
                ctx.fail(explain_missing("command", words) or "")
        family = [words for words in missing if words.startswith(f"{args[0]} ")]
        if family and args[0] not in self.commands:
            ctx.fail(explain_missing("command", family[0]) or "")

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
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
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
    for panel, commands in all_commands().items():
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
    about = there.help if there is not None else all_families()[name]
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
