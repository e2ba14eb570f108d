"""Commands of the REPL for the conversation: talk, system, attach, agent, approve, edit, fork, cost, view, history,
save, load, clear, help, quit."""

from __future__ import annotations

import asyncio
import importlib
import json
import webbrowser
from pathlib import Path

from ....core.errors import PlaitError, UsageError
from ....core.flow import Flow
from ....core.messages import did_you_mean, pluralise
from ....runtime.journal.directory import place
from ....runtime.journal.location import Location
from ....runtime.plugins.loader import Plugins
from ....runtime.plugins.spec import own_code, refuse
from ...commands.run import worded
from ...common.files import write_private
from ...common.journals import journal_of
from ...trace.read import default_name, read_trace
from ...viewer.page import page
from ..attachments import attachment
from ..conversation import Repl
from ..registry import COMMANDS, command, cut_words, find, path_of, take_flags
from ..state import ReplTurn, as_markdown, dump, load
from ..view import Text

__all__: list[str] = []


@command("talk", "[on | off | new]", "Keep or drop the conversation; `new` starts another.", idle=True)
async def _talk(repl: Repl, rest: str) -> None:
    session = repl.session
    match rest:
        case "on" | "off":
            session.manner.talk = rest == "on"
        case "new":
            session.head = None
        case "":
            pass
        case _:
            raise UsageError(f"{rest!r} is not on, off or new{did_you_mean(rest, ('on', 'off', 'new'))}")
    if not session.manner.talking:
        repl.screen.print("talk: off, each question stands by itself")
    else:
        repl.screen.print(f"talk: on, {pluralise(len(session.conversation), 'question')} so far")


@command("system", "[TEXT | none]", "System message before the conversation.", "text")
async def _system(repl: Repl, rest: str) -> None:
    if rest:
        repl.session.manner.system = "" if rest == "none" else rest
    repl.screen.print(f"system: {repl.session.manner.system or 'nothing'}")


@command("attach", "[FILE | none]", "Send a file with the next question: a text or an image.", "file", idle=True)
async def _attach(repl: Repl, rest: str) -> None:
    session = repl.session
    if rest == "none":
        session.attached = []
    elif rest:
        session.attached = [*session.attached, attachment(path_of(rest))]
    shown = ", ".join(attachment.about for attachment in session.attached)
    repl.screen.print(f"attached to the next question: {shown or 'nothing'}")


@command("agent", "[FILE.py:NAME | none]", "Have an agent of a Python file answer.", "file", idle=True)
async def _agent(repl: Repl, rest: str) -> None:
    session = repl.session
    if rest == "none":
        session.agent = None
    elif rest:
        session.agent = _loaded(rest)
    repl.screen.print(f"agent: {_named(session.agent) if session.agent is not None else 'none, the planner answers'}")


def _loaded(spec: str) -> Flow:
    """Return a file's agent with a given name, or the file's only agent. Raises `UsageError`."""
    file, colon, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if not file.endswith(".py"):
        raise UsageError(f"{spec!r} names no agent: give FILE.py:NAME, a file with `NAME = Agent(name=…)`")
    address = own_code(f"{file}:{name or 'agent'}")
    module = importlib.import_module(address.partition(":")[0])
    there = {key: value for key, value in vars(module).items() if isinstance(value, Flow)}
    listed = ", ".join(there) or "none"
    if not colon:
        if len(there) != 1:
            raise UsageError(f"{Path(file).name} has {pluralise(len(there), 'agent')} ({listed}): give {file}:NAME")
        return next(iter(there.values()))
    if name not in there:
        raise UsageError(f"{Path(file).name} has no agent {name!r}{did_you_mean(name, there)} (there are: {listed})")
    return there[name]


def _named(agent: Flow) -> str:
    about = getattr(agent, "description", "")
    return f"{getattr(agent, 'name', type(agent).__name__)}{': ' if about else ''}{about}"


@command("approve", "[TOOL … | all | side-effects | none]", "Which calls wait until you allow them.", "text")
async def _approve(repl: Repl, rest: str) -> None:
    manner = repl.session.manner
    if rest == "none":
        manner.set("approve", None)
    elif rest:
        before = manner.given("approve")
        manner.set("approve", cut_words(rest.replace(",", " ")))
        try:
            repl.session.plan("?")
        except UsageError as error:
            if error.param == "approve":
                manner.set("approve", before)
                raise
        except PlaitError:
            pass  # the next question reports other errors
    repl.screen.print(
        f"approve: {', '.join(manner.request.approve) or 'none, except tools that ask for it themselves'}"
    )


@command(
    "edit", "[N] TEXT", "Ask TEXT in place of question N (the last): a fork of the conversation.", "text", idle=True
)
async def _edit(repl: Repl, rest: str) -> None:
    session = repl.session
    number, text = _numbered(repl, rest)
    if not text:
        raise UsageError("/edit needs the new question: /edit 2 And in winter?")
    turn = session.turns[number - 1]
    session.head = turn.before
    session.attached = session.attached or list(turn.attached)
    await repl.ask(text)


@command("fork", "[N]", "Continue after question N; later questions stay in /history.", "turn", idle=True)
async def _fork(repl: Repl, rest: str) -> None:
    number, text = _numbered(repl, rest)
    if text:
        raise UsageError(f"{text!r} is not the number of a question: /history lists them")
    turn = repl.session.turns[number - 1]
    if turn.answer is None or turn.answer.value is None:
        raise UsageError(f"question {number} has no answer to continue from: /edit {number} TEXT asks it again")
    repl.session.head = turn
    repl.screen.print(f"the next question continues after {number}: {turn.title}", style="dim")


def _numbered(repl: Repl, rest: str) -> tuple[int, str]:
    """Return a question's number (the last one's if none is given) and the text after it. Raises `UsageError`."""
    count = len(repl.session.turns)
    if not count:
        raise UsageError("nothing has been asked yet")
    word, _, text = rest.partition(" ")
    if not word.isdecimal():
        head = repl.session.head
        return next((at for at, turn in enumerate(repl.session.turns, 1) if turn is head), count), rest
    if not 1 <= int(word) <= count:
        raise UsageError(f"there is no question {word}: /history lists {pluralise(count, 'question')}")
    return int(word), text.strip()


@command("cost", "", "What all questions so far took.")
async def _cost(repl: Repl, rest: str) -> None:
    repl.screen.print(repl.session.cost or "nothing has been asked yet")


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
    repl.screen.print(
        f"{pluralise(len(turns), 'question')} loaded; settings: {json.dumps(manner.written(), ensure_ascii=False)}"
    )


@command("clear", "", "Forget the conversation and clear the screen.", idle=True)
async def _clear(repl: Repl, rest: str) -> None:
    repl.session.turns.clear()
    repl.session.head = None
    repl.clear()


@command("help", "[COMMAND]", "This list, or more of one command.", "command")
async def _help(repl: Repl, rest: str) -> None:
    if rest:
        command = find(rest.lstrip("/"))
        repl.screen.print(f"/{command.name} {command.usage}".rstrip())
        repl.screen.print(command.about)
        return
    repl.screen.print("Anything else is a question; begin it with a space if it begins with /.", style="dim")
    for command in COMMANDS.values():
        line = Text.assemble((f"/{command.name:<9}", "bold"), command.about)
        line.no_wrap, line.overflow = True, "ellipsis"
        repl.screen.print(line)
    if repl.screen.styled:
        repl.screen.print(
            "Esc Enter, an open bracket or a \\ at the end begins a new line; Ctrl-C gives up the run; Ctrl-D leaves.",
            style="dim",
        )


@command("quit", "", "Leave.")
async def _quit(repl: Repl, rest: str) -> None:
    repl.over = True
