"""Build the distributions of this repository, try them, and describe a release. Run by `.github/workflows/release.yml`.

    python -m scripts.release build            sdists and wheels into dist/, with the commit's time as SOURCE_DATE_EPOCH
    python -m scripts.release smoke            install each file of dist/ in a new environment and use it
    python -m scripts.release notes VERSION    print the section of CHANGELOG.md
    python -m scripts.release sbom FILE        write what an installed plait brings, as CycloneDX
    python -m scripts.release links            write the address of [tool.plait] into wheels and citation

`build` needs the package `build`, `sbom` needs `cyclonedx-bom`.
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

from .extras import RUN, give_files

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def distributions() -> list[Path]:
    """Return the folders that a distribution is built from: the top, and those of `packages/`."""
    return [ROOT, *(path.parent for path in sorted((ROOT / "packages").glob("*/pyproject.toml")))]


def version() -> str:
    """Return the version in `orchestrator/plait/__init__.py`."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "orchestrator/plait/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def build() -> None:
    """Build every sdist, and each wheel from its sdist. A rebuild of the same commit gives the same bytes."""
    commit_time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time.stdout.strip()}
    for folder in distributions():
        subprocess.run([sys.executable, "-m", "build", "--outdir", DIST, folder], env=environment, check=True)


def smoke() -> None:
    """Install each file of `dist/` in an environment of its own; run a plan where it is plait itself."""
    for file in sorted(DIST.iterdir()):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            programs = folder / "venv" / "bin"
            needs = [next(DIST.glob("plait-*.whl")), file] if not file.name.startswith("plait-") else [file]
            subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *needs], check=True)
            subprocess.run([programs / "python", "-m", "pip", "check"], check=True)
            give_files(folder)
            for command in ("plait --version", RUN):
                program, *words = command.split()
                subprocess.run([programs / program, *words], cwd=folder, check=True)
        print(f"{file.name}: ok", flush=True)


def release_notes(changelog: str, wanted: str) -> str:
    """Return the section of a version. Raises `SystemExit` if it is missing or has no date yet."""
    found = re.search(rf"^## {re.escape(wanted)} \(([^)]+)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section for {wanted}. Run: towncrier build --version {wanted}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise SystemExit(f"CHANGELOG.md dates {wanted} as {found[1]!r}. Write the date of the release: YYYY-MM-DD.")
    return found[2].strip() + "\n"


def write_links(folder: Path = ROOT) -> list[Path]:
    """Write the address of the repository into every pyproject.toml and CITATION.cff; without one, take it out there.
    Return the files."""
    address = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["plait"]["repository"]
    files = [folder / "pyproject.toml", *sorted(folder.glob("packages/*/pyproject.toml"))]
    urls = f'[project.urls]\nRepository = "{address}"\nIssues = "{address}/issues"\n\n' if address else ""
    for file in files:
        text = re.sub(r"^\[project\.urls\]\n(?:.+\n)+\n", "", file.read_text(), flags=re.MULTILINE)
        file.write_text(re.sub(r"^(?=\[(?:tool|project)\.)", lambda _: urls, text, count=1, flags=re.MULTILINE))
    citation = folder / "CITATION.cff"
    text = re.sub(r"^repository-code: .*\n", "", citation.read_text(), flags=re.MULTILINE)
    added = f"license: Apache-2.0\nrepository-code: {address}\n" if address else "license: Apache-2.0\n"
    citation.write_text(text.replace("license: Apache-2.0\n", added))
    return [*files, citation]


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "smoke", "notes", "sbom", "links"])
    parser.add_argument("argument", nargs="?", default="")
    options = parser.parse_args()
    match options.command:
        case "build":
            build()
        case "smoke":
            smoke()
        case "links":
            write_links()
        case "notes":
            if options.argument != version():
                raise SystemExit(f"The tag says {options.argument}, plait.__version__ says {version()}.")
            print(release_notes((ROOT / "CHANGELOG.md").read_text(), options.argument))
        case _:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([sys.executable, "-m", "venv", folder], check=True)
                python = Path(folder) / "bin" / "python"
                subprocess.run([python, "-m", "pip", "install", "--quiet", *DIST.glob("plait-*.whl")], check=True)
                output = Path(options.argument or "sbom.cdx.json").resolve()
                subprocess.run(["cyclonedx-py", "environment", "--output-file", output, python], check=True)


if __name__ == "__main__":
    main()
