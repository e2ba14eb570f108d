"""Programs in compiled languages that planners write: their runs, and the lines that compilers and sanitizers blame."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, NamedTuple

from plait.core.languages import find_language
from plait.core.programs import Cell, normalise_output

RUN_PROGRAM = "run_program"
"""The tool of a sandbox that compiles and runs programs."""
MAX_ERRORS = 20
_QUOTED = re.compile(r"[‘`']([^’`']+)[’`']|undefined: (\S+)")
_FINDING = re.compile(
    r"^.*?(runtime error: .*|(?:Address|Leak|Thread)Sanitizer: [\w-]+(?: race| leaks)?)", re.MULTILINE
)

_RAN = re.compile(r"^ *(\d+)\*?: *(\d+):(.*)$", re.MULTILINE)
"""A line that gcov saw run."""


class ProgramPlace(NamedTuple):
    """A line of a program at which a compiler or a sanitizer reports something; line 0 where it names none."""

    file: str
    line: int
    column: int
    symbol: str
    """The first name that the message quotes."""
    message: str

    def describe(self, program: str) -> str:
        """Describe the place for a prompt: the line, its text and the message."""
        text = dict(enumerate(program.split("\n"), 1)).get(self.line)
        return self.message if text is None else f"line {self.line}, `{text.strip()}`: {self.message}"


def read_errors(text: str, language: str) -> list[ProgramPlace]:
    """Return the first errors in a compiler's output, in its order.

    The first one is the error localisation of SPoC (Kulal et al., arXiv 1906.04908): the line that the search blames.
    """
    places: list[ProgramPlace] = []
    for error in islice(re.finditer(find_language(language).error, text, re.MULTILINE), MAX_ERRORS):
        message, column = error["message"].strip(), re.findall(r"\d+", error["column"])
        quoted = _QUOTED.search(message)
        symbol = (quoted[1] or quoted[2]) if quoted else ""
        at = int(error["line"]), int(column[0]) if column else 0
        places.append(ProgramPlace(error["file"], *at, symbol, message))
    return places


def read_finding(text: str, language: str) -> ProgramPlace | None:
    """Return what a sanitizer reported first, at the first line of the program in its report."""
    finding, file = _FINDING.search(text), find_language(language).file
    if finding is None:
        return None
    at = re.search(rf"\b{re.escape(file)}:(\d+)(?::(\d+))?", text[finding.start() :])
    return ProgramPlace(file, int(at[1]) if at else 0, int(at[2] or 0) if at else 0, "", finding[1])


def read_hot_lines(text: str, count: int = 3) -> str:
    """Return the lines that ran most often as text for a prompt, of what gcov wrote; an empty text without any."""
    ran = [(int(times), int(line), code.strip()) for times, line, code in _RAN.findall(text)]
    hot = sorted(ran, key=lambda line: -line[0])[:count]
    return "; ".join(f"line {line}, `{code}`: {times:,} times" for times, line, code in hot)


def read_cells(reply: Any, program: str, language: str, count: int) -> list[Cell]:
    """Parse the reply of `run_program`: a cell for each of `count` inputs, as `read_outputs` does for Python."""
    reply = reply if isinstance(reply, dict) else {}
    if refused := str(reply.get("refused", "")):
        errors = [place.describe(program) for place in read_errors(refused, language)]
        return [("broken", f"the compiler refuses it: {errors[0] if errors else refused[:500]}")] * count
    cells: list[Cell] = []
    for outcome in reply.get("outcomes", []):
        code, report = outcome["code"], read_finding(outcome["stderr"], language)
        why = report.describe(program) if report else f"exit code {code} {outcome['stderr'][-300:]}".strip()
        cells.append(("error", why) if code else ("value", normalise_output(outcome["stdout"])))
    return [*cells, *[("none", None)] * count][:count]
