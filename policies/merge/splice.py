"""Merge `splice`: write the outcomes of spawned threads as the text that their parent reads on.

The words come from the options, which a planner takes from its dialect's table; whether a thread's claim holds the task
says. This file does not know any dialect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.core.base import Merge, Task, Verdict
from orchestrator.core.ir import Frozen
from orchestrator.core.view import Branch

__all__ = ["Splice"]

_FIELD = re.compile(r"\{(item|answer|text|number)\}")


class Entry(Frozen):
    """One place in the block."""

    item: str = ""
    """What the parent asked this thread to do."""
    branch: str | None = None
    """Name of the branch that did it; without one the place reads as a thread that found nothing."""


class Splice(Merge):
    """The block is `head`, the entries with `separator` between them, `tail`; the value is that text.

    In the templates `{item}`, `{answer}`, `{text}` and `{number}` (from 1) are put in, once each. An entry is written
    from `hit` if its thread reached the goal, else from `none`.
    """

    entries: tuple[Entry, ...] = ()
    """The places in order. Empty: one for each branch, in the join's order."""
    head: str = ""
    """Before the first entry."""
    hit: str = "{text}"
    """Entry of a thread that reached the goal."""
    none: str = ""
    """Entry of a thread that did not: found nothing, failed, was stopped, or claimed what proved wrong."""
    separator: str = ""
    """Between entries."""
    tail: str = ""
    """After the last entry."""
    goal: str | None = None
    """Regular expression found in the text of a thread that reached the goal; its group `answer` is what it found.
    Without it every thread that ended in a value reached it, and all are waited for."""
    check: bool = True
    """Put the `hit` entry to the task's verifier first, and count a thread whose claim is wrong as one that found
    nothing. A claim that the task cannot judge stands. Needs `goal`."""
    words: bool = False
    """The text is words with single spaces between them, as a word-level tokenizer reads it."""
    end: str = ""
    """What a thread's text ends with when the thread ended by itself."""
    pick: bool = False
    """The value is the first `hit` entry alone (empty if there is none): the answer, not a text to read on."""
    close: str = ""
    """Added to a thread's text that does not end so."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the block; `winner` is the first thread that reached the goal."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.entries or tuple(Entry(branch=branch.name) for branch in branches)
        written: list[tuple[str, bool]] = []
        hits: list[str] = []
        wrong = 0
        for number, entry in enumerate(entries, 1):
            branch = by_name.get(entry.branch) if entry.branch is not None else None
            text, refuted = self._hit(entry, number, branch, task)
            wrong += refuted
            if text is not None and branch is not None:
                hits.append(branch.name)
            fields = {"item": entry.item, "number": str(number)}
            written.append((_fill(self.none, fields), False) if text is None else (text, True))
        done = sum(branch.done for branch in branches)
        why = f"{len(hits)} of {len(entries)} threads reached the goal"
        why += f" ({', '.join(hits)})" if hits else ""
        why += f"; {wrong} claimed it wrongly" if wrong else ""
        why += f"; {len(branches) - done} did not end in a value" if done < len(branches) else ""
        why += f"; {len(entries) - len(branches)} were not run" if len(entries) > len(branches) else ""
        if self.pick:
            value = next((text for text, hit in written if hit), "")
            return Verdict(value=value, why=why, winner=hits[0] if hits else None)
        value = self.head + self.separator.join(text for text, _ in written) + self.tail
        return Verdict(value=value, why=why, winner=hits[0] if hits and self.goal is not None else None)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether a thread reached the goal. The others' entries could still change, but not what the parent
        needs to know: one way that leads there."""
        if outstanding <= 0:
            return True
        if self.goal is None:
            return False
        items = {entry.branch: entry for entry in self.entries}
        return any(
            self._hit(items.get(branch.name, Entry(branch=branch.name)), number, branch, task)[0] is not None
            for number, branch in enumerate(branches, 1)
        )

    def _hit(self, entry: Entry, number: int, branch: Branch | None, task: Task) -> tuple[str | None, bool]:
        """Return the entry of a thread that reached the goal, else `None` and whether its claim was refuted."""
        if branch is None or not branch.done or branch.result is None:
            return None, False
        text = branch.result.text
        if self.words:
            text = " ".join(text.split())
        if self.end and not text.endswith(self.end):
            text += self.close
        fields = {"item": entry.item, "text": text, "answer": "", "number": str(number)}
        if self.goal is None:
            return _fill(self.hit, fields), False
        found = re.search(self.goal, text)
        if found is None:
            return None, False
        fields["answer"] = found.groupdict().get("answer") or ""
        written = _fill(self.hit, fields)
        if self.check:
            answer = task.extract(written)
            if answer is None or task.verify(answer) is False:
                return None, True
        return written, False


def _fill(template: str, fields: dict[str, str]) -> str:
    """Put fields into a template; braces around anything else stay as they are."""
    return _FIELD.sub(lambda found: fields.get(found[1], ""), template)
