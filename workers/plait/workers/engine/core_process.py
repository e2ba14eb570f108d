"""vLLM's EngineCore in a process of its own: what plait adds inside that process, and how it follows the process.

vLLM starts the process and exchanges one message per engine step with it. Everything that has no message is in a
private folder: counters in a file that both processes map, the cause of a failure, and the socket of cache events.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection, spawn
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plait.core.errors import EngineError

# Private names inside vLLM, each checked before use.
#
# A release that renames one of them takes away a convenience (signals, checkpoints of silent requests, counts of the
# prefix cache), which is then rejected with an explanation; it does not break the engine's thread.


class RequestProgress(NamedTuple):
    """What a running request has generated so far."""

    ids: Sequence[int]
    text: str
    cached: int


def seen(state: Any) -> RequestProgress | None:
    """Read the state of a running request. Raises `AttributeError` where vLLM keeps it in another way."""
    if state is None:
        return None
    # A request that is not decoded has no text.
    text = getattr(state.detokenizer, "output_text", "")
    return RequestProgress(state.detokenizer.output_token_ids, text, state.num_cached_tokens)


def prefill_field(output: Any, logprobs: Any) -> str | None:
    """Return the name of the output field that counts cached prompt tokens; empty if the outputs have none. Return
    `None` if the outputs lack tokens or log-probabilities. `output` and `logprobs` are vLLM's classes."""
    fields: Iterable[str] = getattr(output, "__struct_fields__", ())
    if not {"request_id", "new_token_ids", "new_logprobs"}.issubset(fields):
        return None
    if "logprobs" not in getattr(logprobs, "_fields", ()):
        return None
    return "prefill_stats" if "prefill_stats" in fields else ""


SPACES = 24
"""Blanks and line ends between two parts of JSON at most: a small model may write them until its tokens are used up."""


def bound_spaces(compiler: Any) -> None:
    """Have a compiler of XGrammar allow `SPACES` between two parts of JSON, and not as many as there are tokens.
    Others, and older ones that have no such bound, stay as they are."""
    compile_ = getattr(compiler, "compile_json_schema", None)
    if compile_ is None or hasattr(compile_, "bounded"):
        return
    if "max_whitespace_cnt" not in inspect.signature(compile_).parameters:
        return

    def bounded(*args: Any, **options: Any) -> Any:
        return compile_(*args, **{"max_whitespace_cnt": SPACES} | options)

    bounded.bounded = True  # pyright: ignore[reportFunctionMemberAccess]
    compiler.compile_json_schema = bounded


def count_forms(core: Any, counts: Any) -> None:
    """Have an EngineCore count the requests with a form that it made ready and the milliseconds that took, in an array
    of shape (2,). It keeps what it has compiled: a form that came before takes none. Spaces in JSON are bounded on the
    way (`bound_spaces`)."""
    manager: Any = getattr(core, "structured_output_manager", None)
    compile_ = getattr(manager, "_create_grammar", None)
    if not callable(compile_):
        return
    lock = threading.Lock()

    def counted(request: Any) -> Any:
        began = time.perf_counter()
        try:
            bound_spaces(getattr(getattr(manager, "backend", None), "compiler", None))
            return compile_(request)
        finally:
            with lock:
                counts[:] += (1, round(1000 * (time.perf_counter() - began)))

    manager._create_grammar = counted


def measure_cache(core: Any) -> tuple[int, int]:
    """Return the blocks of the cache that an EngineCore's running requests hold, and the number of its waiting
    requests; 0 where they cannot be read."""
    scheduler = getattr(core, "scheduler", None)
    pool: Any = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    free: Any = getattr(pool, "get_num_free_blocks", None)
    # one block holds nothing
    used = 0 if free is None else int(pool.num_gpu_blocks) - 1 - int(free())
    return used, len(getattr(scheduler, "waiting", ()))


def without_amx(attention: Any) -> None:
    """Have vLLM's module of attention on CPUs leave the AMX kernel alone. That of 0.32 is wrong: SmolLM2 (three queries
    a key, heads of 64) then answers something else than with every other kernel. Products of matrices keep AMX."""
    chosen = getattr(attention, "_get_attn_isa", None)
    if callable(chosen) and not hasattr(chosen, "without_amx"):

        def isa(*args: Any, **named: Any) -> Any:
            isa_name = chosen(*args, **named)
            return "vec" if isa_name == "amx" else isa_name

        isa.without_amx = True  # pyright: ignore[reportFunctionMemberAccess]
        attention._get_attn_isa = isa


def pack_head(model: Any) -> None:
    """Bring a head that is tied to the embedding up to date after new weights came. vLLM 0.32 keeps a packed copy of it
    on a CPU, which its reloading does not update: the model would keep the old head."""
    head, inner = getattr(model, "lm_head", None), getattr(model, "model", None)
    method = getattr(head, "quant_method", None)
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    if head is not None and method is not None and tied and inner is not None:
        method.tie_weights(head, inner.embed_tokens)
        method.process_weights_after_loading(head)


INSTALL = "pip install 'plait[cpu]' (no GPU) or 'plait[gpu]'"


def environment(threads: int, *, forced: bool, cores: Sequence[int] | None, local: bool) -> bool:
    """Set the variables that vLLM reads while it is imported; returns whether there is a GPU to use.

    No usage statistics, no log on stdout. On a CPU torch's dynamo is off: its compilation of a
    sampler helper costs seconds at the first request and wins nothing measurable.
    """
    put = os.environ.setdefault
    put("VLLM_LOGGING_LEVEL", "CRITICAL")  # its errors are raised, and logged once
    put("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    put("TORCH_CPP_LOG_LEVEL", "ERROR")
    put("VLLM_NO_USAGE_STATS", "1")
    put("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait for one another sleep. By default they spin, and when another process wants their cores that
    # slows the engine down a hundredfold.
    put("OMP_WAIT_POLICY", "PASSIVE")
    # it warns before it has read its own variables
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # plait decides by an argument whether EngineCore has a process. With "1", vLLM would give an engine on a CPU a
    # second process behind that one, and both wait by spinning.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    put("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # a fork would copy this process's threads, and the locks they hold
    if local:
        put("HF_HUB_OFFLINE", "1")
    if forced:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    put("OMP_NUM_THREADS", str(threads))
    if cores:
        put("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    try:
        import torch
    except ModuleNotFoundError as error:
        raise EngineError(f"PyTorch is not installed: {INSTALL}") from error
    if torch.cuda.is_available():
        return True
    put("TORCHDYNAMO_DISABLE", "1")
    with contextlib.suppress(RuntimeError):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def explain(error: BaseException, model: str) -> str:
    """Say in one sentence why vLLM did not start, and what to do."""
    text = str(error)
    lower = text.lower()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    cause = next((line for line in lines if "Value error," in line), lines[0] if lines else "")[:300]
    own = f"{type(error).__name__}: {cause}" if cause else type(error).__name__
    unknown = ("not supported for now", "recognize this architecture", "no model architectures")
    if any(part in lower for part in unknown):
        return (
            f"vLLM does not know the architecture of {model} ({own}): choose a model that it supports, or another vLLM"
        )
    if "memory utilization" in lower:
        return (
            f"other programs use the GPU's memory that {model} may take ({own}): stop them, or lower "
            "gpu_memory_utilization in engine_args"
        )
    if "address already in use" in lower:
        return f"a socket of the engine is taken ({own}): end the program that has it, or start again"
    if isinstance(error, MemoryError) or "memory" in lower or "kv cache" in lower:
        return (
            f"too little memory for {model} ({own}): set another kv_cache_memory_bytes, a smaller "
            "max_model_len or a smaller model"
        )
    if "safetensors" in lower or "model weights" in lower:
        return f"the weights of {model} cannot be read ({own}): download or export the model again"
    if "tokenizer" in lower:
        return f"the tokenizer of {model} cannot be read ({own}): download or export the model again"
    return f"vLLM could not load {model} ({own}): check the model and the engine's options"


KILLED = " (the system kills processes when memory runs out: lower kv_cache_memory_bytes)"
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
        except Exception as error:
            if (cause := self._read_cause()) is not None:
                raise cause from None
            if "Failed core proc" in str(error):  # an exception would have left its cause
                raise EngineError(f"the engine did not start: its process was killed{KILLED}") from None
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
        return f"its process ended with {name}{KILLED if name == 'SIGKILL' else ''}"

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
