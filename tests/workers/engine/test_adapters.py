"""Adapters named in the settings: who answers, by what name, and who refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.client.worker_factory import settings, workers
from plait.runtime.plugins.loader import Plugins

from ..byte_model import build_bytes, build_lora


def test_a_worker_that_loads_none_refuses_adapters(tmp_path: Path) -> None:
    config = Config(worker="scripted", script=tmp_path / "replies.json", adapters={"b": "a/b"})
    with pytest.raises(ConfigError, match="'scripted' loads none: leave adapters out"):
        workers(config, Plugins())
    assert settings(Config(worker="engine", adapters={"b": "a/b"}))["lora"] == {"b": "a/b"}


@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore")
async def test_the_first_answers_where_none_is_named(tmp_path: Path) -> None:
    model = build_bytes(tmp_path / "bytes")
    one, two = (build_lora(tmp_path / name, seed) for seed, name in ((1, "one"), (2, "two")))
    small: Any = {"slots": 4, "threads": 1, "kv_cache_mib": 32, "journal": "off"}
    how: Any = {"planner": "single:answer.temperature=0,answer.max_tokens=20", "task": "plain:raw=true"}
    async with AsyncOrchestrator(model=str(model), worker="engine", adapters=[one, f"b={two}"], **small) as plait:
        said = {name: (await plait.run("hello", model=name, **how)).text for name in (None, "one", "b", "bytes")}
    assert said[None] == said["one"] and len({said["one"], said["b"], said["bytes"]}) == 3, said
