"""Settings: which source wins, and what is said of a setting that is unknown or makes no sense."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plait.core.errors import ConfigError
from plait.core.ops import Plugin
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.runtime.client.worker_factory import settings, workers
from plait.runtime.plugins.loader import Plugins


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and no variables of ours."""
    for variable in os.environ:
        if variable.upper().startswith("PLAIT_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults() -> None:
    config = Config.load()
    assert config == Config()
    assert (config.worker, config.engines, config.planner) == ("ray", 1, Plugin(name="single"))
    assert Path(config.model).parts[-3:] == ("plait_models", "models", "countdown")
    assert Path(config.model).is_absolute()


def test_own_engines_admit_programs_and_several_are_placed_by_affinity_by_default() -> None:
    assert [each.name for each in Config().standing_policies] == ["working-set"]
    assert [each.name for each in Config(engines=2).standing_policies] == ["affinity", "working-set"]
    assert [each.name for each in Config(engines=2).policies_with(2)] == ["affinity"]
    assert Config(worker="http", base_url="http://a/v1").standing_policies == ()
    assert Config(engines=2, policies=()).standing_policies == ()
    assert [each.name for each in Config(engines=2, policies=("waves",)).standing_policies] == ["waves"]


def test_later_sources_win(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "plait.toml").write_text("engines = 2\nslots = 2\nseed = 2\nthreads = 2")
    monkeypatch.setenv("PLAIT_SLOTS", "3")
    monkeypatch.setenv("PLAIT_SEED", "3")
    monkeypatch.setenv("PLAIT_THREADS", "")
    config = Config.load(seed=4, engines=None)
    assert (config.engines, config.slots, config.seed, config.threads) == (2, 3, 4, 2)


def test_the_constructor_reads_its_arguments_alone(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "plait.toml").write_text("engines = 2")
    monkeypatch.setenv("PLAIT_SEED", "3")
    assert Config(seed=5) == Config(seed=5, engines=1)


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().seed = 3  # type: ignore[misc]


def test_every_setting_is_documented() -> None:
    properties = Config.model_json_schema()["properties"]
    assert [key for key, value in properties.items() if not value.get("description")] == []


def test_the_file_may_be_named(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "plait.toml").write_text("seed = 1")
    (clean / "env.toml").write_text("seed = 2")
    (clean / "flag.toml").write_text("seed = 3")
    assert Config.load().seed == 1
    monkeypatch.setenv("PLAIT_CONFIG", "env.toml")
    assert Config.load().seed == 2
    assert Config.load(clean / "flag.toml").seed == 3


def test_paths_in_a_file_are_relative_to_it(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "sub" / "weights").mkdir(parents=True)
    (clean / "sub" / "plait.toml").write_text('script = "s.json"\ntools = "/abs/t.py"\nmodel = "weights"')
    config = Config.load("sub/plait.toml", journal="j.db")
    assert (config.script, config.tools) == (clean / "sub" / "s.json", Path("/abs/t.py"))
    assert config.model == str(clean / "sub" / "weights")
    assert config.journal == Path("j.db"), "a flag's path is relative to the current folder"
    (clean / "sub" / "plait.toml").write_text('model = "org/name"\njournal = "~/j.db"')
    config = Config.load("sub/plait.toml")
    assert config.model == "org/name", "the id of a model on a hub stays as it is"
    assert config.journal == Path.home() / "j.db"


def test_plugins_as_texts_lists_and_tables(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Plugin(name="sample", options={"n": 8, "answer": {"temperature": 0.5}})
    (clean / "plait.toml").write_text(
        'planner = "sample:n=8,answer.temperature=0.5"\n'
        'policies = ["fifo", "consensus:margin=2"]\n'
        'merge = {name = "majority"}\n'
    )
    config = Config.load()
    assert config.planner == sample
    assert config.policies == (Plugin(name="fifo"), Plugin(name="consensus", options={"margin": 2}))
    assert config.merge == Plugin(name="majority")
    monkeypatch.setenv("PLAIT_POLICIES", "critical-path consensus:margin=3")
    monkeypatch.setenv("PLAIT_PLANNER", "pkg.mod:Class:n=2")
    config = Config.load(merge=Plugin(name="best-of"))
    assert [each.name for each in config.policies] == ["critical-path", "consensus"]
    assert config.planner == Plugin(name="pkg.mod:Class", options={"n": 2})
    assert config.merge == Plugin(name="best-of")
    monkeypatch.setenv("PLAIT_POLICIES", '["fifo", {"name": "x", "options": {"a": [1]}}]')
    assert Config.load().policies == (Plugin(name="fifo"), Plugin(name="x", options={"a": [1]}))
    assert Config.load(policies=["fifo"], planner=sample).policies == (Plugin(name="fifo"),)


def test_adapters_as_texts_and_tables(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "plait.toml").write_text('adapters = {calls = "a/b"}')
    assert Config.load().adapters == {"calls": "a/b"}
    assert Config.load(adapters=["x=a/b", "c/d"]).adapters == {"x": "a/b", "d": "c/d"}
    for given in ("x=a/b c/d", '{"x": "a/b", "d": "c/d"}'):
        monkeypatch.setenv("PLAIT_ADAPTERS", given)
        assert Config.load().adapters == {"x": "a/b", "d": "c/d"}
    for given in (["=a"], ["a="], ["a", "x/a"]):
        with pytest.raises(ConfigError, match="write NAME=FOLDER or FOLDER, each name once"):
            Config.load(adapters=given)


def test_spellings() -> None:
    Path("plait.toml").write_text("kv-cache-mib = 512\nlog-level = 'DEBUG'")
    config = Config.load()
    assert (config.kv_cache_mib, config.log_level) == (512, "debug")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("engines", "two", ["integer", "'two'"]),
        ("engines", 0, ["greater than or equal to 1", "0"]),
        ("seconds", -1, ["greater than 0", "-1"]),
        ("seconds", "inf", ["finite"]),
        ("tokens", 1.5, ["integer", "1.5"]),
        ("log_level", "loud", ["'debug', 'info', 'warning' or 'error'", "'loud'"]),
        ("planner", ":n=8", ["names no plugin"]),
        ("merge", "majority:k=1,k=2", ["'k' is given twice"]),
        ("policies", "fifo x:=", ["not an option"]),
        ("policies", "[1,", ["not JSON"]),
        ("policies", "[1]", ["policies[0]", "Plugin"]),
    ],
)
@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_wrong_values_name_setting_and_source(
    clean: Path, monkeypatch: pytest.MonkeyPatch, source: str, key: str, value: Any, said: list[str]
) -> None:
    flags: dict[str, Any] = {}
    match source:
        case "file":
            (clean / "plait.toml").write_text(f"{key} = {value!r}")
            where = f"plait.toml, setting '{key}'"
        case "environment":
            monkeypatch.setenv(f"PLAIT_{key.upper()}", str(value))
            where = f"environment variable PLAIT_{key.upper()}"
        case _:
            flags[key] = value
            where = f"option '{key}'"
    with pytest.raises(ConfigError) as caught:
        Config.load(**flags)
    message = str(caught.value)
    assert where in message and "\n" not in message
    for piece in said:
        assert piece.strip("'") in message if source == "environment" else piece in message


def test_all_wrong_values_are_named(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "plait.toml").write_text("engines = 0")
    monkeypatch.setenv("PLAIT_SEED", "x")
    with pytest.raises(ConfigError, match=r"plait\.toml, setting 'engines'.*PLAIT_SEED"):
        Config.load()


def test_a_wrong_value_that_is_overruled_does_no_harm(clean: Path) -> None:
    (clean / "plait.toml").write_text("engines = 0")
    assert Config.load(engines=2).engines == 2


@pytest.mark.parametrize("path", ["{x}.toml", "a%b.toml"])
def test_odd_file_names(path: str) -> None:
    Path(path).write_text("engins = 1")
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert path in str(caught.value)


def test_unknown_settings_name_the_near_ones(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="option 'engins': there is no setting 'engins'; did you mean 'engines'"):
        Config.load(engins=1)
    with pytest.raises(ConfigError, match=r"no setting 'zzzz' \(there are: model, worker"):
        Config.load(zzzz=1)
    monkeypatch.setenv("PLAIT_MODLE", "x")
    with pytest.raises(ConfigError, match=r"variable PLAIT_MODLE: .*did you mean PLAIT_MODEL"):
        Config.load()
    monkeypatch.delenv("PLAIT_MODLE")
    monkeypatch.setenv("PLAIT_ZZZZ", "x")
    with pytest.raises(ConfigError, match=r"PLAIT_ZZZZ.*unset it"):
        Config.load()
    monkeypatch.delenv("PLAIT_ZZZZ")
    (clean / "plait.toml").write_text("[engine]\nthreads = 2")
    with pytest.raises(ConfigError, match=r"plait\.toml, setting 'engine': .*did you mean 'engines'"):
        Config.load()


def test_the_address_of_a_server_reaches_the_worker_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_BASE_URL", "http://localhost:8000/v1")
    options = settings(Config.load(worker="http", slots=4))
    assert options == {"base_url": "http://localhost:8000/v1", "slots": 4, "seed": 0}, "no folder of ours as the model"
    assert settings(Config.load(worker="http", model="their/model"))["model"] == "their/model"
    for other in ("ray", "engine", "scripted"):
        assert "base_url" not in settings(Config.load(worker=other))
    (worker,) = workers(Config.load(worker="http", slots=4), Plugins())
    assert (worker.name, worker.slots) == ("http", 4)


@pytest.mark.parametrize(
    ("given", "worker"),
    [
        ({"script": "replies.json"}, "scripted"),
        ({"base_url": "http://localhost:8000/v1"}, "http"),
        ({"script": "replies.json", "worker": "engine"}, "engine"),
        ({}, "ray"),
    ],
)
def test_who_names_replies_or_a_server_means_their_worker(
    given: dict[str, str], worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plait.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    assert Config.load(tmp_path / "plait.toml").worker == Config(**given).worker == worker
    for name, value in given.items():
        monkeypatch.setenv(f"PLAIT_{name.upper()}", value)
    assert Config.load().worker == worker


def test_the_worker_http_needs_an_address() -> None:
    with pytest.raises(ConfigError, match=r"PLAIT_BASE_URL.*http://localhost:8000/v1"):
        settings(Config.load(worker="http"))


def test_variables_that_are_not_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PLAIT_DEBUG", "PLAIT_SERVICE_HOST", "PLAIT_PORT", "PLAIT_PORT_80_TCP_ADDR", "PLAIT_SERVICE_PORT"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("PLAITED_X", "1")
    assert Config.load() == Config()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ["cannot be read", "No such file", "--config"]),
        (b"engines = \n", ["is not TOML", "line 1"]),
        (b"\xff\xfe", ["is not TOML"]),
        (b"engines = 1\nengines = 2\n", ["is not TOML", "line 2"]),
    ],
)
def test_files_that_cannot_be_read(clean: Path, content: bytes | None, said: list[str]) -> None:
    if content is not None:
        (clean / "x.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load("x.toml")
    for piece in ["x.toml", *said]:
        assert piece in str(caught.value)


def test_a_file_named_by_the_environment_must_be_there(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml.*PLAIT_CONFIG"):
        Config.load()
    monkeypatch.setenv("PLAIT_CONFIG", str(clean))
    with pytest.raises(ConfigError, match="directory"):
        Config.load()


def test_a_bundled_model_is_meant_by_its_name_unless_there_is_such_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Config(model="countdown-large").model == str(BUNDLED_MODEL.with_name("countdown-large"))
    assert Config(model="another").model == "another" and Config(model="org/countdown").model == "org/countdown"
    (tmp_path / "countdown").mkdir()
    assert Config(model="countdown").model == "countdown"
