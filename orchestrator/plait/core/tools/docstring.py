"""Parses a Google-style docstring: its text, and the descriptions in its `Args:` section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns|Return|Yields|Raises|Examples?|Notes?|Warnings?|See Also):\s*"
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*+(?:\([^)]*\)\s*+)?:\s*(.*)")

_SENTENCE_END = re.compile(r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)\.(?=\s)")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line.

    >>> first_sentence("After ours (Some et al., arXiv 1), i.e. this:\\na thing. Another.\\n\\nMore.")
    'After ours (Some et al., arXiv 1), i.e. this: a thing.'
    """
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    end = _SENTENCE_END.search(paragraph)
    return paragraph[: end.end()] if end else paragraph


class Docstring(NamedTuple):
    """A docstring, Google style: its text with the return value's description, and a description of each argument."""

    text: str
    arguments: dict[str, str]

    @classmethod
    def of(cls, fn: object) -> Docstring:
        lines = (inspect.getdoc(fn) or "").splitlines() if hasattr(fn, "__name__") else []
        sections: dict[str, list[str]] = {"": []}
        current = sections[""]
        for line in lines:
            if heading := _SECTION.fullmatch(line):
                current = sections.setdefault(heading.group(1), [])
            elif line and not line[0].isspace() and current is not sections[""]:
                current = sections[""]  # text again
                current.append(line)
            else:
                current.append(line)
        text = "\n".join(sections[""]).strip()
        for key in ("Returns", "Return"):
            if returned := " ".join(" ".join(sections.get(key, ())).split()):
                text = f"{text}\nReturns: {returned}".strip()
        arguments: dict[str, str] = {}
        for key in ("Args", "Arguments", "Parameters", "Params"):
            arguments.update(_read_arguments(sections.get(key, ())))
        return cls(text, arguments)


def _read_arguments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (argument, description) of an `Args:` section; a line with deeper indentation continues an item."""
    indent: int | None = None
    item: tuple[str, list[str]] | None = None
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        argument = _ARGUMENT.fullmatch(line.strip()) if depth <= indent else None
        if argument:
            if item:
                yield item[0], " ".join(item[1]).strip()
            item = (argument.group(1), [argument.group(2)])
        elif item:
            item[1].append(line.strip())
    if item:
        yield item[0], " ".join(item[1]).strip()
