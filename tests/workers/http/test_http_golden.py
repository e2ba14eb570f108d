"""Recorded requests and results: a table of settings and servers, whose bytes must not change unnoticed.

`python -m tests.workers.http.test_http_golden` records them again, for a change that is meant to change them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from plait.core.sampling import StructuredOutput

from .fake_server import FakeServer
from .http_kit import items, job, serving

GOLDEN = Path(__file__).with_name("golden.json")

SERVERS: dict[str, dict[str, Any]] = {
    "ids": {},
    "text": {"ids": False},
    "plain": {"ids": False, "strict": True},
    "chat": {"ids": False, "completions": False},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temperature": 0.0, "max_tokens": 2},
    "nucleus": {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 7},
    "min_p": {"min_p": 0.1},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"5": 1.0}, "top_k": 0},
    "stop": {"stop": ("gamma", "two words")},
    "kept stop": {"stop": ("gamma",), "keep_stop": True},
    "stop ids": {"stop_ids": (3,)},
    "sampled logprob": {"logprobs": 1},
    "confidence": {"logprobs": 3, "window": 2, "stream": True},
    "drawn": {"logprobs": 1, "token_logprobs": True, "temperature": 1.0},
    "alternatives": {"top_logprobs": 2, "logprobs": 1},
    "labels": {"labels": ("t0", "t1"), "max_tokens": 1},
    "salt": {"salt": "tenant"},
    "priority": {"priority": 3, "stream": True},
    "resumed": {"generated": (1, 2), "stream": True},
    "form": {"structured": StructuredOutput(kind="choice", spec=["yes", "no"])},
}
CASES = [*itertools.product(SERVERS, SETTINGS, (False, True), (0, 512))]


async def record(server: str) -> dict[str, list[Any]]:
    """Return, by case, the paths and bodies that were sent, and the text and end that came back."""
    recorded: dict[str, list[Any]] = {}
    for name, setting, chat, whole in CASES:
        if name != server:
            continue
        fake = FakeServer(**SERVERS[name], forms=("structured_outputs",))
        async with serving(fake, stream_above_tokens=whole) as (fake, worker):
            # Known words: the ids of a resumed attempt must mean some.
            fake.encode("alpha beta gamma delta one two")
            got = await items(worker, job("one two", chat=chat, **SETTINGS[setting]))
            end = got[-1].model_dump(mode="json", exclude_defaults=True)
            end.pop("message", None)
            text = "".join(getattr(item, "text", "") for item in got[:-1])
            recorded[f"{name}, {setting}, chat={chat}, whole={whole}"] = [fake.requests, text, end]
    return recorded


def digest(case: list[Any]) -> str:
    """Return the digest of a case, the order of its fields included."""
    return hashlib.sha256(json.dumps(case).encode()).hexdigest()[:16]


@pytest.mark.parametrize("server", SERVERS)
async def test_requests_and_results_are_the_recorded_ones(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    golden = json.loads(GOLDEN.read_text())
    recorded = await record(server)
    assert len(recorded) * len(SERVERS) == len(golden["digests"]) == 288
    for case, shown in golden["shown"].items():
        if case in recorded:
            assert json.loads(json.dumps(recorded[case])) == shown, case
    changed = [case for case, values in recorded.items() if digest(values) != golden["digests"][case]]
    assert not changed


async def _record_all() -> None:
    cases = {case: values for server in SERVERS for case, values in (await record(server)).items()}
    shown = {case: values for case, values in cases.items() if case.startswith("text") and case.endswith("whole=0")}
    digests = {case: digest(values) for case, values in cases.items()}
    GOLDEN.write_text(json.dumps({"digests": digests, "shown": shown}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(_record_all())
