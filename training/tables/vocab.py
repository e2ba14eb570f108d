"""The vocabulary of the planner of tools: pieces of text, spaces and line ends included, and how text is cut.

Numbers are single digits; names, fields and slots are one piece each. A planner's instructions are cut down to one
piece (`RULES`): the model was trained for one set of tools, so what they say is always the same to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from plait_bench.tasks.tables.language import ATTRIBUTES, NAMES, OPERATIONS, RELATIONS
from plait_bench.tasks.tables.questions import PARAMETERS

MOST_TASKS = 40
SPECIAL = ("<pad>", "<unk>", "<end>")
MARKS = (
    *("<plan>", "<replan>", "<previous>", "<again>", "<joiner>", "<last>", "<react>", "<native>", "<split>", "<go>"),
    *("<failed>",),
)
"""Replacement of instructions, and of the text of a failure."""

RULES: tuple[tuple[str, str], ...] = (
    (r"\A(?:error|not run|none)[^\n]*", "<failed>"),
    (r"Observation: (?:error|not run|none)[^\n]*", "Observation: <failed>"),
    (r"<tool_response>error[^<]*", "<tool_response><failed>"),
    (r"\AGiven a question, write a plan(?=[\s\S]*\nPart of the work is done)[\s\S]*?\nQuestion: ", "<replan>"),
    (r"\A(?:Given a|Answer the) question(?=[\s\S]*\nAnother plan is not possible)[\s\S]*?\nQuestion: ", "<last>"),
    (r"\AAnswer the question from what the tools[\s\S]*?\nQuestion: ", "<joiner>"),
    (r"\AGiven a question, write a plan(?=[\s\S]*\nAnswer the question from what)[\s\S]*?\nQuestion: ", "<joiner>"),
    (r"\AGiven a question, write a plan[\s\S]*?\nQuestion: ", "<plan>"),
    (r"\n\nPrevious Plan:(?=[\s\S]*\nAnswer the question from what the tools)", ""),
    (r"Answer the question from what the tools[\s\S]*\z", ""),
    (r"\n\nPrevious Plan:\n\n", "<previous>"),
    (r"\n\n(?:Thought: |Part of the work is done)[\s\S]*\nCurrent Plan:\n\n\z", "<again>"),
    (r"\A(?=[\s\S]*\n\n---\nDo not answer the request above yet)", "<split>"),
    (r"\n\n---\nDo not answer the request above yet[\s\S]*\z", "<go>"),
)
"""What is put in the place of what, in this order, before text is cut into pieces: expressions that Python (with `\\Z`
for `\\z`) and the tokenizers library read alike."""

_QUESTION = (
    *("what is ", "find ", "tell me ", "who is ", "is ", "which of ", "how many of ", "if ", "the ", " of ", " and "),
    *(" above ", " below ", " is above ", " is below ", " then ", " else ", " has the most ", " has the least "),
    *(" have ", "what is the total ", "?"),
)
_PLAN = (
    *("(", ")", '("', '")', '(["', '"])', "([", "])", ", ", ', "', '", ', '", "', "], [", '"], [', "], ", '], "'),
    *("[", "]", '"', "\n", "join()", "<END_OF_PLAN>", "true", "false"),
    *('], ["',),
)
_TURNS = (
    *("\nObservation: ", "\n\n", "Action: ", "\nAction: ", "Finish(", "Replan(some calls failed)"),
    *("<END_OF_RESPONSE>", "<tool_response>", "</tool_response>\n", '<tool_call>{"name": "', '", "arguments": {"'),
    *(f'{name}": ' for name in dict.fromkeys(each for names in PARAMETERS.values() for each in names)),
    *(', "', '", "', "}}</tool_call>\n", '"}}</tool_call>\n', "]}}</tool_call>\n", '"]}}</tool_call>\n'),
    *(': "', ': ["', ": [", '": "', '": ["', '": ['),
)
_SPLIT = (
    *("write as a formula: ", "write each of these questions as a formula:\n", "write these as formulas:\n"),
    *('{"template": "write as a formula: {data}", "context": null, "data": ["',),
    *('"], "n": null, "category": "Translation"}', '{"template": null}', "count", "if"),
)


def _build() -> list[str]:
    words: dict[str, None] = dict.fromkeys((*SPECIAL, *MARKS))
    words |= dict.fromkeys((*map(str, range(10)), "-"))
    words |= dict.fromkeys((*(f"s{n}" for n in range(10)), *(f"n{n}" for n in range(10))))
    words |= dict.fromkeys((*NAMES, *ATTRIBUTES, *RELATIONS, *OPERATIONS, *PARAMETERS))
    words |= dict.fromkeys(f"{n}. " for n in range(1, MOST_TASKS + 1))
    words |= dict.fromkeys(f"${n}" for n in range(1, MOST_TASKS + 1))
    words |= dict.fromkeys((*_QUESTION, *_PLAN, *_TURNS, *_SPLIT, "'s "))
    words |= dict.fromkeys(f"<reserved{n}>" for n in range(-len(words) % 32))
    return list(words)


WORDS = _build()
ID = {word: number for number, word in enumerate(WORDS)}
PAD, UNK, END = (ID[word] for word in SPECIAL)
PATTERN = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True) if word not in ("<pad>", "<unk>"))
"""The longest piece first; what is in no piece is unknown."""
_PIECE = re.compile(PATTERN)
_RULES = [(re.compile(rule.replace(r"\z", r"\Z")), mark) for rule, mark in RULES]


def shortened(text: str) -> str:
    """Return a text with the instructions in it cut down to their marks, as the tokenizer does first."""
    for rule, mark in _RULES:
        text = rule.sub(mark, text)
    return text


def pieces(text: str) -> list[tuple[int, int]]:
    """Return id and place of each piece of a text; ValueError at what is in no piece."""
    out: list[tuple[int, int]] = []
    at = 0
    for found in _PIECE.finditer(text):
        if found.start() != at:
            break
        out.append((ID[found[0]], at))
        at = found.end()
    if at != len(text):
        raise ValueError(f"no piece of the vocabulary begins {text[at : at + 30]!r}")
    return out


def encode(text: str) -> list[int]:
    """Ids of a text; ValueError at what is in no piece."""
    return [number for number, _ in pieces(shortened(text))]


def decode(ids: Iterable[int]) -> str:
    """The text of the ids."""
    return "".join(WORDS[number] for number in ids)
