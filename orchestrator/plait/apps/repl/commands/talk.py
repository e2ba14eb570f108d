"""Commands of the REPL for the conversation: talk, system, attach, agent, approve, edit, fork, cost."""

from __future__ import annotations

import importlib
from pathlib import Path

from ....core.errors import PlaitError, UsageError
from ....core.flow import Flow
from ....core.messages import did_you_mean, pluralise
from ....runtime.plugins.trust import own_code
from ..attachments import attachment
from ..conversation import Repl
from ..registry import command, cut_words, path_of

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
    if turn.planned:
        raise UsageError(f"question {number} is a plan from a file: /run --plan FILE runs another")
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
