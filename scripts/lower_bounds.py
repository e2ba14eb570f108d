"""Run the tests without engines on the lowest versions that pyproject.toml allows.

    python scripts/lower_bounds.py [--extras NAME,NAME] [--folder DIR] [-- PYTEST_ARGUMENT …]

Makes an environment with uv, which resolves every direct dependency to its lower bound and the others to their newest
release. Fails if a bound is missing, if the bounds cannot be installed together, or if a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("core", "machine", "runtime", "planners", "policies", "tasks", "workers", "property", "apps")


def unbounded_requirements() -> list[str]:
    """Return the requirements of all distributions, extras included, that have no lower bound."""
    requirements: list[str] = []
    for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))):
        project = tomllib.loads(path.read_text())["project"]
        requirements += project.get("dependencies", [])
        requirements += [each for extra in project.get("optional-dependencies", {}).values() for each in extra]
    return [each for each in requirements if not re.search(r">=\d", each) and not re.match(r"plait\b", each)]


def install_lowest(folder: Path, extras: str) -> Path:
    """Make an environment with the lowest versions in a folder and return its Python."""
    uv = next((str(path) for path in [Path(sys.executable).with_name("uv")] if path.exists()), "uv")
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    install = [uv, "pip", "install", "--python", python, "--resolution", "lowest-direct"]
    packages = [path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    subprocess.run([*install, "--editable", f"{ROOT}[{extras}]", *packages], check=True)
    return python


def main() -> int:
    """Check the bounds, install them and run the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", default="dev", help="extras to install, with commas between; default: dev")
    parser.add_argument("--folder", type=Path, help="folder of the environment; default: a temporary one")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST_ARGUMENT", help="default: the folders without engines")
    options = parser.parse_args()
    if missing := unbounded_requirements():
        print(f"no lower bound in pyproject.toml: {', '.join(missing)}", file=sys.stderr)
        return 1
    arguments = options.pytest
    if not any(each.startswith("tests") for each in arguments):
        arguments = [*arguments, *(f"tests/{name}" for name in TESTS)]
    with tempfile.TemporaryDirectory() as temporary:
        python = install_lowest(options.folder or Path(temporary) / "venv", options.extras)
        command = [python, "-m", "pytest", "-q", "-m", "not engine and not slow and not gpu", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
