"""vLLM's own server with the arguments of the worker `engine`: what `plait model up` starts.

    python -m plait.workers.engine.server FOLDER '{"model": "FOLDER"}'

The key that clients must send is in the environment, as `VLLM_API_KEY`. The process becomes the server: the
same id, the same signals. It listens on the Unix socket `PID.sock` in the folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from plait.core.errors import EngineError

from .engine_loader import prepare
from .options import EngineOptions

_NOT_OF_A_SERVER = ("disable_log_stats", "logits_processors", "use_tqdm_on_load")
"""Engine arguments that a server omits: it must report its load, and HTTP requests do not sample by codes."""


def flags(spec: EngineOptions, arguments: dict[str, Any], socket: str) -> list[str]:
    """Return the words of the server's command line. The model is served under the name that was asked for."""
    words = [f"--uds={socket}", f"--served-model-name={spec.model}"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None or name in _NOT_OF_A_SERVER:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}")
    return words


def _main(folder: str, options: str) -> None:
    spec = EngineOptions.model_validate_json(options)
    try:
        arguments = prepare(spec)
    except EngineError as error:
        sys.exit(str(error))
    # vLLM 0.32 computes attention on AMX in a process that never asked the kernel for it, and dies. Only an engine in
    # our own process can choose another kernel.
    cpu = Path("/proc/cpuinfo")
    if arguments["dtype"] == "bfloat16" and cpu.is_file() and "amx_tile" in cpu.read_text():
        arguments["dtype"] = "float32"
    os.environ["VLLM_LOGGING_LEVEL"] = "INFO"  # its log is a file, which is read when it does not start
    del os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]  # a server has its engine in a process beside it
    words = flags(spec, arguments, f"{folder}/{os.getpid()}.sock")
    os.execv(sys.executable, [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words])


if __name__ == "__main__":
    _main(*sys.argv[1:])
