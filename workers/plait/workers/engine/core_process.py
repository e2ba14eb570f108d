"""vLLM's EngineCore in a process of its own: what plait adds inside that process, and how it follows the process.

vLLM starts the process and exchanges one message per engine step with it. Everything that has no message is in a
private folder: counters in a file that both processes map, the cause of a failure, and the socket of cache events.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import connection, spawn
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import EngineError

from .vllm_process import count_forms, measure_cache, pack_head, without_amx

COUNTERS = ("forms", "form_ms", "kv_used", "waiting")
FOLDER = "plait_folder"
"""Attribute of vLLM's configuration that carries the folder into the process."""
EXIT_WAIT_S = 1.0
"""Time for the exit code of an ended process to become known."""
_starting = threading.local()


class CoreProcess:
    """One EngineCore in a process of its own, seen from the process that starts it."""

    def __init__(self, folder: Path) -> None:
        """Prepare a private folder. vLLM starts the process later, within `starting`."""
        _install()
        self.folder = folder
        np.zeros(len(COUNTERS), np.int64).tofile(folder / "counters")
        self.counters = _map_counters(folder)
        self._client: Any = None
        self._nothing: Any = None
        """vLLM's client of the process, and outputs of no step."""

    @contextlib.contextmanager
    def starting(self, config: Any) -> Iterator[None]:
        """Let vLLM start the process of this configuration within the block. A failure is raised with the cause that
        the process left."""
        setattr(config, FOLDER, str(self.folder))
        _starting.here = True
        try:
            yield
        except Exception:
            if (cause := self._read_cause()) is not None:
                raise cause from None
            raise
        finally:
            _starting.here = False

    def follow(self, engine: Any, report: Callable[[], None]) -> None:
        """Call `report` from a thread when the process has ended. Raises `EngineError` for a vLLM whose client of an
        EngineCore is another one."""
        client = engine.engine_core
        try:
            from vllm.v1.engine import EngineCoreOutputs

            self._client, self._nothing = client, EngineCoreOutputs()
            sentinels, answers = client.resources.engine_manager.sentinels(), client.utility_results
            client.outputs_queue.put_nowait(self._nothing)
        except (AttributeError, ImportError) as error:
            raise EngineError(f"plait cannot follow this vLLM's process ({error}): set process=shared") from None

        def wait() -> None:
            connection.wait(sentinels)
            for answer in list(answers.values()):  # vLLM would wait for these answers forever
                answer.set_exception(EngineError(self.explain_end()))
            report()

        threading.Thread(target=wait, name="plait-core-process", daemon=True).start()

    def wake(self) -> None:
        """End a wait for the process's outputs. From any thread."""
        self._client.outputs_queue.put_nowait(self._nothing)

    def next_outputs(self, get: Callable[[], Any]) -> Any:
        """Return the outputs of the next step, or none when a `wake` came first. `get` is vLLM's function."""
        outputs = get()
        while not outputs.outputs and not self._client.outputs_queue.empty():
            outputs = get()
        return outputs

    def explain_end(self) -> str:
        """Return why the process ended, and what to do."""
        if (cause := self._read_cause()) is not None:
            return f"{type(cause).__name__}: {cause}"
        (process, *_) = self._client.resources.engine_manager.processes
        deadline = time.monotonic() + EXIT_WAIT_S
        while (code := process.exitcode) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # another thread may have read the code and not yet stored it
        code = code or 0
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        memory = " (the system kills processes when memory runs out: lower kv_cache_memory_bytes)"
        return f"its process ended with {name}{memory if name == 'SIGKILL' else ''}"

    def close(self) -> None:
        """Close what vLLM's client leaves open. After the client was shut down."""
        if self._client is not None:
            self._client.output_queue_thread.join(EXIT_WAIT_S)
            self._client.ctx.destroy(linger=0)

    def _read_cause(self) -> Exception | None:
        """Return the exception that ended the process, by its class's name and its text."""
        try:
            name, _, text = (self.folder / "cause").read_text().partition("\n")
        except OSError:
            return None
        return type(name, (Exception,), {})(text)


def fix_attention() -> None:
    """Have vLLM compute attention on a CPU by kernels that are right, in this process."""
    with contextlib.suppress(ImportError):
        from vllm.v1.attention.backends import cpu_attn

        without_amx(cpu_attn)


def _map_counters(folder: Path) -> Any:
    return np.memmap(folder / "counters", np.int64, "r+", shape=(len(COUNTERS),))


def _install() -> None:
    """Have vLLM start `run_core` as its process. The process does not import the program's main module: a script
    without `if __name__ == "__main__"` would run there a second time."""
    from vllm.v1.engine.core import EngineCoreProc

    if EngineCoreProc.run_engine_core is run_core:
        return
    EngineCoreProc.run_engine_core, run_core.original = run_core, EngineCoreProc.run_engine_core
    prepare = spawn.get_preparation_data

    def prepare_without_main(name: str) -> dict[str, Any]:
        data = prepare(name)
        if getattr(_starting, "here", False):  # other processes of the program may need its main module
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = prepare_without_main


# --- inside the process ---


def run_core(*args: Any, **kwargs: Any) -> None:
    """Run vLLM's EngineCore as the main function of its process."""
    from vllm.v1.engine import core

    original = getattr(run_core, "original", core.EngineCoreProc.run_engine_core)
    folder = getattr(kwargs.get("vllm_config"), FOLDER, None)
    if folder is None:  # started by other code that uses vLLM
        return original(*args, **kwargs)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # Ctrl+C in a terminal is for the parent, which then closes this process in order
    threading.Thread(target=_end_with_parent, daemon=True).start()
    fix_attention()
    core.EngineCoreProc = _watched(core.EngineCoreProc, Path(folder))
    try:
        original(*args, **kwargs)
    except Exception as error:
        _leave_cause(Path(folder), error)
        raise SystemExit(1) from None


if multiprocessing.current_process().name.startswith("EngineCore"):
    # vLLM prints while it is imported, before it reads its own variables.
    logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper())
    warnings.simplefilter("ignore")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _leave_cause(folder: Path, error: BaseException | None) -> None:
    with contextlib.suppress(OSError):  # a closed engine has removed the folder
        (folder / "cause").write_text(f"{type(error).__name__}\n{error}")


def _watched(base: Any, folder: Path) -> Any:
    """Return vLLM's class of an EngineCore with counters, and with a report of the error that ends it."""
    counters = _map_counters(folder)

    class WatchedCore(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            count_forms(self, counters[:2])
            step = self.step_fn

            def counted() -> Any:
                outputs = step()
                counters[2:] = measure_cache(self)
                return outputs

            self.step_fn = counted

        def pack_head(self) -> None:
            self.collective_rpc("apply_model", args=(pack_head,))

        def _send_engine_dead(self) -> None:
            _leave_cause(folder, sys.exc_info()[1])
            super()._send_engine_dead()

    return WatchedCore
