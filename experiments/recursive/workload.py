"""Tasks of a million words, and a model that reads them without error: its answers, and the code that it writes.

The needles follow RULER (arXiv 2404.06654; the noise haystack, keys of words, values of seven digits), the counts
follow OOLONG (arXiv 2511.02817; lines of date, user and instance, whose label is inferred). Their data is
not used: the instances are made of templates, and the model knows the label of each template. A token is a word.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import NamedTuple

WORDS = 1_000_000
CONTEXT = 32_768
"""Tokens of the model's context."""
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_KEYS = [
    f"{a}-{b}" for a in ("abrupt", "calm", "dusty", "eager", "frank") for b in ("anchor", "bridge", "cactus", "dome")
]
_TOPICS = ("Peru", "amber", "chess", "Mozart", "tin", "the Danube", "jazz", "Oslo", "glass", "Kepler")
TEMPLATES = {
    "numeric value": "How many books about {topic} were printed in {year} ?",
    "location": "Where was the museum of {topic} opened in {year} ?",
    "human being": "Who wrote the most about {topic} in {year} ?",
    "entity": "What animal was the emblem of {topic} in {year} ?",
    "abbreviation": "What did the letters of the society of {topic} stand for in {year} ?",
    "description and abstract concept": "Why did people admire {topic} in {year} ?",
}
_LABEL = {
    label: re.compile(re.escape(text).replace(r"\{topic\}", ".+?").replace(r"\{year\}", r"\d{4}"))
    for label, text in TEMPLATES.items()
}
_NEEDLE = re.compile(r"One of the special magic numbers for ([\w-]+) is: (\d{7})\.")
_QUERY = re.compile(r"special magic numbers? for ([\w-]+) mentioned in the provided text")
_MOST = "which of the labels is the most common?"
_HOW_MANY = re.compile(r"how many data points should be classified as label '([^']+)'")


class Problem(NamedTuple):
    """A text with its question, and the right answer."""

    kind: str
    text: str
    answer: str


def needles(values: int, seed: int) -> Problem:
    """Return a haystack with needles: four keys; the question is about one with this number of values."""
    rng = random.Random(f"needles {values} {seed}")
    keys = rng.sample(_KEYS, 4)
    facts = [(key, str(rng.randrange(10**6, 10**7))) for key in keys for _ in range(values if key == keys[0] else 1)]
    size = len(_NOISE.split())
    lines = [_NOISE] * (WORDS // size)
    for place, (key, value) in zip(
        sorted(rng.sample(range(len(lines)), len(facts))), rng.sample(facts, len(facts)), strict=True
    ):
        lines[place] += f" One of the special magic numbers for {key} is: {value}."
    head = "Some special magic numbers are hidden within the following text. I will quiz you about them afterwards.\n"
    question = f"\nWhat are all the special magic numbers for {keys[0]} mentioned in the provided text?"
    wanted = sorted(value for key, value in facts if key == keys[0])
    return Problem(f"needles, {values}", head + "\n".join(lines) + question, ", ".join(wanted))


def counts(most: bool, seed: int) -> Problem:
    """Return lines whose labels are to be counted: the most common label, or the number of one label."""
    rng = random.Random(f"counts {most} {seed}")
    labels = list(TEMPLATES)
    weights = [rng.uniform(0.5, 1.5) for _ in labels]
    lines: list[str] = []
    counted: Counter[str] = Counter()
    size = 0
    while size < WORDS:
        (label,) = rng.choices(labels, weights)
        counted[label] += 1
        asked = TEMPLATES[label].format(topic=rng.choice(_TOPICS), year=rng.randrange(1700, 2000))
        date = f"{rng.choice(('Jan', 'Jul'))} {rng.randrange(1, 29)}, 2023"
        lines.append(f"Date: {date} || User: {rng.randrange(10**5)} || Instance: {asked}")
        size += len(lines[-1].split())
    head = "The following lines contain general-knowledge questions, one per line. Each has one of 6 labels: "
    head += f"{', '.join(labels)}.\n"
    label = rng.choice(labels)
    question = _MOST if most else f"how many data points should be classified as label '{label}'?"
    answer = max(counted, key=lambda each: counted[each]) if most else str(counted[label])
    kind = "most common label" if most else "count of a label"
    return Problem(kind, f"{head}{chr(10).join(lines)}\nIn the above data, {question}", answer)


def problems(seeds: int) -> list[Problem]:
    """Return the problems of each kind."""
    return [
        problem
        for seed in range(seeds)
        for problem in (needles(1, seed), needles(4, seed), counts(True, seed), counts(False, seed))
    ]


def found_in(text: str) -> dict[str, list[str]] | dict[str, int]:
    """Return the notes of a reader without error about a piece: values by key, or numbers by label."""
    needles: dict[str, list[str]] = {}
    for key, value in _NEEDLE.findall(text):
        needles.setdefault(key, []).append(value)
    if needles or "Instance:" not in text:
        return needles
    lines = [line for line in text.splitlines() if "|| Instance:" in line]
    return Counter(label for line in lines for label, form in _LABEL.items() if form.search(line))


def answer_of(question: str, notes: list[dict[str, list[str]] | dict[str, int]]) -> str:
    """Return the answer that notes of pieces give."""
    if asked := _QUERY.search(question):
        return ", ".join(sorted(value for note in notes for value in note.get(asked[1], ())))  # type: ignore[arg-type]
    total: Counter[str] = sum((Counter(note) for note in notes), Counter())  # type: ignore[arg-type]
    if asked := _HOW_MANY.search(question):
        return str(total[asked[1]])
    return max(total, key=lambda each: total[each])


def reply(prompt: str) -> str:
    """Return the model's answer: notes of a piece, the answer of notes, or an answer of the whole."""
    if "PIECE" in prompt:
        return json.dumps(found_in(prompt.partition("PIECE")[2]))
    if "NOTES" in prompt:
        return answer_of(prompt, [json.loads(line) for line in prompt.partition("NOTES")[2].splitlines() if line])
    return answer_of(prompt, [found_in(prompt)])


LOOK = "print(len(context), context[:300], context[-300:])"
SEARCH = r"""
import re
key = re.search(r"numbers for ([\w-]+) mentioned", context[-200:])[1]
found = re.findall(rf"magic numbers for {key} is: (\d+)", context)
print(found)
FINAL(", ".join(sorted(found)))
"""
COUNT = r"""
import json
lines, pieces, size = context.splitlines(), [[]], 0
for line in lines:
    size += len(line.split())
    if size > 30_000:
        pieces.append([])
        size = len(line.split())
    pieces[-1].append(line)
answers = []
for at in range(0, len(pieces), 32):
    answers += llm_query_batched(["Count the labels.\nPIECE\n" + "\n".join(piece) for piece in pieces[at:at + 32]])
print(len(answers))
FINAL(llm_query(lines[-1] + "\nNOTES\n" + "\n".join(answers)))
"""


def turn(prompt: str) -> str:
    """Return the model's turn in a session: a look, then a search or a count."""
    if "```repl" not in prompt.partition("It begins:")[2]:
        return f"First a look.\n```repl\n{LOOK}\n```"
    return f"```repl{SEARCH if 'magic' in prompt.rpartition('The code printed')[2] else COUNT}```"
