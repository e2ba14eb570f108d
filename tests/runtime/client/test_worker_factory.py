"""What a configuration asks of Ray: room for engines, actors for tools. Nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait import Config
from plait.core.errors import ConfigError
from plait.runtime.client import worker_factory
from plait.runtime.plugins.loader import Plugins
from plait.workers.tools import Tools

TOOLS = '''
from plait import tool

@tool
def double(n: int) -> int:
    """Twice a number."""
    return 2 * n
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS)
    return path


def reserved(**settings: Any) -> list[dict[str, float]]:
    """What each engine of a configuration reserves, and that GPUs are the cluster's choice as -1."""
    made = worker_factory.workers(Config(**settings), Plugins())
    return [{**each._wanted, **({"GPU": -1.0} if each._any_gpus else {})} for each in made]


def test_an_engine_reserves_one_cpu_and_by_default_a_gpu_where_there_are_some() -> None:
    assert reserved() == [{"CPU": 1.0, "GPU": -1.0}]
    assert reserved(gpus=0) == [{"CPU": 1.0, "GPU": 0.0}]
    assert reserved(cpus=2.5, gpus=0.5) == [{"CPU": 2.5, "GPU": 0.5}]


def test_a_model_over_several_gpus_reserves_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    made = worker_factory.workers(Config(tensor_parallel=4, engines=2, placement="strict-spread"), Plugins())
    assert [each._wanted["GPU"] for each in made] == [4.0, 4.0]
    assert [each._options["tensor_parallel_size"] for each in made] == [4, 4]
    assert {each._placement._strategy for each in made} == {"STRICT_SPREAD"}
    (engine,) = worker_factory.workers(Config(worker="engine", tensor_parallel=2), Plugins())
    assert engine.options.tensor_parallel_size == 2


def test_fewer_gpus_than_the_model_is_spread_over_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel=4 .* gpus=2 reserves fewer"):
        worker_factory.workers(Config(tensor_parallel=4, gpus=2), Plugins())


def test_a_part_of_a_gpu_is_a_part_of_its_memory() -> None:
    (engine,) = worker_factory.workers(Config(gpus=0.5), Plugins())
    assert engine._options["engine_args"] == {"gpu_memory_utilization": 0.45}


def test_several_engines_without_ray_have_processes_and_gpus_of_their_own(file: Path) -> None:
    made = worker_factory.workers(Config(worker="engine", engines=2, tensor_parallel=2), Plugins())
    assert [engine.name for engine in made] == ["engine-1", "engine-2"]
    assert {engine.options.process for engine in made} == {"own"}
    assert [engine.options.engine_args["device_ids"] for engine in made] == [[0, 1], [2, 3]]
    wrong: tuple[dict[str, Any], ...] = (
        {"worker": "engine", "engine_process": "shared"},
        {"worker": "scripted", "script": file},
    )
    for settings in wrong:
        with pytest.raises(ConfigError, match="3 engines need the worker `ray`, or `engine` with engine_process=own"):
            worker_factory.workers(Config(engines=3, **settings), Plugins())


@pytest.mark.parametrize(("name", "value"), [("gpus", 1), ("cpus", 2), ("placement", "pack")])
def test_what_only_ray_reserves_is_refused_elsewhere(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is what engines reserve.*'engine'"):
        worker_factory.workers(Config(worker="engine", **{name: value}), Plugins())


def test_start_timeout_reaches_engines_and_tool_actors(file: Path) -> None:
    config = Config(start_timeout=7, tools=file, tool_actors=2)
    (engine,) = worker_factory.workers(config, Plugins())
    assert engine._start_timeout == 7
    tools: Any = worker_factory.tools(config, Plugins(), ())
    assert [actor._start_timeout for actor in tools._actors] == [7, 7]


def test_tools_run_in_this_process_unless_actors_are_asked_for(file: Path) -> None:
    assert type(worker_factory.tools(Config(tools=file), Plugins(), ())) is Tools
    tools: Any = worker_factory.tools(Config(tools=file, tool_actors=2), Plugins(), ())
    assert [spec.name for spec in tools.specs] == ["double"]
    assert len(tools._actors) == 2


def test_tool_actors_without_a_file_are_refused() -> None:
    with pytest.raises(ConfigError, match="name one in `tools`"):
        worker_factory.tools(Config(tool_actors=1), Plugins(), ())


def test_placement_is_read_in_any_case_and_must_be_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLACEMENT", "Strict-Spread")
    assert Config.load().placement == "strict-spread"
    monkeypatch.setenv("PLAIT_PLACEMENT", "near")
    with pytest.raises(ConfigError, match=r"PLAIT_PLACEMENT.*strict-pack"):
        Config.load()
