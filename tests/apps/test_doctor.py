"""`plait doctor`, `plait names`, `plait version`, `plait --help`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orchestrator.apps import checks, cli, packages


def by_name(said):
    return {check["name"]: check for check in said["checks"]}


def test_quick_starts_nothing(plait, monkeypatch):
    def forbidden(*_: object, **__: object):
        raise AssertionError("a quick look starts nothing")

    monkeypatch.setattr(checks, "_loads", forbidden)
    monkeypatch.setattr("orchestrator.runtime.client.AsyncOrchestrator.start", forbidden)
    said = plait("doctor", "--quick", "--json").json
    found = by_name(said)
    assert {
        "python",
        "packages",
        "vllm",
        "ray",
        "torch",
        "transformers",
        "model",
        "memory",
        "cores",
        "disk",
        "gpu",
    } <= set(found)
    assert all(check["grade"] in ("ok", "warn", "fail") for check in said["checks"])
    assert all(check["remedy"] for check in said["checks"] if check["grade"] == "fail")
    assert found["packages"]["grade"] == "ok"
    assert found["model"]["grade"] == "ok"


def test_a_trial_with_the_scripted_worker(plait, script):
    done = plait("doctor", "--script", script("hello there"), "--json")
    trial = by_name(done.json)["trial"]
    assert trial["grade"] == "ok"
    assert "2 tokens" in trial["found"]


def test_a_trial_that_fails(plait, script):
    done = plait("doctor", "--script", script({"text": "no memory", "finish": "error"}), "--json")
    assert done.code == 1
    assert done.json["grade"] == "fail"
    assert "no memory" in by_name(done.json)["trial"]["found"]


def test_lines_for_people(plait, script):
    done = plait("doctor", "--quick", "--script", script("a"))
    assert any(line.startswith("ok    python") for line in done.out.splitlines())


def test_a_model_that_is_none(plait, tmp_path):
    (tmp_path / "hollow").mkdir()
    done = plait("doctor", "--quick", "--model", "hollow", "--json")
    assert done.code == 1
    model = by_name(done.json)["model"]
    assert model["grade"] == "fail"
    assert "config.json" in model["found"]
    assert "--model" in model["remedy"]


def test_bad_settings_are_a_finding(plait, tmp_path):
    (tmp_path / "plait.toml").write_text("wrker = 'ray'\n")
    done = plait("doctor", "--quick", "--json")
    assert done.code == 1
    assert "wrker" in by_name(done.json)["settings"]["found"]


def test_packages_of_somebody_else(monkeypatch, tmp_path):
    (tmp_path / "planners").mkdir()
    (tmp_path / "planners" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "planners"]:
        monkeypatch.delitem(sys.modules, name)
    assert packages.foreign() == {"planners": str(tmp_path / "planners")}
    check = checks.names()
    assert check.grade == "fail"
    assert "environment of its own" in check.remedy


@pytest.mark.parametrize(
    ("address", "grade"), [("127.0.0.1:1", "fail"), ("nonsense", "fail"), ("", "ok"), ("auto", "ok")]
)
def test_a_ray_cluster_that_does_not_answer(monkeypatch, address, grade):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert checks.ray_address(needed=True).grade == grade


def test_media_libraries_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: object() if name == "torchvision" else None)
    monkeypatch.setattr(checks, "_loads", lambda module: False)
    check = checks.media(quick=False)
    assert check.grade == "fail"
    assert "pip uninstall -y torchvision" in check.remedy


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(checks, "memory_limits", lambda: (4 << 30, 1 << 30, True))
    check = checks.memory(engines=1)
    assert check.grade == "fail"
    assert "container" in check.found
    assert "PLAIT_KV_CACHE_MIB" in check.remedy


def test_memory_of_this_machine():
    total, free, _ = checks.memory_limits()
    assert 0 < free <= total


def test_names_are_listed_with_their_options(plait):
    said = plait("names", "--json").json
    assert set(said) == {"planners", "policies", "merges", "tasks", "workers"}
    assert {"single", "sample", "fixed", "threads"} <= set(said["planners"])
    assert {"fifo", "critical-path", "consensus"} <= set(said["policies"])
    assert said["planners"]["sample"]["options"]["n"]["default"] == "8"
    assert all(about["about"] for kind in said.values() for about in kind.values())
    assert "text" not in said["tasks"]["countdown"]["options"]


def test_names_of_one_kind(plait):
    done = plait("names", "policies", "--options")
    assert "fifo" in done.out
    assert "sample" not in done.out


def test_versions(plait):
    from orchestrator import __version__

    assert plait("version", "--json").json["plait"] == __version__
    assert plait("--version").out == f"plait {__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["eval"], ["demo"], ["plan"], ["simulate"], ["replay"], ["doctor"]])
def test_help(plait, command):
    done = plait(*command, "--help")
    assert done.code == 0
    assert "Usage: plait" in done.out
    if command:
        assert "--json" in done.out


def test_help_loads_nothing_heavy(root):
    code = (
        "import sys\nfrom orchestrator.apps import cli\ncli.run(['run', '--help'])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'ray', 'vllm', 'torch', 'transformers', 'networkx', 'planners', 'workers'}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


def test_one_json_object_whatever_a_library_prints(process, script, tmp_path):
    # Printed by Python, and behind its back: neither may stand beside the object.
    (tmp_path / "noisy.py").write_text(
        "import os\nfrom orchestrator import tool\n\n@tool\ndef shout(x: int) -> int:\n"
        '    """Print."""\n    print("NOISE 1")\n    os.write(1, b"NOISE 2\\n")\n    return x\n'
    )
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "shout", "args": {"x": 3}}}], "output": "a"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    running = process("run", "--plan", tmp_path / "plan.json", "--tools", tmp_path / "noisy.py", "--json")
    out, err = running.communicate(timeout=60)
    assert json.loads(out)["answer"] == 3
    assert "NOISE 1" in err
    assert "NOISE 2" in err


def test_main_leaves_with_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plait", "nonsense"])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "nonsense" in capsys.readouterr().err
