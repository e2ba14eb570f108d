"""The field's words: forms that make a reader stop are counted, in documents and in the prose of the code.

The table of forms is `styles/Plait/Dialect.yml`, which Vale reads as well. Rewritten areas have none left. The
limits of the other areas only fall: lower a limit when an area has fewer.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from scripts.checkout import ROOTS, SIDE

ROOT = Path(__file__).resolve().parent.parent
SWAP: dict[str, str] = yaml.safe_load((ROOT / "styles/Plait/Dialect.yml").read_text("utf-8"))["swap"]
FORMS = re.compile("|".join(f"(?:{form})" for form in SWAP), re.IGNORECASE)
FENCE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)

LIMITS = {
    "README.md": 0,
    "CONTRIBUTING.md": 4,
    "SECURITY.md": 0,
    "docs/quickstart.md": 0,
    "docs/concepts.md": 0,
    "docs/architecture.md": 0,
    "docs/evidence.md": 0,
    "docs/adr": 0,
    "docs/howto": 17,
    "docs": 10,
    "orchestrator/plait/core": 9,
    "orchestrator/plait/machine": 0,
    "orchestrator/plait/runtime": 5,
    "orchestrator/plait/apps": 2,
    "orchestrator/plait/tasks": 1,
    "packages/plait-bench": 25,
    "packages/plait-research": 40,
    "packages/plait-router": 0,
    "packages/plait-server": 7,
    "planners": 8,
    "policies": 2,
    "workers/plait/workers/http": 1,
    "workers": 3,
    "experiments": 8,
    "training": 2,
    "examples": 1,
    "scripts": 0,
}
"""Most forms per area: a file, or a folder without the areas inside it that are named themselves."""
GENERATED = ROOT / "docs/reference"
NAMES_LIMIT = 36
"""Most functions whose name is a participle or a verb of speech alone."""
LONE_WORDS = frozenset(
    "told said heard held kept made given taken left gone begun found asked shown read_through elsewhere".split()
)


def prose(path: Path) -> Iterator[str]:
    """Yield the prose of a file: a page without its code, or the strings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield FENCE.sub(" ", text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield token.string


def area(path: Path) -> str | None:
    """Return the area of a file: the longest one that contains it."""
    name = path.relative_to(ROOT).as_posix()
    inside = [each for each in LIMITS if name == each or name.startswith(f"{each}/")]
    return max(inside, key=len) if inside else None


@cache
def counted() -> dict[str, Counter[str]]:
    """Return the forms of each area, counted."""
    found: dict[str, Counter[str]] = {each: Counter() for each in LIMITS}
    for top in sorted({each.split("/")[0] for each in LIMITS}):
        paths = [ROOT / top] if (ROOT / top).is_file() else sorted((ROOT / top).rglob("*"))
        for path in paths:
            if path.suffix in (".md", ".py") and not path.is_relative_to(GENERATED) and (name := area(path)):
                found[name].update(hit.group().lower() for text in prose(path) for hit in FORMS.finditer(text))
    return found


@pytest.mark.parametrize("name", LIMITS)
def test_an_area_has_no_more_of_the_forms_than_before(name: str) -> None:
    forms = counted()[name]
    assert forms.total() <= LIMITS[name], f"{name} has {forms.total()}: {forms.most_common(12)}"


def test_a_function_is_named_by_a_verb_and_an_object() -> None:
    lone = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for root in (*ROOTS, *SIDE)
        for path in sorted((ROOT / root).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in LONE_WORDS
    ]
    assert len(lone) <= NAMES_LIMIT, f"{len(lone)} such names:\n" + "\n".join(lone)


@pytest.mark.parametrize("form", SWAP)
def test_every_form_is_an_expression_with_a_replacement(form: str) -> None:
    assert re.compile(form)
    assert SWAP[form].strip()
