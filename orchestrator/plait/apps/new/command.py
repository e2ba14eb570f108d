"""The command `plait new`: writes a file with a plugin that runs at once, to be changed into one's own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from ...core.errors import UsageError
from ..common.output import opened

NewKind = Literal["planner", "policy", "merge", "task", "tool", "worker", "search", "scorer"]
KINDS: dict[str, tuple[str, str]] = {
    "planner": ("Why is the sky blue?", "--planner {file}:{name}"),
    "policy": ("Why is the sky blue?", "--planner sample:n=3 --policy {file}:{name}"),
    "merge": ("Why is the sky blue?", "--planner sample:n=3 --merge {file}:{name}"),
    "task": ("3 + 4", "--task {file}:{name} --planner sample:n=3 --merge best-of"),
    "tool": ("How large is a room of 4 by 3 metres?", "--tools {file} --planner llmcompiler"),
    "worker": ("six times seven", "--worker {file}:{name}"),
    "search": ("What is 6 times 7?", "--planner tree:search={file}:{name},n=8"),
    "scorer": ("What is 6 times 7?", "--planner tree:search=best-first,scorer={file}:{name},depth=2"),
}
"""By kind: a request that the written plugin can answer, and the words that name it on the command line."""


def tried(kind: str, file: str, name: str) -> list[str]:
    """Return the words of the command that tries a file that was written."""
    text, words = KINDS[kind]
    script = [] if kind == "worker" else ["--script", file]
    return ["plait", "run", text, *words.format(file=file, name=name).split(), *script, "-v"]


def new(
    kind: Annotated[NewKind, typer.Argument(help="Kind of the plugin.")],
    name: Annotated[str, typer.Argument(help="Name of the plugin, such as `second-look` for second_look.py.")],
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the file.")] = Path(),
) -> None:
    """Write one file with a plugin of your own, replies to try it with, and its test."""
    module = re.sub(r"[\s-]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix(".py"))).lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise UsageError(f"{name!r} is not a module name: write letters, digits and hyphens")
    # Its test would import the other one.
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UsageError(f"{module!r} is the name of a module that is there already: take another name")
    file = folder / f"{module}.py"
    class_name = "".join(word.capitalize() for word in module.split("_"))
    command = shlex.join(tried(kind, file.name, class_name))
    template = Template(resources.files("plait.apps.new").joinpath(f"templates/{kind}.txt").read_text(encoding="utf-8"))
    text = template.substitute(Name=class_name, name=module, module=module, file=file.name, run=command)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already: take another name, or delete it") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    with opened(False) as output:
        output.people.print(f"{file}: a {kind} that works, with its test. Change it, and try it:", markup=False)
        output.people.print(f"  {enter}{command}\n  {enter}pytest {file.name}", markup=False, soft_wrap=True)
