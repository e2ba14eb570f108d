"""A pooling model of vLLM (a classifier or a reward model) in a process of its own: an engine that generates may be in
this one, and vLLM's groups are the process's.

Parent and child exchange lines of JSON. The child answers all texts that have come while it computed in one batch.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

from plait.core.errors import EngineError

from .._shared import resources
from .process import environment, explain, first_line
from .vllm import pooling_model

__all__ = ["Pooling"]

BATCH = 64
"""Most texts of one pass."""


class Pooling:
    """A model that is served to this process alone. It starts with the first text, and ends with `close` or with this
    process."""

    def __init__(self, model: str, *, max_model_len: int | None = None, kv_cache_memory_bytes: int = 256 << 20) -> None:
        self.model = model
        self._spec = {"model": model, "max_model_len": max_model_len, "kv": kv_cache_memory_bytes}
        self.classifies = True
        """It gives probabilities of labels; else a number. Known with the first answer."""
        self._process: subprocess.Popen[str] | None = None
        self._asked: dict[int, Future[list[float]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    async def scores(self, text: str) -> list[float]:
        """Return the probabilities of a classifier's labels, or the last token's numbers of a reward head.

        Raises `EngineError` for a model that does not load, a text that is too long, or a process that has died.
        """
        return await asyncio.wrap_future(self._ask(text))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # it ends by itself then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def _ask(self, text: str) -> Future[list[float]]:
        future: Future[list[float]] = Future()
        with self._lock:
            if self._process is None:
                self._process = self._started()
            number = next(self._numbers)
            self._asked[number] = future
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps([number, text]) + "\n")
                self._process.stdin.flush()
            except OSError:  # it has died; whoever reads says so
                pass
        return future

    def _started(self) -> subprocess.Popen[str]:
        if resources.local_model(self.model) is None and "/" not in self.model:
            raise EngineError(f"there is no model {self.model!r}: give a folder, or the id of a model on a hub")
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._spec) + "\n")
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        atexit.register(self.close)
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Settle what was asked. On a thread of its own, until the process ends."""
        assert process.stdout is not None
        trouble = ""
        for line in process.stdout:
            said: Any = json.loads(line)
            if "trouble" in said:
                trouble = said["trouble"]
                continue
            self.classifies = said.get("classifies", self.classifies)
            future = self._asked.pop(said["number"], None)
            if future is not None and not future.cancelled():
                if "scores" in said:
                    future.set_result(said["scores"])
                else:
                    future.set_exception(EngineError(said["error"]))
        with self._lock:
            if self._process is process:
                self._process = None
            asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.cancelled():
                code = process.wait()
                future.set_exception(
                    EngineError(trouble or f"the process of the model {self.model} has ended (exit code {code})")
                )


def serve() -> None:
    """Answer texts until the input ends. In the child."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    lines = _Lines(0)
    first, *waiting = lines.some()  # what was asked meanwhile may have come with it
    spec = json.loads(first)

    def say(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        model = _loaded(spec)
    except BaseException as error:
        say(trouble=str(error) if isinstance(error, EngineError) else explain(error, spec["model"]))
        return
    classifies = "classify" in model.supported_tasks
    while batch := [json.loads(line) for line in waiting or lines.some()]:
        waiting = []
        for start in range(0, len(batch), BATCH):
            part = batch[start : start + BATCH]
            try:
                found: list[Any] = list(_pooled(model, [text for _, text in part]))
            except Exception:  # one of them is at fault: each by itself
                found = [_alone(model, text) for _, text in part]
            for (number, _), one in zip(part, found, strict=True):
                say(
                    number=number,
                    **({"error": one} if isinstance(one, str) else {"scores": one}),
                    classifies=classifies,
                )


def _alone(model: Any, text: str) -> list[float] | str:
    try:
        return _pooled(model, [text])[0]
    except Exception as error:
        return f"the model cannot score this text: {first_line(error)}"


def _loaded(spec: dict[str, Any]) -> Any:
    folder = resources.local_model(spec["model"])
    threads = resources.default_threads(folder, None)
    gpu = environment(threads, forced=False, cores=None, local=folder is not None)
    model = pooling_model(
        str(folder or spec["model"]),
        enforce_eager=not gpu,
        max_model_len=spec["max_model_len"],
        kv_cache_memory_bytes=None if gpu else spec["kv"],
    )
    if not {"classify", "token_classify"}.intersection(model.supported_tasks):
        raise EngineError(f"{spec['model']} is neither a classifier nor a reward model: it gives no number for a text")
    return model


def _pooled(model: Any, texts: list[str]) -> list[list[float]]:
    if "classify" in model.supported_tasks:
        return [[float(each) for each in said.outputs.probs] for said in model.classify(texts, use_tqdm=False)]
    told = model.encode(texts, pooling_task="token_classify", use_tqdm=False)
    return [[float(each) for each in said.outputs.data[-1].flatten().tolist()] for said in told]


class _Lines:
    """Lines of a pipe: waits for one, and takes all that are there."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._rest = pipe, b""

    def some(self) -> list[str]:
        while b"\n" not in self._rest or select.select([self._pipe], [], [], 0)[0]:
            piece = os.read(self._pipe, 1 << 20)
            if not piece:
                break
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode() for line in lines]
