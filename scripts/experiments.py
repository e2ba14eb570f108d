"""Writes experiments/README.md: every experiment with its question, where its figures stand, and its command."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "experiments"
PAGE = FOLDER / "README.md"
HEAD = """# Experiments

What was asked, and what came of it: a folder for each question, with the code (`run.py`), the page and its data. The
bundled models have one to twelve million parameters and work on puzzles and tables: read the shapes and the ratios, not
the levels.

`python -m experiments` lists them, `python -m experiments NAME --help` lists its options. One that runs on the
bundled models resumes where it was stopped; it writes into `build/experiments/NAME`, and with
`--out experiments/NAME` over the page here. [LOG.md](LOG.md) has what did not work out. This page is written by
`make docs`.
"""
WITH = """
## With figures

Each page says the machine it was made on, and whether other work ran there. Where *data* is empty, the figures are as
they were printed, and the rows behind them were not kept.

| experiment | question | data | command |
|---|---|---|---|
"""
WITHOUT = """
## Without figures

No figures of these are kept here: run them.

| experiment | question |
|---|---|
"""


def page() -> str:
    """Return the index. An experiment's figures stand on its own page, or on one that names its command."""
    sys.path.insert(0, str(ROOT))
    from experiments.__main__ import questions

    pages = {path: path.read_text(encoding="utf-8") for path in _pages()}
    some, none = list[str](), list[str]()
    for name, question in questions().items():
        command = re.compile(rf"python -m experiments {name}\b[^`\n|]*")
        own = FOLDER / name / "README.md"
        places = [own] if own in pages else [path for path, text in pages.items() if command.search(text)]
        if not places:
            none.append(f"| [{name}]({name}/run.py) | {question} |")
            continue
        named = command.search(pages[places[0]])
        made = named[0].strip().rstrip(".") if named else f"python -m experiments {name}"
        data = f"[data]({name}/data)" if any((FOLDER / name / "data").glob("*")) else ""
        some.append(f"| [{name}]({_from_here(places[0])}) | {question} | {data} | `{made}` |")
    return HEAD + WITH + "\n".join(some) + "\n" + WITHOUT + "\n".join(none) + "\n"


def _pages() -> list[Path]:
    """Return the pages that may have figures: the experiments' own first."""
    return [
        *sorted(FOLDER.glob("*/*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/howto").glob("*.md")),
    ]


def _from_here(path: Path) -> str:
    return str(path.relative_to(FOLDER)) if path.is_relative_to(FOLDER) else f"../{path.relative_to(ROOT)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
