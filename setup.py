"""Compiles the machine with mypyc where `COMPILE_PLAIT=1` asks for it (docs/adr/0019). All else is in pyproject.toml.

Without it, or where mypy or a C compiler is missing, plait is pure Python: the same sources, run as they are.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
MACHINE = Path("src/plait/machine")


def modules() -> list[Any]:
    """Return the machine's modules as extensions, or none."""
    if os.environ.get("COMPILE_PLAIT") != "1":
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.stderr.write("plait: mypy is not installed, so the machine is not compiled\n")
        return []
    paths = sorted(str(path) for path in MACHINE.glob("*.py") if path.name != "__init__.py")
    options = ["--follow-imports=silent", f"--python-executable={sys.executable}"]
    found = mypycify([*options, *paths], opt_level="2", group_name="plait")
    for each in found:
        each.optional = True  # without a C compiler the sources are used
    return found


def _sources() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in MACHINE.glob("*.py")}


class Build(build_ext):
    """Leaves beside the modules what they were made of and what they are, for `plait.compiled`, if all were made."""

    def run(self) -> None:
        """Build."""
        spec = importlib.util.spec_from_file_location("compiled", ROOT / "src/plait/compiled.py")
        assert spec is not None and spec.loader is not None
        compiled = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiled)
        made = [Path(self.get_ext_fullpath(each.name)) for each in self.extensions]
        kept = [Path(self.build_lib) / self.get_ext_filename(each.name) for each in self.extensions]
        folder = MACHINE if self.inplace else Path(self.build_lib) / "plait" / "machine"
        # What an earlier build left must not be taken for this one's: the compiler may fail, and that is no error.
        for old in (*made, *kept, folder / compiled.STAMP, *(compiled.extensions(folder) if made else ())):
            old.unlink(missing_ok=True)
        sources = _sources()
        super().run()
        if made and all(path.exists() for path in made) and _sources() == sources:  # nobody edited meanwhile
            (folder / compiled.STAMP).write_text(compiled.checksum(MACHINE, folder), "utf-8")


setup(ext_modules=modules(), cmdclass={"build_ext": Build})
