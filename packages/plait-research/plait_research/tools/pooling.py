"""A pooling engine beside the engine that generates: a reward model's numbers for texts.

An engine of vLLM either generates or pools, and a process holds one of them, so this one has a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from typing import Any, ClassVar

from plait.core.errors import EngineError
from plait.workers.engine.options import EngineOptions, build_engine_options


class Pooling:
    """A model with a head of classes or rewards in a vLLM engine in a process of its own, which is started by the first
    order. May be asked from any thread and event loop; what is asked at the same time is computed together."""

    def __init__(self, model: str, **options: Any) -> None:
        """Describe the engine; the keywords are the fields of `EngineOptions`. Raises `ConfigError`."""
        self.options = build_engine_options("pooling engine", {"model": model, **options})
        self.counts = {"orders": 0, "prompt": 0, "cached": 0}
        """Orders done, the tokens of their texts, and how many of those the prefix cache had."""
        self._lock = threading.Lock()
        self._process: _Process | None = None

    async def ask(self, **order: Any) -> Any:
        """Return the numbers of one order (see `pooling_process.Order`): a list of them, or for `token_classify` one
        list a token. Raises `EngineError`."""
        future = await asyncio.to_thread(self._send, order)
        told = await asyncio.wrap_future(future)
        if "error" in told:
            raise EngineError(told["error"])
        for name, many in (("orders", 1), ("prompt", told["tokens"]), ("cached", told["cached"])):
            self.counts[name] += many
        return told["data"]

    def close(self) -> None:
        """End the process. What still waits fails. Another order starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _send(self, order: dict[str, Any]) -> Future[dict[str, Any]]:
        with self._lock:
            if self._process is None or self._process.ended:
                if self._process is not None and not self._process.ready:
                    raise EngineError(self._process.reason)  # it cannot start: another would not, either
                self._process = _Process(self.options)
                weakref.finalize(self, self._process.close)
            return self._process.send(order)


class _Process:
    """The engine's process, and the orders that it has."""

    module: ClassVar[str] = "plait_research.tools.pooling_process"

    def __init__(self, options: EngineOptions) -> None:
        self.ready = self.ended = False
        self.reason = ""
        """Why it has ended."""
        self._model = options.model
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", self.module, options.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._listen, name="plait-pooling", daemon=True).start()

    def send(self, order: dict[str, Any]) -> Future[dict[str, Any]]:
        number, future = str(next(self._numbers)), Future[dict[str, Any]]()
        self._waiting[number] = future
        stdin = self._popen.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended: `_listen` tells all that wait
            stdin.write(json.dumps({**order, "id": number}) + "\n")
            stdin.flush()
        if self.ended:
            self._fail()
        return future

    def close(self) -> None:
        """End the process by the end of its input."""
        self.reason = self.reason or "the pooling engine was closed"
        with contextlib.suppress(OSError, ValueError):
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        try:
            self._popen.wait(10.0)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout:
            for line in self._popen.stdout:
                told: dict[str, Any] = json.loads(line)
                self.ready = self.ready or "ready" in told
                self.reason = told.get("broken", self.reason)
                future = self._waiting.pop(told.get("id", ""), None)
                if future is not None:
                    _settle(future, told)
        code = self._popen.wait()
        self.reason = self.reason or f"the pooling engine of {self._model} ended with exit code {code}"
        self.ended = True
        self._fail()

    def _fail(self) -> None:
        for number in list(self._waiting):
            future = self._waiting.pop(number, None)
            if future is not None:
                _settle(future, {"error": self.reason})


def _settle(future: Future[dict[str, Any]], answer: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidStateError):  # the caller has left
        future.set_result(answer)
