"""Sandboxes are attacked: whatever a program does ends with it, and stays inside."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plan, Step
from plait.core.errors import ConfigError
from plait.core.ops import ToolCall
from plait.workers.tools.sandbox import Bubblewrap, Container, Program, ProgramOutcome, Sandbox, SandboxLimits

BACKENDS = ["process", "bubblewrap", "container"]
IMAGE, RUNTIME = os.environ.get("SANDBOX_IMAGE"), os.environ.get("SANDBOX_RUNTIME")
"""An image with Python, as `scripts/sandbox_image.sh` makes one, and the OCI runtime, for the backend `container`."""


REQUIRED = os.environ.get("SANDBOX_REQUIRED", "").split()
"""Backends whose tests fail where they cannot run, instead of being skipped."""


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    if request.param == "bubblewrap" and shutil.which("bwrap") is None and "bubblewrap" not in REQUIRED:
        pytest.skip("bwrap is not installed")
    if request.param == "container" and not IMAGE:
        pytest.skip("give SANDBOX_IMAGE, and SANDBOX_RUNTIME if podman's own does not work")
    container = request.param == "container"
    made = Sandbox(Container(image=IMAGE or "", runtime=RUNTIME)) if container else Sandbox(request.param, warm=2)
    first = await made.run(Program(code="print('ready')"))
    if first.status == "broken" and not container and request.param not in REQUIRED:
        pytest.skip(f"this kernel does not allow it: {first.stderr}")
    assert first.stdout == "ready\n", first
    yield made
    await made.close()


async def ran(sandbox: Sandbox, code: str, **limits: object) -> ProgramOutcome:
    return await sandbox.run(Program(code=code, limits=SandboxLimits.model_validate({"seconds": 20, **limits})))


async def test_a_program_gets_its_input_and_files_and_says_what_it_printed(sandbox: Sandbox) -> None:
    program = Program(code="import data; print(data.x + int(input())); print(open('t').read())", stdin="4",
                      files={"data.py": "x = 3", "t": "é"})  # fmt: skip
    outcome = await sandbox.run(program)
    assert (outcome.status, outcome.stdout) == ("done", "7\né\n"), outcome
    failing = await ran(sandbox, "raise SystemExit(3)")
    assert (failing.status, failing.code) == ("failed", 3)
    told = await ran(sandbox, "1/0")
    assert told.code == 1 and "ZeroDivisionError" in told.stderr
    assert (await ran(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")).code in (139, 0, 1)
    unlucky = await ran(sandbox, "import os; os._exit(125)")
    assert (unlucky.status, unlucky.code) == ("failed", 125), "a program cannot say that the sandbox is broken"
    shell = await sandbox.run(Program(code="echo $((20 + 22)); exit 4", language="shell"))
    assert (shell.stdout, shell.code) == ("42\n", 4)


async def test_programs_do_not_see_one_another(sandbox: Sandbox) -> None:
    write = "import os; open('mine', 'w').write('x'); print(sorted(os.listdir('.')))"
    one, two = await asyncio.gather(ran(sandbox, write), ran(sandbox, write))
    assert one.stdout == two.stdout == "['.stdin', 'main.py', 'mine']\n"


async def test_a_fork_bomb_ends_at_its_limits(sandbox: Sandbox) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    began = time.monotonic()
    outcome = await ran(sandbox, bomb, seconds=1.5)
    assert outcome.status == "timeout"
    assert time.monotonic() - began < 15
    assert (await ran(sandbox, "print('alive')")).stdout == "alive\n"


async def test_a_gigabyte_of_output_is_cut(sandbox: Sandbox) -> None:
    outcome = await ran(sandbox, "import sys\nfor i in range(1024): sys.stdout.write('x' * 2**20)", output=1000)
    assert outcome.status == "output" and outcome.cut
    assert outcome.stdout == "x" * 1000


async def test_a_process_that_outlives_its_parent_is_killed(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = f"plait-mark-{os.getpid()}-{sandbox.backend.name}"
    double = f"""
import os, time, ctypes
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"{mark[-15:]}", 0, 0, 0)
        os.closerange(0, 10)
        time.sleep(100)
    os._exit(0)
time.sleep(0.3)
print('gone')
"""
    outcome = await ran(sandbox, double)
    assert outcome.stdout == "gone\n", outcome
    for _ in range(50):
        if not _named(mark[-15:]):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the process lives on")


def _named(name: str) -> list[str]:
    found: list[str] = []
    for each in Path("/proc").glob("[0-9]*/comm"):
        try:
            if each.read_text().strip() == name:
                found.append(each.parent.name)
        except OSError:
            continue
    return found


async def test_a_program_that_ignores_signals_is_killed(sandbox: Sandbox) -> None:
    code = "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(100)"
    assert (await ran(sandbox, code, seconds=0.7)).status == "timeout"


def there(*paths: str | Path) -> list[Path]:
    """Return those paths that exist."""
    return [Path(path) for path in paths if Path(path).exists()]


async def test_nothing_outside_is_written(sandbox: Sandbox, tmp_path: Path) -> None:
    target = tmp_path / "x"
    code = f"""
for path in ({str(target)!r}, '/etc/plait', '/usr/plait'):
    try:
        open(path, 'w').write('x')
        print('wrote', path)
    except OSError:
        pass
"""
    if os.getuid() and sandbox.backend.name == "process":
        pytest.skip("limits only: a program can write what its user can")
    outcome = await ran(sandbox, code)
    assert outcome.status == "done"
    assert not there(target, "/etc/plait", "/usr/plait"), outcome.stdout


async def test_a_link_out_of_the_folder_leads_nowhere_for_us(sandbox: Sandbox) -> None:
    linked = await sandbox.run(Program(code="import os; os.symlink('/etc/passwd', 'out'); os.mkdir('d')"))
    assert linked.status == "done"  # its folder is removed, and nothing in it is followed
    with pytest.raises(ConfigError, match="outside the sandbox"):
        await sandbox.run(Program(code="", files={"../out": "x"}))
    with pytest.raises(ConfigError, match="outside the sandbox"):
        await sandbox.run(Program(code="", files={"/etc/plait": "x"}))


async def test_the_environment_is_empty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_SECRET", "sesame")
    code = """
import os
print(dict(os.environ))
for name in os.listdir('/proc'):
    try:
        print(open(f'/proc/{name}/environ').read(), open(f'/proc/{name}/cmdline').read())
    except OSError:
        pass
"""
    assert "sesame" not in (await ran(sandbox, code)).stdout


async def test_there_is_no_network(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2).send(b'hello')\nprint('out')"
        outcome = await ran(sandbox, code)
    assert outcome.status == "failed" and "out" not in outcome.stdout


HOME_FILE = Path.home() / ".plait-sandbox-test"
ESCAPES = {
    "a host's home": f"print(open({str(HOME_FILE)!r}).read())",
    "passwords": "print(open('/etc/shadow').read()); print('escaped')",
    "a host's processes": "import os; print('escaped' * (sum(map(str.isdigit, os.listdir('/proc'))) > 5))",
    "an abstract socket": "from socket import *; socket(AF_UNIX).connect('\\0plait-test'); print('escaped')",
    "names": "import socket; socket.gethostbyname('example.org'); print('escaped')",
    "other namespaces": "import os; os.open('/proc/1/root/etc/shadow', 0); print('escaped')",
    "a mount": "import ctypes; print('escaped' * (not ctypes.CDLL(None).mount(b'none', b'/tmp', b'proc', 0, None)))",
    "bpf": "import ctypes; print('escaped' * (ctypes.CDLL(None).syscall(321, 0, bytes(72), 72) >= 0))",
    "keys into a terminal": "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('escaped')",
    "open files": "import os; print('escaped' * any(os.path.exists(f'/proc/self/fd/{n}') and not "
                  "os.readlink(f'/proc/self/fd/{n}').startswith(('pipe:', '/proc', '/work')) for n in range(3, 64)))",
    "the machine": "open('/proc/sysrq-trigger', 'w').write('h'); print('escaped')",
    "the kernel": "open('/proc/sys/kernel/hostname', 'w').write('x'); print('escaped')",
}  # fmt: skip


@pytest.mark.parametrize("what", ESCAPES)
async def test_an_isolated_program_does_not_reach(sandbox: Sandbox, what: str) -> None:
    if not sandbox.backend.isolates:
        pytest.skip("limits only: no security boundary")
    HOME_FILE.write_text("escaped")
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("\0plait-test")
            listening.listen()
            outcome = await ran(sandbox, ESCAPES[what])
    finally:
        HOME_FILE.unlink()
    assert "escaped" not in outcome.stdout and outcome.status != "broken", outcome
    assert (await ran(sandbox, "print('alive')")).stdout == "alive\n"


async def test_a_program_has_no_capabilities(sandbox: Sandbox) -> None:
    """Not even over namespaces of its own."""
    told = await ran(sandbox, "print([line for line in open('/proc/self/status') if line.startswith('CapEff')])")
    assert "CapEff:\\t0000000000000000" in told.stdout, told


async def test_memory_files_and_processor_time_have_an_end(sandbox: Sandbox) -> None:
    assert "MemoryError" in (await ran(sandbox, "x = bytearray(2**30)", memory=128)).stderr
    assert (
        await ran(sandbox, "f = open('f', 'wb')\nfor i in range(64): f.write(bytes(2**20))", file=1)
    ).status == "failed"
    assert (await ran(sandbox, "while True: pass", cpu=1)).code in (137, 152)


_FAKE = """#!/usr/bin/env python3
import json, os, sys
with open(__file__ + ".log", "a") as log:
    log.write(json.dumps([sys.argv[1:], "HOME" in os.environ]) + chr(10))
if "-I" in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv[sys.argv.index("-I"):]])
"""


async def test_bubblewrap_is_started_with_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a program that stands for bwrap where none is installed: it notes how it was called, and runs the launcher."""
    fake = tmp_path / "bwrap"
    fake.write_text(_FAKE)
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake) if name == "bwrap" else None)
    made = Bubblewrap()
    monkeypatch.setattr(made, "inside", str)  # there is no /work
    monkeypatch.setattr(made, "started_as", dict)  # nobody cannot enter this folder
    limits = SandboxLimits(disk=7, memory=200)
    folders = [Path(folder) for folder in ("/tmp", "/work")]
    for code, status in (("print(42)", "done"), ("x = bytearray(2**29)", "failed")):
        outcome = await made.run(Program(code=code, limits=limits))
        assert outcome.status == status and ("MemoryError" in outcome.stderr) == (status == "failed"), outcome
    calls = [json.loads(line)[0] for line in fake.with_name("bwrap.log").read_text().splitlines()]
    for words in calls:
        folder = Path(words[words.index("/plait-in") - 1])
        assert words[: words.index("-I")] == made.command(folder, limits)[1:] and folder not in folders
        assert words.count(str(7 << 20)) == 3 and not there(folder), "its folder is removed"


@pytest.mark.parametrize("name", ["podman", "docker"])
async def test_containers_are_asked_for_with_all_that_isolates_and_killed_by_name(name: str, tmp_path: Path) -> None:
    """By a program that stands for podman or docker: it notes how it was called, and runs the launcher as it is."""
    fake = tmp_path / name
    fake.write_text(_FAKE)
    fake.chmod(0o755)
    made = Container(image="an/image", program=str(fake), runtime="runsc")
    made.inside = str  # type: ignore[method-assign, assignment]  # there is no container
    assert (await made.run(Program(code="print(42)"))).stdout == "42\n"
    endless = Program(code="while True: print('x' * 1000)", limits=SandboxLimits(output=10))
    assert (await made.run(endless)).status == "output"
    calls = [json.loads(line) for line in fake.with_name(f"{name}.log").read_text().splitlines()]
    assert all(home for _, home in calls), "a program that makes containers needs its user's environment"
    ran, killed, *after = [words for words, _ in calls]
    assert [words[0] for words in after] == ["kill", "rm"], "only what was killed has to be killed by name"
    assert after[0][-1] == after[1][-1] == killed[killed.index("--name") + 1]
    words = " ".join(ran)
    assert words.startswith("--runtime runsc run " if name == "podman" else "run --runtime runsc ")
    folder = ran[ran.index("--name") + 1]
    isolating = [
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--read-only",
        "--rm",
        "--init",
    ]
    for each in (*isolating, "--pids-limit 64", f"/{folder}:/plait-in:ro ", "an/image python -I -S -c "):
        assert each in words, each
    assert ("--user 65534:65534" if os.getuid() == 0 else f"--user {os.getuid()}:{os.getgid()}") in words
    assert "--privileged" not in words and not there(Path("/tmp") / folder)


LIMITED = [SandboxLimits(), SandboxLimits(disk=9, memory=4096), SandboxLimits(network=True, disk=100)]


@pytest.mark.parametrize("limits", LIMITED)
def test_bubblewraps_command_bounds_every_place_that_can_be_written(
    limits: SandboxLimits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program wrote 180 MB with `disk=64`: /work was the machine's disk, /tmp and /dev/shm its memory."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    words = Bubblewrap().command(tmp_path, limits)
    for place in ("/work", "/tmp", "/dev/shm"):
        at = words.index(place)
        assert words[at - 3 : at] == ["--size", str(limits.disk << 20), "--tmpfs"], place
    assert "--bind" not in words and words.count("--tmpfs") == 3
    at = words.index(str(tmp_path))
    assert words[at - 1 : at + 2] == ["--ro-bind", str(tmp_path), "/plait-in"]
    fixed = [words[at + 1] for at, word in enumerate(words) if word == "--remount-ro"]
    assert fixed == ["/dev", "/"], "bwrap's own root and /dev are tmpfs without a size"
    assert words.index("--remount-ro") > max(words.index("/work"), words.index("/plait-in"))
    assert ("--share-net" in words) == limits.network


@pytest.mark.parametrize("limits", LIMITED)
@pytest.mark.parametrize("program", ["podman", "docker"])
def test_a_containers_command_bounds_disk_and_memory(limits: SandboxLimits, program: str, tmp_path: Path) -> None:
    words = " ".join(Container(image="an/image", program=program).command(tmp_path, limits))
    size = f"size={limits.disk}m,mode=1777"
    for each in (f"--tmpfs /tmp:{size} ", f"--tmpfs /work:{size},exec ", f"--shm-size {limits.disk}m ", "--read-only "):
        assert each in words, each
    assert f"--volume {tmp_path}:/plait-in:ro " in words and words.count("--volume") == 1
    memory = max(2048, limits.memory) + 3 * limits.disk
    assert f"--memory {memory}m --memory-swap {memory}m " in words, "no more in swap"
    assert ("--read-only-tmpfs=false" in words) == (program == "podman")


async def test_disk_is_a_limit_wherever_the_program_writes(sandbox: Sandbox) -> None:
    if sandbox.backend.name == "process":
        pytest.skip("see test_a_program_cannot_fill_the_disk, which asks whether the kernel allows it")
    code = """
import os
done = {}
for place in (".", "/tmp", "/dev/shm", "/var/tmp", "/", "/dev", "/run", "/plait-in"):
    done[place] = 0
    for number in range(8):
        try:
            with open(f"{place}/f{number}", "wb") as file:
                for _ in range(10):
                    done[place] += file.write(b"x" * (1 << 20))
        except OSError:
            pass
print({place: size >> 20 for place, size in done.items()})
"""
    for disk in (40, 20):
        outcome = await ran(sandbox, code, disk=disk)
        assert outcome.status == "done", outcome
        written = ast.literal_eval(outcome.stdout)
        for place, size in written.items():
            if place in (".", "/tmp", "/dev/shm"):
                assert size <= disk, (disk, written)
            else:
                assert size == 0, (disk, written)
        assert disk - 5 <= written["."], written


HOLD = """
import os, time
{before}
for _ in range(8):
    if not os.fork():
        {each}
        time.sleep(60)
print('forked', flush=True)
time.sleep({seconds})
"""


async def test_memory_of_all_processes_together_is_a_limit(sandbox: Sandbox) -> None:
    """Eight processes of 60 MB are within the limit of each, and beyond that of all. Eight that share 60 MB are not."""
    held = HOLD.format(before="", each="held = bytearray(b'x') * 60_000_000", seconds=60)
    outcome = await ran(sandbox, held, memory=256, total_memory=200)
    if sandbox.backend.name == "container":  # its kernel kills processes, by a limit that its files are added to
        assert outcome.status in ("failed", "timeout"), outcome
        return
    assert (outcome.status, outcome.seconds < 15) == ("memory", True), outcome
    shared = HOLD.format(before="held = bytearray(b'x') * 60_000_000", each="held[0]", seconds=0.5)
    outcome = await ran(sandbox, shared, memory=256, total_memory=200)
    assert (outcome.status, outcome.stdout) == ("done", "forked\n"), outcome


async def test_memory_is_a_limit(sandbox: Sandbox) -> None:
    outcome = await ran(sandbox, "x = b'x' * (600 << 20); print(len(x))", memory=256)
    assert outcome.status == "failed" and "MemoryError" in outcome.stderr, outcome


async def test_warm_sandboxes_of_another_disk_are_not_used(sandbox: Sandbox) -> None:
    code = "import os; there = os.statvfs('.'); print(there.f_blocks * there.f_frsize >> 20)"
    sizes = [(await ran(sandbox, code, disk=disk)).stdout for disk in (30, 30, 50, 30)]
    if sandbox.backend.name != "process":
        assert sizes == ["30\n", "30\n", "50\n", "30\n"]


async def test_an_unsafe_sandbox_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"install bubblewrap, podman or docker, or allow limits only"):
        Sandbox()
    assert not Sandbox("process").backend.isolates
    with pytest.raises(ConfigError, match="there is no sandbox 'bubble'"):
        Sandbox("bubble")


@pytest.mark.parametrize(("says", "taken"), [("exit 0", True), ("exit 1", False), ("exec sleep 60", False)])
async def test_docker_is_taken_only_if_its_daemon_answers(
    says: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\n{says}\n")
    docker.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(docker) if name == "docker" else None)
    monkeypatch.setattr("plait.workers.tools.sandbox.container.START_TIMEOUT_S", 0.5 if "sleep" in says else 30.0)
    for _ in range(2):
        if taken:
            assert isinstance(Sandbox().backend, Container)
        else:
            with pytest.raises(ConfigError, match="daemon did not answer"):
                Sandbox()
    assert (tmp_path / "log").read_text() == "asked\n", "once"


async def test_a_third_partys_sandbox_serves_the_same_tools() -> None:
    class Remote:
        name, isolates = "remote", True
        seen: list[str] = []

        async def run(self, program: Program) -> ProgramOutcome:
            self.seen.append(program.code)
            return ProgramOutcome(status="done", stdout="42\n")

        async def close(self) -> None:
            return None

    remote = Remote()
    step = Step(name="go", op=ToolCall(tool="run_python", args={"code": "print(42)"}))
    async with AsyncOrchestrator(workers=[], tools=Sandbox(remote).tools(), journal=None) as orchestrator:
        answer = await orchestrator.run(plan=Plan(steps=(step,), output="go"))
    assert remote.seen == ["print(42)"]
    assert isinstance(answer.answer, dict) and answer.answer["stdout"] == "42\n"


@pytest.fixture
async def private() -> AsyncIterator[Sandbox]:
    """Return the sandbox `process`, where the kernel lets a program have files of its own."""
    allowed = "unshare -Urmpf sh -c 'mount -t tmpfs none /tmp && mount -t proc none /proc'"
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    tried = await asyncio.create_subprocess_shell(allowed, stderr=asyncio.subprocess.PIPE, cwd="/", **as_nobody)
    _, why = await tried.communicate()
    if tried.returncode:
        pytest.skip(f"this kernel gives programs no /tmp and /proc of their own: {why.decode()}")
    made = Sandbox("process")
    yield made
    await made.close()


async def test_a_program_cannot_fill_the_disk(private: Sandbox) -> None:
    code = """
import os
done = 0
for place in (".", "/tmp", "/var/tmp", "/dev/shm"):
    for number in range(15):
        try:
            with open(f"{place}/f{number}", "wb") as file:
                for _ in range(15):
                    done += file.write(b"x" * (1 << 20))
        except OSError:
            pass
print(done >> 20)
"""
    outcome = await ran(private, code, disk=40)
    assert outcome.status == "done", outcome
    assert 30 <= int(outcome.stdout) <= 40


async def test_what_a_program_leaves_in_tmp_is_gone_and_it_sees_none_of_the_machines(private: Sandbox) -> None:
    name = f"plait-left-{os.getpid()}"
    path = Path("/tmp") / f"{name}-ours"
    path.write_text("ours")
    try:
        code = (
            f"import os; print(os.listdir('/tmp')); open('/tmp/{name}', 'w').write('x'); print(len(os.listdir('/tmp')))"
        )
        outcome = await ran(private, code)
    finally:
        path.unlink()
    assert outcome.status == "done" and f"{name}-ours" not in outcome.stdout, outcome
    assert not (Path("/tmp") / name).exists()
    again = await ran(private, f"import os; print(os.path.exists('/tmp/{name}'))")
    assert again.stdout == "False\n"


async def test_a_program_sees_no_command_lines_but_its_own(private: Sandbox) -> None:
    secret = f"secret-{os.getpid()}"
    beside = await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, "X": "1"})
    sly = await asyncio.create_subprocess_exec("sh", "-c", f"sleep 60; : {secret}")
    try:
        code = (
            "import glob\nfor each in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    print(open(each).read().replace(chr(0), ' ')[-200:])"
        )
        outcome = await ran(private, code)
    finally:
        for each in (beside, sly):
            each.kill()
            await each.wait()
    assert outcome.status == "done" and secret not in outcome.stdout and "pytest" not in outcome.stdout, outcome


async def test_a_warm_sandbox_that_was_killed_is_not_used() -> None:
    """Before, the next program ended as `broken`, without a reason."""
    sandbox = Sandbox("process", warm=1)
    assert (await ran(sandbox, "print(1)")).stdout == "1\n"
    backend: Any = sandbox.backend
    while not backend._warm:
        await asyncio.sleep(0.01)
    (waiting,) = backend._warm
    os.kill(waiting.process.pid, signal.SIGKILL)
    await waiting.process.wait()
    outcome = await ran(sandbox, "print(2)")
    assert (outcome.status, outcome.stdout) == ("done", "2\n"), outcome
    assert not waiting.folder.exists()
    await sandbox.close()


async def test_a_warm_sandbox_whose_end_is_not_known_yet_is_replaced() -> None:
    """Before, a program that came between the kill and its news ended as `broken`, without a reason."""
    sandbox = Sandbox("process", warm=1)
    assert (await ran(sandbox, "print(1)")).stdout == "1\n"
    backend: Any = sandbox.backend
    (waiting,) = backend._warm
    os.kill(waiting.process.pid, signal.SIGKILL)
    outcome = await ran(sandbox, "print(2)")
    assert (outcome.status, outcome.stdout) == ("done", "2\n"), outcome
    await sandbox.close()


async def test_a_sandbox_that_ends_before_the_program_begins_says_so() -> None:
    sandbox = Sandbox("process")
    backend: Any = sandbox.backend
    start = backend._start

    async def start_and_kill(limits: Any) -> Any:
        made = await start(limits)
        os.kill(made.process.pid, signal.SIGKILL)
        return made

    backend._start = start_and_kill
    outcome = await ran(sandbox, "print(1)")
    assert (outcome.status, outcome.code) == ("broken", 137) and "before the program began" in outcome.stderr, outcome


def test_event_loops_one_after_another_and_beside_one_another_wait_for_places() -> None:
    class Slow:
        name, isolates = "slow", False

        async def run(self, program: Program) -> ProgramOutcome:
            await asyncio.sleep(0.01)
            return ProgramOutcome(status="done")

        async def close(self) -> None: ...

    sandbox = Sandbox(Slow(), at_once=1)

    async def contend() -> int:
        return len(await asyncio.gather(*(sandbox.run(Program(code="")) for _ in range(3))))

    assert asyncio.run(contend()) == 3
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(asyncio.run, [contend(), contend()])) == [3, 3]
