"""`python -m experiments [NAME …]`: lists the experiments, or runs one. What follows a name is for the experiment.

An experiment is a folder with a `run.py`; its question is the first line of that file's docstring. `run.py` has
`main()`, which reads its own options, or only `run()`, whose rows are printed as a table.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from plait.core.messages import did_you_mean

from ._tools.rows import print_rows

HERE = Path(__file__).resolve().parent


def questions(folder: Path = HERE) -> dict[str, str]:
    """Return the question of every experiment, by name. Nothing is imported for it."""
    return {path.parent.name: _question(path) for path in sorted(folder.glob("[!_]*/run.py"))}


def _question(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def main() -> int:
    """List the experiments, or run the one that is named; return the exit status."""
    known = questions()
    name, *rest = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        width = max(map(len, known))
        sys.stdout.write("".join(f"{each:<{width}}  {question}\n" for each, question in known.items()))
        return 0
    if name not in known:
        sys.stderr.write(
            f"there is no experiment {name!r}{did_you_mean(name, known)}; `python -m experiments` lists them\n"
        )
        return 2
    module = importlib.import_module(f"{__package__}.{name}.run")
    sys.argv = [f"python -m experiments {name}", *rest]
    if hasattr(module, "main"):
        module.main()
    else:
        print_rows(name, module)
    return 0


if __name__ == "__main__":
    sys.exit(main())
