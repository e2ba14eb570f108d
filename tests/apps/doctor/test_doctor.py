"""`plait doctor`, `plait plugins`, `plait doctor --quick`, `plait --help`."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plait.apps import main
from plait.apps.doctor import checks
from plait.apps.doctor.checks import ask_entry


def by_name(said):
    return {check["name"]: check for check in said["checks"]}


def test_quick_starts_nothing(plait, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forbidden(*_: object, **__: object):
        raise AssertionError("a quick look starts nothing")

    monkeypatch.setattr(checks, "_loads", forbidden)
    monkeypatch.setattr("plait.runtime.client.client.AsyncOrchestrator.start", forbidden)
    said = plait("doctor", "--quick", "--json").json
    found = by_name(said)
    assert {
        "python",
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
    assert found["model"]["grade"] == "warn" and "plait model get smollm2" in found["model"]["remedy"]


def test_without_an_engine_nothing_that_servers_do_not_need_is_missed(plait, monkeypatch):
    known = checks.version_of
    monkeypatch.setattr(checks, "version_of", lambda name: None if name[:4] in ("vllm", "ray") else known(name))
    done = plait("doctor", "--json")
    assert done.code == 0 and set(by_name(done.json)) == {"settings", "versions", "python", "engine", "disk"}
    assert "plait[cpu]" in by_name(done.json)["engine"]["found"]
    assert plait("doctor", "--quick", "--worker", "engine").code == 1, "one is asked for"


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


@pytest.mark.parametrize(("flags", "said"), [("avx2 avx512_bf16", "bfloat16"), ("avx2", "float32"), ("", "float32")])
def test_the_data_type_of_engines_on_the_cpu_is_said(flags, said, monkeypatch):
    monkeypatch.setattr(checks, "_read", lambda path: f"flags : {flags}" if path.name == "cpuinfo" else "")
    monkeypatch.setattr(checks, "_output", lambda command: "")
    monkeypatch.setattr(checks, "version_of", lambda name: None)
    check = checks.gpu()
    assert check.grade == "ok" and check.found.endswith(said)


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


@pytest.mark.parametrize(
    ("address", "grade"), [("127.0.0.1:1", "fail"), ("nonsense", "fail"), ("", "ok"), ("auto", "ok")]
)
def test_a_ray_cluster_that_does_not_answer(monkeypatch, address, grade):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert checks.ray_address(needed=True).grade == grade


@pytest.fixture
def head():
    """The head of a cluster that wants the token `right`; its port."""
    grpc = pytest.importorskip("grpc")

    class Head(grpc.GenericRpcHandler):
        def service(self, call):
            assert call.method == "/ray.rpc.NodeInfoGcsService/CheckAlive"
            let_in = dict(call.invocation_metadata).get("authorization") == "Bearer right"

            def answer(request, context):
                if not let_in:
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no luck")
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Head(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.mark.parametrize(
    ("settings", "grade", "said"),
    [
        ({}, "fail", "wants a token"),
        ({"RAY_AUTH_TOKEN": "right"}, "fail", "wants a token"),  # Ray sends none unless its mode says so
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 40}, "fail", "does not take our token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "right"}, "ok", "answers and lets us in"),
        ({"RAY_AUTH_MODE": "TOKEN", "RAY_AUTH_TOKEN_PATH": "file"}, "ok", "answers and lets us in"),
    ],
)
def test_a_quick_look_sees_that_a_cluster_wants_a_token(plait, head, monkeypatch, tmp_path, settings, grade, said):
    (tmp_path / "file").write_text("right\n")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name.endswith("PATH") else value)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head}")
    done = plait("doctor", "--quick", "--json")
    found = by_name(done.json)["ray cluster"]
    assert (found["grade"], done.code) == (grade, int(grade == "fail"))
    assert said in found["found"]
    if grade == "fail":
        assert "RAY_AUTH" in found["remedy"]


def test_a_cluster_that_cannot_be_understood_is_not_said_to_let_us_in(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")

        def hang_up():
            server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        check = checks.ray_address(needed=True)
    assert check.grade == "ok"
    assert "only without --quick" in check.found


@pytest.mark.engine
def test_the_head_of_a_real_cluster_refuses_without_its_token(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    server = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = "0123456789abcdef" * 2
    arguments = [
        f"--log_dir={tmp_path}",
        f"--gcs_server_port={port}",
        "--node-ip-address=127.0.0.1",
        "--session-name=s",
    ]
    settings = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    process = subprocess.Popen([server, *arguments], env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        deadline = time.monotonic() + 300
        while True:
            try:
                assert ask_entry("127.0.0.1", port) == "refused"
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.1)
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        assert ask_entry("127.0.0.1", port) == "open"
    finally:
        process.kill()
        process.wait()


def test_media_libraries_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: object() if name == "torchvision" else None)
    monkeypatch.setattr(checks, "_loads", lambda module: False)
    check = checks.media(quick=False)
    assert check.grade == "fail"
    assert "pip uninstall -y torchvision" in check.remedy


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(checks, "memory_limits", lambda read: (4 << 30, 1 << 30, True))
    check = checks.memory(engines=1)
    assert check.grade == "fail"
    assert "container" in check.found
    assert "PLAIT_KV_CACHE_MIB" in check.remedy


def test_memory_of_this_machine():
    total, free, _ = checks.memory_limits(checks._read)
    assert 0 < free <= total


def test_names_are_listed_with_their_options(plait):
    said = plait("plugins", "--json").json
    assert set(said) == {*("planners", "policies", "merges", "searches", "scorers", "tasks", "workers", "environments")}
    assert {"single", "sample", "fixed", "threads"} <= set(said["planners"])
    assert {"fifo", "critical-path", "consensus"} <= set(said["policies"])
    assert said["planners"]["sample"]["options"]["n"]["default"] == "8"
    assert all(about["about"] for kind in said.values() for about in kind.values())
    assert "text" not in said["tasks"]["countdown"]["options"]


def test_names_say_what_a_plugin_is_in_a_whole_sentence(plait):
    said = plait("plugins", "--json").json
    for kind in said.values():
        for name, each in kind.items():
            assert each["about"].endswith((".", ":")) and "\n" not in each["about"], f"{name}: {each['about']}"
    assert "ray" in said["workers"], "as --worker says it"


def test_names_of_one_kind(plait):
    done = plait("plugins", "policies", "-v")
    assert "fifo" in done.out
    assert "think-summarize" not in done.out, "that is a planner"


def test_versions(plait):
    from plait import __version__

    found = by_name(plait("doctor", "--quick", "--json").json)["versions"]["found"]
    assert found.startswith(f"plait {__version__}, ") and "pydantic" in found
    assert plait("--version").out == f"plait {__version__}\n"


@pytest.mark.parametrize(
    "command", [[], ["run"], ["eval"], ["demo"], ["plan"], ["simulate"], ["runs", "replay"], ["doctor"]]
)
def test_help(plait, command):
    done = plait(*command, "--help")
    assert done.code == 0
    assert "Usage: plait" in done.out
    if command:
        assert "--json" in done.out


def test_help_loads_nothing_heavy(root):
    code = (
        "import sys\nfrom plait.apps import main\nmain.run(['run', '--help'])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'ray', 'vllm', 'torch', 'transformers', 'planners', 'workers'}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stderr.strip() == "[]"


def test_one_json_object_whatever_a_library_prints(process, script, tmp_path):
    # Printed by Python, and behind its back: neither may stand beside the object.
    (tmp_path / "noisy.py").write_text(
        "import os\nfrom plait import tool\n\n@tool\ndef shout(x: int) -> int:\n"
        '    """Print."""\n    print("NOISE 1")\n    os.write(1, b"NOISE 2\\n")\n    return x\n'
    )
    plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "shout", "args": {"x": 3}}}], "output": "a"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    running = process("run", "--plan", tmp_path / "plan.json", "--tools", tmp_path / "noisy.py", "--json")
    out, err = running.communicate(timeout=300)
    assert json.loads(out)["answer"] == 3
    assert "NOISE 1" in err
    assert "NOISE 2" in err


def test_main_leaves_with_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plait", "nonsense"])
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    assert "nonsense" in capsys.readouterr().err


# --- a server ---


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers at /v1/models for those who have the key, and sends /away elsewhere."""

    def do_GET(self) -> None:
        if self.path.startswith("/away"):
            self.send_response(307)
            self.send_header("Location", "/v1/models")
            self.end_headers()
            return
        status = 404 if self.path != "/v1/models" else 200
        if status == 200 and self.headers["Authorization"] != "Bearer sesame":
            status = 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "tiny"}, {"id": "large"}]}' if status == 200 else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "words", "grade", "said"),
    [
        ("", ["--api-key-env", "KEY"], "ok", "answers; models: tiny, large"),
        ("/v1", ["--api-key-env", "KEY"], "ok", "answers; models: tiny, large"),
        ("/v1", ["--api-key-env", "KEY", "--model", "large"], "ok", "answers"),
        ("/v1", ["--api-key-env", "KEY", "--model", "huge"], "fail", "has no model huge (there are: tiny, large)"),
        ("", [], "fail", "does not let us in (HTTP 401)"),
        ("/away", ["--api-key-env", "KEY"], "warn", "HTTP 307"),
    ],
)
def test_a_server_is_asked(
    server: str, plait: Any, monkeypatch: pytest.MonkeyPatch, path: str, words: list[str], grade: str, said: str
) -> None:
    monkeypatch.setenv("KEY", "sesame")
    done = plait("doctor", "--quick", "--base-url", server + path, *words, "--json")
    (check,) = [each for each in done.json["checks"] if each["name"] == "server"]
    assert check["grade"] == grade and said in check["found"]
    assert "model" not in [each["name"] for each in done.json["checks"]], "the model is the server's"
    assert done.code == (grade == "fail")


def test_a_server_that_is_not_there(plait: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = plait("doctor", "--quick", "--base-url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 1
    assert "does not answer" in done.out and "correct --base-url" in done.out
