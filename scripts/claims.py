"""Writes docs/evidence.md from experiments/claims.toml and the tables of the pages of experiments.

    python -m scripts.claims            write the page (or `make docs`)
    python -m scripts.claims --check    compare it with the committed one (`make check` does)
    python -m scripts.claims --seal     date every claim whose choice was changed with now

A claim names its data, setting, comparator, measure, number of questions and the smallest effect that counts. Its
figure is read from a table that was made of rows, together with the figures of the other settings that were tried. The
seal of a claim is a hash of its choice: a choice that was changed gets a new time, and a time after the rows is marked.
A claim without `rows` is not measured yet, and not on the page.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments._tools.statistics import Estimate, holm, p_value, verdict
from plait.apps.common.intervals import wilson

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "experiments" / "claims.toml"
PAGE = ROOT / "docs" / "evidence.md"
KINDS = ("bundled", "small", "recorded", "scripts")
WORDS = ("no", "not shown", "yes")
CHOICE = ("on", "page", "data", "setting", "against", "measure", "n", "smallest", "within", "at", "tried", "guard")
LEVEL = 0.05
_NUMBER = r"([-+−]?\d[\d,]*(?:\.\d+)?)"
_FIGURE = re.compile(rf"{_NUMBER}\s?(?:%|points)?\s?\({_NUMBER}(?: %)?(?:–| to ){_NUMBER}[^)]*\)")
_COUNT = re.compile(rf"{_NUMBER} % of (\d+)")
Cell = Mapping[str, Any]


class Figure(NamedTuple):
    """A figure on a page, and the words that show it."""

    found: Estimate
    text: str


class Result(NamedTuple):
    """The result of a claim."""

    figure: Figure
    others: list[Figure]
    p: float | None
    word: str
    guard: Figure | None


def claims() -> dict[str, Any]:
    """Return the file of claims, without those that have no rows yet."""
    data = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    for claim in data["claim"]:
        claim["cell"] = [cell for cell in claim["cell"] if "rows" in cell]
    data["claim"] = [claim for claim in data["claim"] if claim["cell"]]
    return data


def seal(cell: Cell) -> str:
    """Return the hash of the choice of a claim."""
    choice = {name: cell[name] for name in CHOICE if name in cell}
    return hashlib.sha256(json.dumps(choice, sort_keys=True, default=str).encode()).hexdigest()[:8]


def tables(name: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield heading, columns and rows of each table of an experiment's page."""
    heading, lines = "", list[list[str]]()
    path = ROOT / "experiments" / name / "README.md"
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            lines.append([each.strip() for each in line.strip()[1:-1].split("|")])
            continue
        if lines:
            yield heading, lines[0], lines[2:]
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def figures(page: str, at: Cell) -> list[Figure]:
    """Return the figures at a place: `after` a phrase, or in the `column` of each `row` that has all its cells. A row
    of `*` is any row. Raises `LookupError` for a place without a figure."""
    if "after" in at:
        _, _, rest = (ROOT / "experiments" / page / "README.md").read_text(encoding="utf-8").partition(at["after"])
        return [_figure(rest, at)]
    found: list[Figure] = []
    for row in rows_at(page, at):
        if _shows(row[at["column"]]):
            minus = row[at["minus"]] if isinstance(at.get("minus"), str) else at.get("minus", 0)
            found.append(_figure(row[at["column"]], {**at, "minus": minus}))
    if not found:
        raise LookupError(f"experiments/{page}/README.md has no figure at {at}")
    return found


def rows_at(page: str, at: Cell) -> Iterator[dict[str, str]]:
    """Yield the rows of a place by column."""
    wanted = [at["row"]] if isinstance(at["row"], str) else list(at["row"])
    for heading, columns, rows in tables(page):
        if at.get("table", heading) == heading and at["column"] in columns:
            for row in rows:
                if len(row) == len(columns) and all(each in ("*", *row) for each in wanted):
                    yield dict(zip(reversed(columns), reversed(row), strict=True))  # of equal columns the first


def one(page: str, at: Cell) -> Figure:
    """Return the only figure at a place, or with `first` the first. Raises `LookupError` for several."""
    found = figures(page, at)
    if len(found) > 1 and not at.get("first"):
        raise LookupError(f"experiments/{page}/README.md has {len(found)} figures at {at}")
    return found[0]


def _shows(text: str) -> bool:
    return bool(_FIGURE.search(text) or _COUNT.search(text))


def _number(text: Any) -> float:
    return float(str(text).replace(",", "").replace("−", "-").rstrip(" %"))


def _figure(text: str, at: Cell) -> Figure:
    minus = _number(at.get("minus", 0))
    found, count = _FIGURE.search(text), _COUNT.search(text)
    if found:
        estimate = Estimate(*(_number(each) - minus for each in found.groups()))
        shown = re.sub(r", \d+\)$", ")", found[0])
    elif count:
        of = int(count[2])
        low, high = wilson(round(_number(count[1]) * of / 100), of)
        estimate = Estimate(*(each - minus for each in (_number(count[1]), 100 * low, 100 * high)))
        shown = f"{_number(count[1]):g} % ({100 * low:.0f}–{100 * high:.0f})"
    else:
        raise LookupError(f"no figure in {text[:80]!r}")
    if minus:
        shown = f"{estimate.value:+.1f} points ({estimate.low:+.1f} to {estimate.high:+.1f})"
    return Figure(estimate, shown)


def result(cell: Cell) -> Result:
    """Return the result of a claim: its figure, those of the other settings, and the word for it."""
    page, unit = cell["page"], cell["measure"]
    figure = one(page, cell["at"])
    others = [each for at in cell.get("tried", ()) for each in figures(page, {**cell["at"], **at})]
    if figure in others:
        others.remove(figure)
    p = None
    if "within" in cell:
        most = cell["within"]
        low, high = figure.found.low, figure.found.high
        word = "yes" if -most <= low and high <= most else "no" if low > most or high < -most else "not shown"
    elif cell.get("rounds"):
        word = verdict(figure.found, cell["smallest"])
    else:
        every = [figure] if cell.get("held_out") else [figure, *others]
        p = holm([p_value(each.found, cell["smallest"], "ratio" in unit) for each in every])[0]
        word = "not shown" if p >= LEVEL else "yes" if figure.found.value > cell["smallest"] else "no"
    guard = None
    if "guard" in cell:
        guard = one(page, {**cell["at"], **cell["guard"]})
        word = min(word, verdict(guard.found, cell["guard"]["smallest"]), key=WORDS.index)
    if "unfair" in cell:
        word = min(word, "not shown", key=WORDS.index)
    return Result(figure, others, p, word, guard)


def chosen(cell: Cell) -> str:
    """Return when a claim was chosen, and whether its rows were there already."""
    if seal(cell) != cell["seal"]:
        return "**changed, and not dated**"
    return f"{cell['written']:%Y-%m-%d}, " + ("**after its rows**" if is_late(cell) else "before its rows")


def is_late(cell: Cell) -> bool:
    """Return whether a claim was written after its rows. A date without a time is the beginning of the day for rows."""
    written, rows = (
        each if isinstance(each, dt.datetime) else dt.datetime.combine(each, dt.time(), dt.UTC)
        for each in (cell["written"], cell["rows"])
    )
    return written >= rows


def summary(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of all claims."""
    yield f"| claim | {' | '.join(KINDS)} | papers |"
    yield "|---" * (len(KINDS) + 2) + "|"
    papers = {paper["id"]: paper for paper in data["paper"]}
    for claim in data["claim"]:
        cells = {kind: list[str]() for kind in KINDS}
        for cell in claim["cell"]:
            came = result(cell)
            link = f"[{came.figure.text} {cell['short']}](../experiments/{cell['page']}/README.md)"
            cells[cell["on"]].append(f"**{came.word}**: {link}")
        said = "; ".join(f"{papers[each]['name']}: {papers[each]['short']}" for each in claim.get("papers", ()))
        row = [f"[{claim['text']}](#{_anchor(claim['text'])})", *("<br>".join(cells[kind]) or "–" for kind in KINDS)]
        yield f"| {' | '.join([*row, said or '–'])} |"


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-")


HEAD = ("data", "setting", "against", "n", "result", "worst to best of those tried", "p, corrected",
        "must hold too", "in sequence", "counts from", "holds", "chosen")  # fmt: skip


def section(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of a claim."""
    yield from ("", f"### {claim['text']}", "")
    yield from ("| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|")
    for cell in claim["cell"]:
        came = result(cell)
        yield "| " + " | ".join(_row(cell, came)) + " |"
    for cell in claim["cell"]:
        if words := [cell[name] for name in ("unfair", "note") if name in cell]:
            yield from ("", f"*{cell['setting']}*: {' '.join(words)}")


def _row(cell: Cell, came: Result) -> list[str]:
    every = sorted([came.figure, *came.others], key=lambda each: abs(each.found.value) if "within" in cell
                   else -each.found.value, reverse=True)  # fmt: skip
    spread = f"{every[0].text} to {every[-1].text} of {len(every)}" if came.others else "one setting"
    p = "–" if came.p is None else "< .001" if came.p < 0.001 else f"{came.p:.3f}".lstrip("0")
    guard = f"{cell['guard']['measure']}: {came.guard.text}" if came.guard else ""
    bar = f"within {cell['within']:g}" if "within" in cell else f"{cell['smallest']:g}"
    link = f"[{came.figure.text}](../experiments/{cell['page']}/README.md)"
    rounds = ", range of rounds" if cell.get("rounds") else ""
    return [
        f"{cell['on']}: {cell['data']}", cell["setting"], cell["against"], f"{cell['n']:,}",
        f"{cell['measure']}: {link}{rounds}", spread, p, guard, _sequential(cell), bar, f"**{came.word}**",
        chosen(cell),
    ]  # fmt: skip


def _sequential(cell: Cell) -> str:
    """Return the tokens in sequence, and those of the comparator."""
    if "sequential" not in cell:
        return "–"
    if isinstance(cell["sequential"], str):  # both in one cell
        ends = next(rows_at(cell["page"], {**cell["at"], "column": cell["sequential"]}))[cell["sequential"]].split("; ")
    else:
        ends = [one(cell["page"], {**cell["at"], **at}).text.partition(" (")[0] for at in cell["sequential"]]
    return f"{ends[0]} against {ends[1]} tokens"


def papers(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the papers' figures."""
    yield from ("| paper | reports | source |", "|---|---|---|")
    for paper in data["paper"]:
        yield f"| {paper['name']}, arXiv {paper['id']} | {paper['says']} | {paper.get('source', 'abstract')} |"


def page() -> str:
    """Return docs/evidence.md as its claims and rows make it."""
    data = claims()
    cells = [(cell, result(cell)) for claim in data["claim"] for cell in claim["cell"]]
    words = [came.word for _, came in cells]
    late = sum(is_late(cell) for cell, _ in cells)
    counts = ", ".join(f"{words.count(word)} {word}" for word in reversed(WORDS))
    lines = [
        data["head"].strip(), "", f"Of {len(words)} rows {counts}. {late} were chosen after their rows were known.", "",
        *summary(data), "", data["foot"].strip(), "", "## The rows", "", data["rows"].strip(),
        *(line for claim in data["claim"] for line in section(claim)),
        "", "## What the papers say", "", data["papers"].strip(), "", *papers(data),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def sealed(text: str, today: str) -> str:
    """Return the file of claims with a new seal and date for each choice that was changed."""
    cells = iter([cell for claim in tomllib.loads(text)["claim"] for cell in claim["cell"]])
    parts = text.split("[[claim.cell]]\n")
    for place in range(1, len(parts)):
        cell = next(cells)
        if cell.get("seal") != seal(cell):
            kept = re.sub(r"^(seal|written) = .*\n", "", parts[place], flags=re.MULTILINE)
            parts[place] = f'seal = "{seal(cell)}"\nwritten = {today}\n{kept}'
    return "[[claim.cell]]\n".join(parts)


def main(words: Sequence[str]) -> int:
    """Write the page, compare it, or date what was changed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.claims", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seal", action="store_true")
    asked = parser.parse_args(words)
    if asked.seal:
        text = sealed(CLAIMS.read_text(encoding="utf-8"), dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
        CLAIMS.write_text(text, encoding="utf-8")
    if asked.check:
        same = PAGE.read_text(encoding="utf-8") == page()
        print("docs/evidence.md: " + ("as its claims" if same else "stale: run `python -m scripts.claims`"))
        return int(not same)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
