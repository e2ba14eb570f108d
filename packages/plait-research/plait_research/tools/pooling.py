"""A pooling engine beside the engine that generates: a reward model's numbers for texts.

An engine of vLLM either generates or pools. This one's EngineCore has a process of its own; a thread has the event loop
of vLLM's client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from plait.core.errors import EngineError
from plait.workers.engine.core_process import CoreProcess, first_line
from plait.workers.engine.engine_loader import broken, load, prepare
from plait.workers.engine.options import build_engine_options

Order = dict[str, Any]
"""`task` (`classify` or `token_classify`), `text`; `pair` (a second text) or `messages` or token `ids` in the text's
place; `activation`: false for numbers as they leave the head."""

_CLOSED = "the pooling engine was closed"


class Pooling:
    """A model with a head of classes or rewards, loaded by the first order. May be asked from any thread and event
    loop; what is asked at the same time is computed together."""

    def __init__(self, model: str, **options: Any) -> None:
        """Describe the engine; the keywords are the fields of `EngineOptions`. Raises `ConfigError`."""
        self.options = build_engine_options("pooling engine", {"model": model, **options})
        self.counts = {"orders": 0, "prompt": 0, "cached": 0}
        """Orders done, the tokens of their texts, and how many of those the prefix cache had."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._place: _Place | None = None

    async def ask(self, **order: Any) -> Any:
        """Return the numbers of one order (see `Order`): a list of them, or for `token_classify` one list a token.
        Raises `EngineError`."""
        with self._lock:
            if self._place is None:
                self._place = _Place()
                weakref.finalize(self, self._place.close)
            place = self._place
        output = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._pool(place, order), place.loop))
        cached = getattr(output, "num_cached_tokens", 0) or 0
        for name, count in (("orders", 1), ("prompt", len(output.prompt_token_ids)), ("cached", cached)):
            self.counts[name] += count
        return output.outputs.data.float().tolist()

    def close(self) -> None:
        """End the engine. What still waits fails. Another order starts another."""
        with self._lock:
            place, self._place = self._place, None
        if place is not None:
            place.close()

    async def _pool(self, place: _Place, order: Order) -> Any:
        """Return vLLM's output for an order, in the loop of its engine."""
        vllm, engine = place.engine or self._load(place)
        task, tasks = order["task"], await engine.get_supported_tasks()
        if task not in tasks:
            raise EngineError(
                f"this model cannot {task}, it can {', '.join(tasks) or 'nothing'}: give a reward model, such as one "
                "of the architecture LlamaForSequenceClassification"
            )
        try:
            ids, more = token_ids(engine, order)
            params = vllm.PoolingParams(task=task, use_activation=order.get("activation"), **more)
            prompt = vllm.inputs.tokens_input(ids)
            return [output async for output in engine.encode(prompt, params, str(next(self._numbers)))][-1]
        except asyncio.CancelledError:
            if not place.is_closed:  # the caller has left
                raise
            fault = _CLOSED
        except Exception as error:  # vLLM's own classes change
            fault = self._explain(place, engine, error)
        raise EngineError(fault)

    def _explain(self, place: _Place, engine: Any, error: Exception) -> str:
        """Return why an order failed; an engine that is broken makes room for another."""
        if place.is_closed:
            return _CLOSED
        if not engine.errored:
            return f"the engine rejected the text: {first_line(error)}"
        if place.engine is not None and place.engine[1] is engine:
            place.unload()
        return f"the pooling engine of {self.options.model} broke: {first_line(error)}"

    def _load(self, place: _Place) -> tuple[Any, Any]:
        if place.refusal:  # it cannot start: another would not, either
            raise EngineError(place.refusal)
        try:
            place.folder = tempfile.TemporaryDirectory(prefix="plait-pooling-", ignore_cleanup_errors=True)
            arguments = prepare(self.options) | {"runner": "pooling", "max_logprobs": None, "logits_processors": None}
            place.engine = load(arguments, process=CoreProcess(Path(place.folder.name)), is_async=True)
        except Exception as error:
            place.refusal = str(broken(error, self.options.model))
            raise EngineError(place.refusal) from None
        return place.engine


class _Place:
    """The thread of an engine, with its loop."""

    def __init__(self) -> None:
        self.engine: tuple[Any, Any] | None = None
        """The module vllm and its engine; used in the loop alone."""
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.refusal = ""
        """Why it cannot start."""
        self.is_closed = False
        self.loop = asyncio.new_event_loop()
        run = lambda: (self.loop.run_forever(), self.loop.close())  # noqa: E731
        self._thread = threading.Thread(target=run, name="plait-pooling", daemon=True)
        self._thread.start()

    def unload(self) -> None:
        """End vLLM's engine, in the loop."""
        if self.engine is not None:
            engine = self.engine[1]
            with contextlib.suppress(Exception):
                engine.shutdown()
                engine.shutdown = lambda timeout=None: None  # its `__del__` would fail at the interpreter's end
                engine.engine_core.resources.ctx.destroy(linger=0)  # vLLM leaves it open
        if self.folder is not None:
            self.folder.cleanup()
        self.engine = self.folder = None

    async def _end(self) -> None:
        self.is_closed, waiting = True, asyncio.all_tasks() - {asyncio.current_task()}
        self.unload()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self.loop.call_soon(self.loop.call_soon, self.loop.stop)  # the turn after the caller gets the result

    def close(self) -> None:
        """End engine and thread."""
        if self.loop.is_running():
            ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
            if threading.current_thread() is not self._thread:  # the garbage collector closes in any thread
                with contextlib.suppress(TimeoutError):
                    ending.result(10.0)
                self._thread.join(10.0)


def token_ids(engine: Any, order: Order) -> tuple[list[int], Order]:
    """Return the token ids of an order's text, and what else the parameters need."""
    if (ids := order.get("ids")) is not None:
        return [int(id_) for id_ in ids], {}
    tokenizer = engine.get_tokenizer()
    if (messages := order.get("messages")) is not None:
        encoded = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        return list(encoded["input_ids"]), {}
    text, pair = order["text"], order.get("pair")
    if pair is None or not getattr(engine.model_config, "use_sep_token", True):
        return list(tokenizer(text + (pair or ""))["input_ids"]), {}
    both = tokenizer(text=text, text_pair=pair)
    kinds = both.get("token_type_ids")
    if not kinds:
        return list(both["input_ids"]), {}
    # vLLM needs the position at which the second text begins.
    at = kinds.index(1) if 1 in kinds else len(kinds)
    return list(both["input_ids"]), {"extra_kwargs": {"compressed_token_type_ids": at}}
