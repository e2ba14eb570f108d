"""Commands of the REPL: view, replay, history, save, load, clear, help, quit."""

from __future__ import annotations

import asyncio
import json
import webbrowser
from pathlib import Path

from ....core.errors import UsageError
from ....core.messages import pluralise
from ....runtime.journal.directory import place
from ....runtime.journal.location import Location
from ....runtime.journal.replay import replay
from ....runtime.plugins.loader import Plugins
from ....runtime.plugins.trust import refuse
from ...commands.replay import describe_report
from ...commands.run import worded
from ...common.files import write_private
from ...common.journals import journal_of
from ...trace.read import default_name, read_trace
from ...viewer.page import page
from ..conversation import Repl
from ..registry import COMMANDS, command, find, path_of, take_flags
from ..state import ReplTurn, as_markdown, dump, load
from ..view import Text

__all__: list[str] = []


# -- what was recorded -----------------------------------------------------------------------------------------------


@command("view", "[RUN] [--out FILE.html] [--open]", "Write a run's picture as one HTML file.", "turn")
async def _view(repl: Repl, rest: str) -> None:
    flags, words = take_flags(rest, ("--open",))
    out: Path | None = None
    if "--out" in words:
        words, _, name = words.partition("--out")
        out = path_of(name.strip("= "))
    turn = repl.turn_of(words.strip())
    if turn.answer is None:
        raise UsageError("that run is not over: /view it when it is")
    journal, run = _recorded(repl, turn)
    trace = await asyncio.to_thread(read_trace, journal, Plugins(), run)
    out = out or Path(default_name(trace, ".html"))
    try:
        write_private(out, page(trace).encode())
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror})") from None
    repl.screen.print(f"{out}: run {run}, {pluralise(len(trace.steps), 'step')}")
    if "--open" in flags:
        webbrowser.open(out.absolute().as_uri())


def _recorded(repl: Repl, turn: ReplTurn) -> tuple[Location, str]:
    """Return the journal that holds a turn's run. Raises `UsageError`."""
    if repl.session.config.journal == "off":
        raise UsageError("nothing of this session is written down (journal=off): start it with --journal FILE")
    journal = repl.session.config.journal
    if isinstance(journal, Path) and journal.is_file():
        return journal, turn.run
    path, run = journal_of(turn.run, place(repl.session.config))
    return path, run or turn.run


@command("replay", "[FILE]", "Feed the journal to a new machine and compare what it does.", "file")
async def _replay(repl: Repl, rest: str) -> None:
    path = path_of(rest) if rest else _recorded(repl, repl.turn_of(""))[0]
    if isinstance(path, Path) and not path.is_file():
        raise UsageError(f"there is no journal {path}: give a file, or nothing for this session's own")
    report = await asyncio.to_thread(replay, path, Plugins())
    for line in describe_report(report):
        repl.screen.print(line, style="red" if line.startswith("diverged") else None)
    if report.divergence is not None:
        raise UsageError(f"{path} does not replay: a policy or merge is not pure, or the code has changed since")


# -- the conversation ------------------------------------------------------------------------------------------------


@command("history", "[N]", "The questions so far, and how each ended (/branches N shows one).")
async def _history(repl: Repl, rest: str) -> None:
    turns = list(enumerate(repl.session.turns, 1))
    if rest:
        if not rest.isdecimal():
            raise UsageError(f"{rest!r} is no number: /history 5 shows the last five")
        turns = turns[-int(rest) :] if int(rest) else []
    here = repl.session.conversation
    numbers = {id(turn): number for number, turn in enumerate(repl.session.turns, 1)}
    if not turns:
        repl.screen.print("nothing has been asked yet")
    for number, turn in turns:
        answer = turn.answer
        end = "" if answer is None else f"{answer.status}, {answer.total_tokens} tok, {answer.seconds:.1f} s"
        sign = "*" if any(turn is other for other in here) else " "
        before = numbers.get(id(turn.before), number - 1)
        fork = "" if before == number - 1 else f"after {before}  "
        head = Text.assemble(f"{number:>3}{sign} ", (f"{turn.run:<8}  {end:<28}  {fork}", "dim"), turn.title)
        head.no_wrap, head.overflow = True, "ellipsis"
        repl.screen.print(head)


@command("save", "FILE.md|FILE.json", "Write the conversation, for people or to be loaded again.", "file")
async def _save(repl: Repl, rest: str) -> None:
    if not rest:
        raise UsageError("/save needs a file: /save talk.md, or /save talk.json to load it again")
    path = path_of(rest)
    turns = repl.session.turns
    if path.suffix == ".json":
        text = dump(turns, repl.session.manner, repl.session.head)
    elif path.suffix in (".md", ".markdown", ".txt", ""):
        words = [
            (worded(turn.answer, turn.question, turn.task) or f"no answer ({turn.answer.status})")
            if turn.answer
            else ""
            for turn in turns
        ]
        text = as_markdown(turns, repl.model, words)
    else:
        raise UsageError(f"{path.name}: conversations are written as .md or .json")
    try:
        write_private(path, text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from None
    repl.screen.print(f"{pluralise(len(turns), 'question')} written to {path}")


@command("load", "FILE.json", "Take up a conversation that /save wrote, with its settings.", "file", idle=True)
async def _load(repl: Repl, rest: str) -> None:
    if not rest:
        raise UsageError("/load needs a file that /save wrote: /load talk.json")
    path = path_of(rest)
    turns, manner, head = load(path)
    request = manner.request
    refuse(path.name, request.task, request.planner, request.merge, *request.policies)
    repl.session.turns[:] = turns
    repl.session.manner, repl.session.head = manner, head
    repl.renamed()
    repl.screen.print(
        f"{pluralise(len(turns), 'question')} loaded; settings: {json.dumps(manner.written(), ensure_ascii=False)}"
    )


@command("clear", "", "Forget the conversation and clear the screen.", idle=True)
async def _clear(repl: Repl, rest: str) -> None:
    repl.session.turns.clear()
    repl.session.head = None
    repl.renamed()
    repl.clear()


@command("help", "[COMMAND]", "This list, or more of one command.", "command")
async def _help(repl: Repl, rest: str) -> None:
    if rest:
        command = find(rest.lstrip("/"))
        repl.screen.print(f"/{command.name} {command.usage}".rstrip())
        repl.screen.print(command.about)
        return
    repl.screen.print("Anything else is a question; begin it with a space if it begins with / or !.", style="dim")
    for command in COMMANDS.values():
        line = Text.assemble((f"/{command.name:<9}", "bold"), command.about)
        line.no_wrap, line.overflow = True, "ellipsis"
        repl.screen.print(line)
    line = Text.assemble(
        (f"{'!python':<10}", "bold"), "Run Python, await and all; it has orchestrator, answer and answers."
    )
    repl.screen.print(line)
    if repl.screen.styled:
        repl.screen.print(
            "Esc Enter, an open bracket or a \\ at the end begins a new line; Ctrl-C gives up the run; Ctrl-D leaves.",
            style="dim",
        )


@command("quit", "", "Leave.")
async def _quit(repl: Repl, rest: str) -> None:
    repl.over = True
