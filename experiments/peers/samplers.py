"""Other libraries that take samples of a language model, each in an environment of its own that is built when needed.

its_hub, LangGraph, dspy and optillm, under the user's cache folder (`plait/peers`). One that does not install is left
out, and said to be.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait_bench.countdown import CountdownProblem

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plait" / "peers"
INSTALLING, SOLVING = 600, 300
"""Seconds."""
PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "its_hub": (("its_hub", "aiohttp", "backoff", "certifi"),),
    "langgraph": (("langgraph", "openai"),),
    "dspy": (("dspy",),),
    # With all that it names, it is 8 GB, none of it used by the proxy.
    "optillm": (
        ("--no-deps", "optillm"),
        ("flask", "openai", "cerebras_cloud_sdk", "numpy", "networkx", "z3-solver", "aiohttp", "requests", "PyYAML"),
        ("math-verify",),
    ),
}


@dataclass(frozen=True)
class Way:
    """One way of a library, and what it may and may not do beside the ones by hand."""

    name: str
    means: str

    @property
    def library(self) -> str:
        """The library's name."""
        return self.name.partition("-")[0]


WAYS = (
    Way("its_hub-beta", "8 requests; stops by its Beta rule on equal answers and closes the rest. No check, no seeds"),
    Way("its_hub-best-of", "8 requests, the check; waits for all. No early stop, no seeds; at most 100 connections"),
    Way("langgraph", "8 nodes side by side, the check; a join waits for all. No early stop"),
    Way("dspy-majority", "8 answers one after another, a vote. No check, no early stop, no seeds"),
    Way("dspy-best-of", "the check, stops at a right one; one request after another, none side by side. No seeds"),
    Way(
        "optillm-majority_voting",
        "a proxy; writes `User:` before a prompt; 8 answers of one request, a vote. No check",
    ),
    Way(
        "optillm-self_consistency", "the same; 5 requests one after another, the largest group of alike texts. No check"
    ),
)


async def environment(library: str) -> Path | str:
    """Return the interpreter of a library's environment, made now if need be; or the reason why it is missing."""
    folder = CACHE / library
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    sys.stderr.write(f"installing {library} into {folder}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[sys.executable, "-m", "venv", str(folder)], *([*pip, *names] for names in PACKAGES[library])]
    for words in commands:
        try:
            code, _, said = await _run(words, b"", INSTALLING)
        except TimeoutError:
            return f"{library} did not install within {INSTALLING} s"
        if code:
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            return f"{library} does not install here: {' '.join(last)}"
    done.touch()
    return python


async def solved(
    way: Way, python: Path, url: str, problems: Sequence[CountdownProblem], in_flight: int
) -> dict[str, Any]:
    """Return a strategy's time (`seconds`, `cpu`) and the `texts` that it chose. Raises `RuntimeError` with its last
    words."""
    asked = {"url": url, "puzzles": [[p.target, list(p.numbers)] for p in problems], "in_flight": in_flight}
    words = [str(python), str(Path(__file__).with_name("samplers_child.py")), way.name]
    try:
        code, out, said = await _run(words, json.dumps(asked).encode(), SOLVING)
    except TimeoutError:
        raise RuntimeError(f"{way.name} did not end within {SOLVING} s") from None
    if code:
        raise RuntimeError(f"{way.name} failed: {said.decode(errors='replace').strip()[-300:]}")
    return json.loads(out.strip().splitlines()[-1])


async def _run(words: Sequence[str], given: bytes, seconds: float) -> tuple[int, bytes, bytes]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, env=bare, cwd="/")
    try:
        out, said = await asyncio.wait_for(process.communicate(given), seconds)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    return process.returncode or 0, out, said
