"""Transcripts of threads in the formats of APR and ThreadWeaver, and a model that writes them, a letter a token.

A transcript has a beginning that spawns threads, the threads, and an end. The same words stand one behind another in
the transcript of one line. Lengths of threads are lognormal around 768 tokens, as unequal as a share of .4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

MIDDLE, SPREAD = 768, 0.4
LETTERS = "abcdefghijklmnopqrstuvwxyz     "
FORMATS = ("apr", "threadweaver")
_RUN = re.compile(r"Run (\d+) of (\d+)|:\[(\d+), (\d+), 1, 1\]")


@dataclass(frozen=True)
class Transcript:
    """What the model writes for one question."""

    format: str
    width: int
    number: int

    @property
    def threads(self) -> list[str]:
        """The texts of the threads, without what closes them."""
        rng = Random(f"{self.format} {self.width} {self.number}")
        lengths = [max(64, round(rng.lognormvariate(0, SPREAD) * MIDDLE)) for _ in range(self.width)]
        return ["".join(rng.choices(LETTERS, k=length)) for length in lengths]

    @property
    def begin(self) -> str:
        """The parent's text up to its call of threads."""
        places = range(1, self.width + 1)
        thought = "".join(Random(f"begin {self.number}").choices(LETTERS, k=128))
        if self.format == "threadweaver":
            lines = "\n".join(f"<Outline> {place}: way {place}</Outline>" for place in places)
            return f"{thought}<Parallel>\n<Outlines>\n{lines}\n</Outlines>"
        nodes = [
            f"Generated Node #0,{place}: 60:[{self.number}, {self.width}, 1, 1] Operation: 1*1=1" for place in places
        ]
        calls = [f"<Start Sub Search {place - 1} at level 1> Moving to Node #0,{place}" for place in places]
        parts = [thought, *nodes, "<Calling Sub Searches>", *calls, "<End Calling Sub Searches>"]
        return "\n" + "\n".join(parts)

    @property
    def end(self) -> str:
        """The parent's text behind the threads' results."""
        text = "".join(Random(f"end {self.number}").choices(LETTERS, k=128))
        return (
            f"</Parallel>{text} \\boxed{{42}}" if self.format == "threadweaver" else f"\n{text}\nNo solution found.\n"
        )

    @property
    def line(self) -> str:
        """The whole as one line."""
        return "".join([self.begin, *self.threads, self.end])

    @property
    def question(self) -> str:
        """The question of the threads' planner."""
        if self.format == "threadweaver":
            return f"Run {self.number} of {self.width}"
        return f"{self.number} {self.width} 1 1 -> 60"

    def tokens(self) -> tuple[int, int]:
        """Return the tokens of one line, and those on the critical path of threads."""
        threads = [len(each) for each in self.threads]
        return len(self.line), len(self.begin) + max(threads) + len(self.end)


def model_of(format_: str, serial: bool) -> Callable[[str], str]:
    """Return the model: what it writes behind a context."""

    def write(context: str) -> str:
        found = _RUN.search(context)
        assert found is not None, context[:200]
        number, width = (int(each) for each in (found[1] or found[3], found[2] or found[4]))
        transcript = Transcript(format_, width, number)
        if serial:
            return transcript.line
        if format_ == "threadweaver":
            header = re.search(r"\n<Thread>\n(\d+):\Z", context)
            if header is not None:
                return transcript.threads[int(header[1]) - 1] + "</Thread>"
            return transcript.end if "</Thread>" in context else transcript.begin
        node = re.match(r"Moving to Node #0,(\d+)\n", context)
        if node is not None:
            return transcript.threads[int(node[1]) - 1]
        return transcript.end if "<End Sub Searches>" in context else transcript.begin

    return write
