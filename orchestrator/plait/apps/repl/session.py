"""One session of the REPL: its workers, its settings, its conversation, and the running run."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ...core.chat import Message
from ...core.errors import ConfigError, UsageError
from ...core.flow import Flow
from ...core.messages import pluralise
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.request import Request
from ...core.result import Usage
from ...core.tools.context import Question
from ...runtime.client.answer import Answer, RunEvent
from ...runtime.client.client import AsyncOrchestrator, Handle
from ...runtime.client.config import BUNDLED_MODEL, Config
from ...runtime.client.models import CHAT, NO_MODEL, fetched
from ...runtime.control.verbs import Verb
from ...runtime.plugins.loader import Plugins
from ..common.session import engine_name
from ..models.standing import joined
from .attachments import Attachment, message_of
from .state import Manner, ReplTurn

_OWN = ("ray", "engine")
"""Workers that load a model themselves."""


@dataclass(slots=True)
class Open:
    """A question of a tool, and the answer to come."""

    question: Question
    answer: asyncio.Future[JsonValue]


class GivenUp(Exception):
    """The user gave a question up before anything of it ran."""


def state_dir() -> Path:
    """Return the folder for the REPL's files, by the XDG Base Directory Specification. A missing one is created."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore relative paths.
    home = Path(base) if base and Path(base).is_absolute() else Path("~/.local/state").expanduser()
    path = home / "plait"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


class ReplSession:
    """The state for commands and questions.

    The orchestrator is started once and kept; `swap` closes it and makes another. Only one run is running at a time.
    """

    def __init__(self, config: Config, manner: Manner | None = None) -> None:
        self.manner = manner or Manner()
        self.turns: list[ReplTurn] = []
        self.head: ReplTurn | None = None
        """The turn that the next question continues; `None` for a new conversation."""
        self.agent: Flow | None = None
        """The agent that answers in place of a named planner."""
        self.attached: list[Attachment] = []
        """Attachments of the next question."""
        self.current: ReplTurn | None = None
        """The running turn."""
        self.paused = False
        self.watch: Callable[[RunEvent | None], object] = lambda news: None
        """Called with each run event, and with `None` after any other change."""
        self.questions: list[Open] = []
        """The open questions of tools, oldest first."""
        self._handle: Handle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._began = 0.0
        self._stop = asyncio.Event()
        self._orchestrator: AsyncOrchestrator | None = None
        self._joined = False
        self.config = config
        self._named = "model" in config.model_fields_set or config.worker not in _OWN
        self._fit()

    # -- the engine --------------------------------------------------------------------------------------------------

    @property
    def orchestrator(self) -> AsyncOrchestrator:
        """The orchestrator of this session, started or not."""
        if self._orchestrator is None:
            config, engine = joined(self.config)
            self._joined = engine is not None
            self._orchestrator = AsyncOrchestrator(config=config, on_ask=self._put, control=True)
        return self._orchestrator

    @property
    def plugins(self) -> Plugins:
        """Plugins by name."""
        return self.orchestrator.plugins

    @property
    def engine_name(self) -> str:
        """Description of the worker that runs the model."""
        return "the engine that is up" if self._joined else engine_name(self.config)

    @property
    def started(self) -> bool:
        """Whether workers have started or are starting."""
        return self._starting is not None

    @property
    def waited(self) -> float | None:
        """Seconds that the workers have been starting for, or `None` if nothing is starting."""
        if self._starting is None or self._starting.done():
            return None
        return time.monotonic() - self._began

    def warm_up(self) -> asyncio.Task[None]:
        """Start the workers unless they are started, and return the task that ends when they are ready.

        It raises what `AsyncOrchestrator.start` raises; a later call then tries again.
        """
        task = self._starting
        if task is not None and (not task.done() or (not task.cancelled() and task.exception() is None)):
            return task
        self._began = time.monotonic()
        self._starting = asyncio.ensure_future(self._start())
        self._starting.add_done_callback(self._started)
        return self._starting

    async def _start(self) -> None:
        if self.lacks_model:
            raise ConfigError(NO_MODEL)
        await self.orchestrator.start()

    @property
    def lacks_model(self) -> bool:
        """Whether the next question has no model: the user named none, and none for its kind is installed."""
        return not self._named and self.manner.request.task.name != "countdown" and fetched(CHAT) is None

    def _started(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # the next question raises the error again
        self.watch(None)

    def _fit(self) -> bool:
        """Choose the model for questions if the user named none: a bundled model for puzzles, a fetched chat model for
        plain questions. Return whether the model has changed."""
        if self._named:
            return False
        wanted = BUNDLED_MODEL if self.manner.request.task.name == "countdown" else fetched(CHAT)
        changed = wanted is not None and self.config.model != str(wanted)
        if changed:
            self.config = self.config.model_copy(update={"model": str(wanted)})
        return changed

    def _planner(self) -> Plugin:
        return self.manner.given("planner") or self.config.planner

    async def fit(self) -> None:
        """Close the workers if the next question needs another model than the running one. Raises `ConfigError` without
        a model."""
        if self.lacks_model:
            raise ConfigError(NO_MODEL)
        if self._fit():
            await self._close_engine()

    async def swap(self, **settings: Any) -> None:
        """Close the workers and create new ones with these settings; the new workers start on first use.

        Raises `ValidationError` or `PluginError` for invalid settings, and then keeps the workers.
        """
        kept = self.config.model_dump(exclude_unset=True, exclude=None if self._named else {"model"})
        changed = kept | settings
        given = Config(**{key: value for key, value in changed.items() if value is not None})
        AsyncOrchestrator(config=given)
        await self._close_engine()
        self.config = given
        self._named = "model" in given.model_fields_set or given.worker not in _OWN
        self._fit()

    async def _close_engine(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        orchestrator, self._orchestrator = self._orchestrator, None
        if orchestrator is not None:
            await orchestrator.close()

    async def close(self) -> None:
        """Cancel the run and free the engine. May be called twice."""
        self.cancel()
        await self._close_engine()

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, text: str) -> Request:
        """Return a question's request: the session's fields, the earlier conversation, the attachments, and streamed
        text if the planner allows it. Raises `UsageError`."""
        request, fields = self.manner.request, dict[str, Any]()
        before = self.head.messages if self.head is not None and self.manner.talking else []
        if self.manner.system:
            before = [Message(role="system", content=self.manner.system), *before]
        message = message_of(text, self.attached)
        if message is not None:
            text = message.content if isinstance(message.content, str) else ""
            before = before if text else [*before, message]
        if before:
            fields["messages"] = before
        if self.agent is None:
            planner = self._planner()
            cls: Any = self.plugins.class_of("planner", planner.name)
            given: dict[str, Any] = planner.options
            streams = {name: {"stream": True, **given.get(name, {})} for name in cls.says_answer()}
            fields["planner"] = Plugin(name=planner.name, options={**given, **streams})
        return request.updated({"text": text, **fields})

    def _own(self) -> dict[str, Any]:
        """Return who answers, in place of a planner by name."""
        return {} if self.agent is None else {"planner": self.agent}

    def plan(self, text: str) -> Plan:
        """Return the first plan for a question, and run nothing. Raises `UsageError`s."""
        return self.orchestrator.plan(self.request(text), **self._own())

    async def ask(self, text: str) -> ReplTurn:
        """Ask a question, follow its run to the end and return its turn.

        Raises `UsageError` for a question that cannot be run, `WorkerError` for workers that cannot start, `GivenUp`.
        """
        self._stop.clear()
        await self.fit()
        request, own = self.request(text), self._own()
        self.orchestrator.plan(request, **own)  # an invalid question needs no engine
        turn = ReplTurn(text, self._written(), said=message_of(text, self.attached), attached=self.attached)
        turn.before = self.head if self.manner.talking else None
        try:
            await self._warm()
            self._handle = handle = await self.orchestrator.submit(request, watch=True, **own)
            self.attached = []
            turn.run, self.current, self.paused = handle.run, turn, False
            if self._stop.is_set():
                handle.cancel()
            async for news in handle.news():
                turn.take(news)
                self.watch(news)
            self.turns.append(turn)
            if turn.answer is not None and turn.answer.value is not None:
                self.head = turn
            return turn
        finally:
            self._handle, self.current, self.paused = None, None, False
            self.watch(None)

    def _written(self) -> dict[str, JsonValue]:
        written = self.manner.written()
        return written if self.agent is None else {**written, "agent": getattr(self.agent, "name", "a flow")}

    async def _warm(self) -> None:
        """Wait for the workers. They continue to start if the waiting question is cancelled."""
        starting, stop = self.warm_up(), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if self._stop.is_set():
            raise GivenUp
        await starting

    @property
    def busy(self) -> bool:
        """Whether a run is running."""
        return self._handle is not None

    def cancel(self) -> None:
        """Cancel the running run, or the wait for the engine."""
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    async def _put(self, question: Question) -> JsonValue:
        """Have a tool's question wait for `reply`."""
        asked = Open(question, asyncio.get_running_loop().create_future())
        self.questions.append(asked)
        self.watch(None)
        try:
            return await asked.answer
        finally:
            self.questions.remove(asked)
            self.watch(None)

    def reply(self, text: str) -> None:
        """Answer the oldest question of a tool. Raises `Unanswered` for an answer outside its choices."""
        asked = self.questions[0]
        value = asked.question.check(text)
        if not asked.answer.done():
            asked.answer.set_result(value)

    def steer(self, verb: Verb, **given: str) -> Any:
        """Apply a verb of the table to the running run, and return its effect. Raises `UsageError` if no run is running
        or the arguments are invalid."""
        if self._handle is None:
            raise UsageError(f"nothing runs that could be {verb.past}")
        done = verb.do(self._handle, **given)
        self.paused = self._handle.paused
        self.watch(None)
        return done

    # -- what was said -----------------------------------------------------------------------------------------------

    @property
    def answers(self) -> list[Answer]:
        """All answers so far."""
        return [turn.answer for turn in self.turns if turn.answer is not None]

    @property
    def usage(self) -> Usage:
        """What all questions so far took."""
        return functools.reduce(operator.add, (answer.usage for answer in self.answers), Usage())

    @property
    def cost(self) -> str:
        """The cost as a text; empty before the first answer."""
        answers, usage = self.answers, self.usage
        if not answers:
            return ""
        parts = [pluralise(len(answers), "question"), f"{sum(answer.seconds for answer in answers):.1f} s"]
        parts += [f"{usage.completion:,} tokens", f"{usage.cached:,} of {usage.prompt:,} prompt tokens cached"]
        return " · ".join([*parts, f"cost {usage.cost:.6g}"] if usage.cost else parts)

    @property
    def conversation(self) -> list[ReplTurn]:
        """The earlier turns that the next question continues, oldest first."""
        turns: list[ReplTurn] = []
        turn = self.head if self.manner.talking else None
        while turn is not None:
            turns.insert(0, turn)
            turn = turn.before
        return turns

    def turn(self, which: str = "") -> ReplTurn | None:
        """Return the turn with the given number or run id; by default, the running or last turn."""
        every = [*self.turns, *([self.current] if self.current is not None else [])]
        if not which:
            return every[-1] if every else None
        if which.isdigit() and 1 <= int(which) <= len(every):
            return every[int(which) - 1]
        return next((turn for turn in every if turn.run and turn.run == which), None)
