"""Open an orchestrator for a command, show the progress of its start, and close it in any case."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ...core.errors import ConfigError, EngineError, Unanswered
from ...core.interfaces import Planner, Worker
from ...core.tools.context import Question
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.client.models import CATALOG, CHAT, NO_MODEL, fetched, folder_of
from ...runtime.client.worker_factory import fit_model, lacks_model
from ...runtime.driver.event_pump import Watcher
from ...runtime.plugins.loader import Plugins
from ..doctor.checks import model_folder
from ..models.standing import joined
from .interrupt import Stopper
from .output import Output, safe

_NAMES = {"ray": "the engine (vLLM in a Ray actor)", "engine": "the engine (vLLM in this process)"}


def engine_name(config: Config) -> str:
    """Return a short description of the engine or server that runs the model."""
    return _NAMES.get(config.worker, f"the worker {config.worker}")


_QUICK = ("scripted",)


@dataclass(slots=True)
class Session:
    """An orchestrator that is ready, and how long that took."""

    orchestrator: AsyncOrchestrator
    start_seconds: float


@contextlib.asynccontextmanager
async def opened_session(
    config: Config,
    output: Output,
    stopper: Stopper,
    workers: Sequence[Worker] | None = None,
    *,
    start: bool = True,
    watch: Watcher | None = None,
    own_engine: bool = False,
) -> AsyncIterator[Session]:
    """Yield a session over the workers that the configuration names (or `workers`), started (with `start=False` without
    a journal yet). `watch` sees every event. An engine that is up is joined, if not `own_engine`.
    The terminal shows the questions of tools to the user.

    Raises `Interrupted` when the user gives up before they are ready.
    """
    if not workers and config.worker not in _NAMES:
        Plugins().class_of("worker", config.worker)  # rejects an unknown name before the first message about a start
    if workers is None:
        config = choose_model(config) if own_engine else join(choose_model(config), output)
    if config.worker in _NAMES and (workers is None or workers):
        refuse_model(config.model)
    config = config.model_copy(update={"max_waiting": None})  # a command bounds its load itself: what is due can wait
    orchestrator = AsyncOrchestrator(config=config, workers=workers, on_ask=ask_on_terminal, control=True)
    if watch is not None:
        orchestrator.watch(watch)
    began = time.monotonic()
    try:
        with _saying(output, orchestrator, bool(workers is None or workers)):
            await stopper.until(orchestrator.start() if start else orchestrator.start_workers())
        yield Session(orchestrator, time.monotonic() - began)
    finally:
        await orchestrator.close()


def choose_model(config: Config, task: str = "plain") -> Config:
    """Return the configuration with a model: that of the puzzles for the task `countdown`, else the chat model that was
    fetched, or that the user has fetched now if this is a terminal. Raises `ConfigError` without any."""
    if not lacks_model(config):
        return config
    if task == "countdown":
        return config.model_copy(update={"model": folder_of("countdown")})
    offer_model()
    config = fit_model(config)
    if lacks_model(config):
        raise ConfigError(NO_MODEL)
    return config


def offer_model() -> None:
    """Fetch the chat model, if it is not here and the user at the terminal agrees."""
    if fetched(CHAT) is not None or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(f"No model is named. {CHAT} is {CATALOG[CHAT].about}.\nFetch it now? [Y/n] ")
    sys.stderr.flush()
    if sys.stdin.readline().lower() in ("\n", "y\n", "yes\n"):
        from ..models.fetch import get

        get(CHAT, lambda text: print(text, file=sys.stderr))


def refuse_model(model: str) -> None:
    """Raise `EngineError` for an invalid model that `plait doctor` can detect, before an engine starts slowly."""
    if importlib.util.find_spec("vllm") is None:  # the worker's error names the package to install
        return
    check = model_folder(model)
    if check.grade == "fail":
        raise EngineError(f"{check.found}: {check.remedy}")


def join(config: Config, output: Output) -> Config:
    """Return the configuration that uses the running engine of its model, if one exists, and print a note."""
    config, engine = joined(config)
    if engine is not None:
        name = Path(engine.model).name
        output.progress.print(f"the engine of {name} is up (plait plugins model)", style="dim", markup=False)
    return config


@contextlib.contextmanager
def _saying(output: Output, orchestrator: AsyncOrchestrator, any_model: bool) -> Iterator[None]:
    if not any_model or orchestrator.config.worker in _QUICK:
        yield
        return
    what = engine_name(orchestrator.config)
    console = output.progress
    began = time.monotonic()
    if console.is_terminal:
        with console.status(f"starting {what} …"):
            yield
    else:
        console.print(f"starting {what} …")
        yield
    what = engine_name(orchestrator.config)  # another one where Ray did not start
    console.print(f"{what} is ready after {time.monotonic() - began:.1f} s", style="dim")


def ask_on_terminal(question: Question) -> JsonValue:
    """Ask on standard error and read the answer from standard input; choices may be given by their number.

    Blocks until a line is there that answers the question. Raises `Unanswered` where there is no terminal, or its input
    ends.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise Unanswered(
            f"{question.text!r}: this is not a terminal, so no one can answer; run the command in one, or answer "
            "through the SDK (on_ask=…)"
        )
    while True:
        sys.stderr.write(safe(_worded(question)))
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise Unanswered(f"{question.text!r}: the terminal's input ended before there was an answer")
        reply = line.strip()
        try:
            return question.check(_chosen(question, reply))
        except Unanswered as error:
            sys.stderr.write(safe(f"{error}\n"))


def _worded(question: Question) -> str:
    choices = "".join(f"  {number}  {choice}\n" for number, choice in enumerate(question.choices, 1))
    return f"\n{question.step} asks: {question.text}\n{choices}> "


def _chosen(question: Question, reply: str) -> JsonValue:
    if reply.isdecimal() and reply not in map(str, question.choices) and 1 <= int(reply) <= len(question.choices):
        return question.choices[int(reply) - 1]
    return reply


_QUESTION = "What is 6 times 7?"


def preflight(planner: Planner, model: str) -> tuple[str, ...] | None:
    """Return a planner's warnings about a model, or `None` if it has no check or the model is not on this machine."""
    ask: Callable[..., tuple[str, ...]] | None = getattr(planner, "preflight", None)
    folder = Path(model).expanduser()
    file = folder / "tokenizer.json"
    if ask is None or not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no class of its own
        return (f"{file} cannot be read: {error}",)

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return ask(encode, _opening(folder))


def _opening(folder: Path) -> str | None:
    """Return a question as the model's chat template renders it; empty without a template, `None` if it cannot be."""
    try:
        settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        own = folder / "chat_template.jinja"
        template = own.read_text(encoding="utf-8") if own.is_file() else settings.get("chat_template") or ""
        if not isinstance(template, str) or not template:
            return "" if template == "" else None
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        tokens = {name: value for name, value in settings.items() if name.endswith("_token") and isinstance(value, str)}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": _QUESTION}]
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except Exception:  # a template is a program: whatever is wrong with it is not ours to say
        return None
