"""The adapters with the real packages, in whatever environment has them.

`ADAPTERS_PYTHON` names a Python that has plait's own dependencies and these (`pip install
'plait[serve]' 'pydantic-ai-slim[openai]' langchain-openai inspect-ai ag-ui-protocol`); by default it is this one.
Several, with colons between them, where packages (verifiers) want others' older versions.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import httpx
import pytest

from plait.core.errors import ConfigError
from plait.workers.scripted import Reply, Scripted
from plait_server.adapters.local import local_server

CHILD = Path(__file__).parent / "adapters_child.py"
ABSENT = "not installed"


@pytest.mark.slow
async def test_frameworks_run_on_their_adapters() -> None:
    found: dict[str, str] = {}
    for python in os.environ.get("ADAPTERS_PYTHON", sys.executable).split(os.pathsep):
        child = await asyncio.create_subprocess_exec(python, str(CHILD), stdout=asyncio.subprocess.PIPE)
        said, _ = await child.communicate()
        checks = [json.loads(line) for line in said.splitlines() if line.startswith(b'{"adapter"')]
        told = {each["adapter"]: each["problem"] for each in checks}
        assert set(told) == {"pydantic_ai", "langchain_openai", "inspect_ai", "ag_ui", "verifiers"}
        found |= {name: problem for name, problem in told.items() if found.get(name, ABSENT) == ABSENT}
    missing = [name for name, problem in found.items() if problem == ABSENT]
    wrong = "\n".join(problem for problem in found.values() if problem and problem != ABSENT)
    assert not wrong, wrong
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; name a Python that has them in ADAPTERS_PYTHON")


def test_a_server_in_a_thread() -> None:
    with local_server(workers=[Scripted([Reply(text="fine")])], journal="off") as url:
        body = {"model": "plait/sample:n=2", "messages": [{"role": "user", "content": "well?"}]}
        said = httpx.post(f"{url}/chat/completions", json=body, timeout=300).json()
        assert said["choices"][0]["message"]["content"] == "fine"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models")


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ConfigError, match="journal"), local_server(workers=[Scripted([])], journal="/dev/null/x"):
        pass
