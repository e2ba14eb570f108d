"""Runs the checks of one client in whatever environment has it: prints a JSON line for each.

    python child.py CLIENT BASE_URL MODEL

A check is a function of `clients/CLIENT.py`, `check_…(base, model)`, that raises where the client does not get what it
expects. It knows nothing of plait.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ |= {
    "OPENAI_API_KEY": "none",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "INSPECT_LOG_LEVEL": "error",
    "INSPECT_DISPLAY": "none",
}

import expected


def say(**row: Any) -> None:
    sys.stdout.write("CHECK " + json.dumps(row) + "\n")
    sys.stdout.flush()


def main(client: str, base: str, model: str) -> None:
    try:
        module = importlib.import_module(f"clients.{client}")
    except ImportError as error:
        say(check="", problem=f"not installed: {error}")
        return
    version = getattr(module, "VERSION", "")
    loop = asyncio.new_event_loop()  # one for all: clients keep connections, which belong to a loop
    asyncio.set_event_loop(loop)
    for name, check in list(vars(module).items()):  # some modules grow while they are used
        if not name.startswith("check_"):
            continue
        expected.TEXTS.clear()
        try:
            done = check(base, model)
            if inspect.isawaitable(done):
                loop.run_until_complete(asyncio.wait_for(done, 120))
            problem = ""
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            line = next((each.lineno for each in reversed(where) if client in each.filename), 0)
            problem = f"line {line}: {type(error).__name__}: {error}"[:600]
        say(check=name.removeprefix("check_"), problem=problem, version=version, texts=expected.TEXTS)


if __name__ == "__main__":
    main(*sys.argv[1:])
