# ruff: noqa: PTH102, PTH103, PTH120, PTH123, PTH208, SIM105, S307, S102  # the fewer modules it imports, the sooner it starts
"""Runs one program inside a sandbox. Started as `python -I -S -c <this text>`: the standard library alone.

Reads its job as one line, the `repr` of a dict of plain values. Where nothing outside does it (the backend `process`),
it takes from the program what the kernel allows it to take away (namespaces, the machine's `/tmp` and `/proc`, limits),
and kills what the program leaves behind. Says `BEGUN` on standard output before the first byte of the program's own, or
`SHARED` where the kernel did not let it have a `/tmp` and a `/proc` of its own.
"""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEGUN, SHARED = b"+", b"-"
NEW_FILES = 0x00020000
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
NEW_USER, NEW_PID, NEW_NET, NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
SET_PDEATHSIG, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS = 1, 36, 38
CAPABILITIES_V3 = 0x20080522
SIGKILL = 9


def main() -> int:
    """Run the job that is read from standard input; return its exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # an unused warm sandbox
    job = eval(line, {"__builtins__": {}})
    if job["apart"]:
        return _apart(job)
    _run(job)
    return 1


def _apart(job: dict[str, Any]) -> int:
    """Run the job in a child that sees no processes and no network but its own."""
    import ctypes  # here, since it takes milliseconds to load

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != job["parent"]:
        return 1  # its parent ended before the signal was set, which then never comes
    if not _unshare(libc) and not job["network"]:
        sys.stderr.write("this kernel does not let the sandbox take the network away from a program\n")
        return 1
    child = os.fork()
    if not child:
        os.setsid()
        libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        job["begun"] = BEGUN if _private(libc, job) else SHARED
        header, none = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
        libc.capset(header, none)  # those over its own namespaces
        _run(job)
    status = 0
    while True:
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            status = ended
            _kill_all(child)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _unshare(libc: Any) -> bool:
    """Leave the namespaces of users, processes, network and messages. False if the kernel refuses."""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(NEW_USER | NEW_PID | NEW_NET | NEW_IPC):
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            pass
    return True


def _private(libc: Any, job: dict[str, Any]) -> bool:
    """Give the program a `/tmp` of a limited size with its folder inside, and a `/proc` with its own processes; the
    rest of the root's file system is read-only. Return false if the kernel refuses, or if Python is in `/tmp`."""
    folder, shared = job["folder"], os.path.realpath("/tmp")
    if sys.base_prefix.startswith(shared + "/") or libc.unshare(NEW_FILES):
        return False
    if libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None):
        return False
    files = _files(folder)
    size = f"size={job['disk']}m,mode=1777,nr_inodes=20000".encode()
    if libc.mount(b"tmpfs", shared.encode(), b"tmpfs", NO_SUID | NO_DEVICES, size):
        return False
    if not folder.startswith(shared + "/"):
        os.mkdir(f"{shared}/folder")
        if libc.mount(f"{shared}/folder".encode(), folder.encode(), None, BIND, None):
            return False
    _write(folder, files)
    for other in (b"/var/tmp", b"/dev/shm"):
        libc.mount(shared.encode(), other, None, BIND, None)
    libc.mount(b"none", b"/", None, BIND | REMOUNT | READ_ONLY | NO_SUID, None)
    return libc.mount(b"proc", b"/proc", b"proc", NO_SUID | NO_DEVICES, None) == 0


def _files(folder: str) -> dict[str, bytes]:
    """Return all files in a folder, by their paths in it."""
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            with open(path, "rb") as file:
                files[os.path.relpath(path, folder)] = file.read()
    return files


def _write(folder: str, files: dict[str, bytes]) -> None:
    """Write files into a folder."""
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        path = f"{folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text)


def _run(job: dict[str, Any]) -> None:
    """Take the limits, and become the program. Does not return."""
    if job["source"]:
        _write(job["folder"], _files(job["source"]))
    os.dup2(os.open(job["stdin"], os.O_RDONLY | os.O_CLOEXEC), 0)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    for name, value in job["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value + (name == "RLIMIT_CPU")))
    os.write(1, job.get("begun", BEGUN))
    if job["argv"]:
        os.execvp(job["argv"][0], job["argv"])
    sys.argv = ["main.py"]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__file__ = "main.py"
    code = 0
    try:
        with open("main.py", "rb") as file:
            text = file.read()
        exec(compile(text, "main.py", "exec"), main.__dict__)
    except SystemExit as ended:
        status = ended.code
        code = status if isinstance(status, int) else 0 if status is None else 1
        if code == 1 and not isinstance(status, int):
            sys.stderr.write(f"{status}\n")
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 255)


def _kill_all(child: int) -> None:
    """Kill what the program has left: its session, and processes that were handed to this one when theirs ended."""
    try:
        os.killpg(child, SIGKILL)
    except OSError:
        pass
    own = os.getpid()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                above = int(file.read().rpartition(")")[2].split()[1])
            if above == own:
                os.kill(int(name), SIGKILL)
        except (OSError, ValueError, IndexError):
            continue


if __name__ == "__main__":
    sys.exit(main())
