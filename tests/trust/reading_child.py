"""A process that runs commands over hostile files and reports what they did, by an audit hook that cannot be removed.

    python reading_child.py FOLDER     (prints one JSON object a command)

FOLDER has `commands.json`: a list of `{"words": […], "writes": […]}`. The benign ones come first (`"warm": true`). They
load what the commands need, so whatever is imported later is of a hostile file's choice.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from plait.apps import main

STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn")
REMOVES = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.symlink", "os.link", "os.chmod")
PARTS = frozenset(part for part in sys.path if part.endswith("site-packages"))

armed: list[str] | None = None
allowed: tuple[str, ...] = ()


def watch(event: str, args: tuple[Any, ...]) -> None:
    """Note what reading a file has no business with."""
    if armed is None:
        return
    if event == "import":
        name = str(args[0])
        if name.split(".")[0] not in sys.stdlib_module_names and name.split(".")[0] not in KNOWN:
            armed.append(f"import {name}")
        if name in ("antigravity", "this", "pty", "turtle"):
            armed.append(f"import {name}")
    elif event == "open" and isinstance(args[0], str | bytes) and writes(args[1], args[2]):
        path = meant(os.fsdecode(args[0]))
        if not path.startswith(allowed) and path != os.devnull:
            armed.append(f"write {path}")
    elif event.startswith(STARTS):
        armed.append(f"{event} {args!r:.200}")
    elif event in REMOVES and not meant(str(args[0])).startswith(allowed):
        armed.append(f"{event} {args[0]!r:.200}")


def meant(path: str) -> str:
    """The file that a temporary one beside it becomes: `.page.html.x7.tmp` is `page.html`."""
    whole = Path(os.path.realpath(path))
    if whole.name.startswith(".") and whole.suffix == ".tmp":
        return str(whole.with_name(whole.stem[1:]).with_suffix(""))
    return str(whole)


def writes(mode: object, flags: object) -> bool:
    """Whether a file is opened for writing."""
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def outcome(words: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main.run(words)
    return code, out.getvalue()


folder = Path(sys.argv[1])
commands = json.loads((folder / "commands.json").read_text())
real = sys.stdout
state = os.path.realpath(os.environ["XDG_STATE_HOME"])
sockets = f"{os.path.realpath(os.environ['XDG_RUNTIME_DIR'])}/plait"  # of `plait runs`
for command in commands:
    if command.get("warm"):
        code, said = outcome(command["words"])
        assert code == 0, (command, said)
KNOWN = frozenset(name.split(".")[0] for name in sys.modules)
sys.addaudithook(watch)
for command in commands:
    if command.get("warm"):
        continue
    allowed = (state, sockets, *(os.path.realpath(folder / name) for name in command["writes"]))
    armed = []
    try:
        code, said = outcome(command["words"])
    except BaseException as error:
        code, said = -1, f"{type(error).__name__}: {error}"
    found, armed = armed, None
    real.write(json.dumps({"words": command["words"], "did": found, "code": code, "said": said}) + "\n")
    real.flush()
