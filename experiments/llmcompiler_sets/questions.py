"""The questions of LLMCompiler's three sets, and the calls of each by rule: what a model plans that makes no mistake.

HotpotQA's comparisons need a search for each of two names, Movie one for each of eight films. A question of ParallelQA
searches for each of its things (`branch` of them), then calculates: where it changes things, once for each, else once
for each pair of neighbours; and once more over all of these. So do the examples in the authors' prompts.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

DATA = Path(__file__).parent / "data" / "questions.jsonl.gz"
SETS = ("HotpotQA", "Movie", "ParallelQA")
SHORTEST_S, LONGEST_S = 0.3, 1.0
"""5 and 95 % of the calls take less: a lognormal distribution."""
_NAME = re.compile(r"(?:\"[^\"]+\"|[A-Z0-9][\w'.&-]*(?: (?:of|the|de|for|in|&) [A-Z0-9][\w'.&-]*| [A-Z0-9][\w'.&-]*)*)")
_ASKS = re.compile(
    r"^(?:(?:If|The|Which|What|Who|Whose|Where|When|Are|Were|Was|Is|Do|Does|Did|Have|Has|In|Given|With|Considering"
    r"|After) ?)+"
)
_CHANGED = re.compile(r"%|times|half|halved|doubl|tripl|increas|decreas|reduc")


@dataclass(frozen=True)
class Task:
    """One call."""

    tool: str
    text: str
    needs: tuple[int, ...] = ()
    """Places of the tasks whose results it reads, from 0."""


@dataclass(frozen=True)
class Question:
    """A question and its calls."""

    set: str
    id: str
    text: str
    answer: str
    tasks: tuple[Task, ...]

    @property
    def waves(self) -> list[list[int]]:
        """The tasks that can run in parallel, wave after wave."""
        level: list[int] = []
        for task in self.tasks:
            level.append(1 + max((level[each] for each in task.needs), default=-1))
        return [[place for place, each in enumerate(level) if each == wave] for wave in range(max(level) + 1)]

    def seconds(self, place: int) -> float:
        """Return the time of a call, the same for all contenders."""
        middle = (math.log(SHORTEST_S) + math.log(LONGEST_S)) / 2
        spread = (math.log(LONGEST_S) - math.log(SHORTEST_S)) / (2 * 1.6449)
        return Random(f"{self.set} {self.id} {place}").lognormvariate(middle, spread)

    def observation(self, place: int) -> str:
        """Return the result of a call: a paragraph of some 120 tokens, or a number."""
        if self.tasks[place].tool == "math":
            return str(place * 37 + 11)
        return f"{self.tasks[place].text} is known for " + "much that is read of it here " * 15 + "and more."


def names_of(text: str, count: int) -> list[str]:
    """Return the names in a question, as many as are wanted."""
    found = [_ASKS.sub("", each.strip("\"'.,?")) for each in _NAME.findall(text)]
    names = [name for name in dict.fromkeys(found) if len(name) > 2]
    return [*names[:count], *(f"thing {number} of the question" for number in range(len(names), count))][:count]


def movie_tasks(text: str) -> list[Task]:
    """Return a search for each film."""
    asked, _, options = text.partition("\nOptions:\n")
    films = asked.removeprefix("Find a movie similar to ").split(", ", 3)
    return [Task("search", film) for film in [*films, *(line for line in options.split("\n") if line.strip())]]


def parallel_tasks(text: str, branch: int) -> list[Task]:
    """Return the searches and calculations of a question of ParallelQA."""
    names = names_of(text, branch)
    tasks = [Task("search", name) for name in names]
    if _CHANGED.search(text):
        tasks += [Task("math", f"{name} after the change", (place,)) for place, name in enumerate(names)]
    else:
        pairs = zip(names, names[1:], strict=False)
        tasks += [Task("math", f"{a} compared with {b}", (at, at + 1)) for at, (a, b) in enumerate(pairs)]
    last = tuple(range(branch, len(tasks)))
    return [*tasks, Task("math", "what is asked, of these", last)] if len(last) > 1 else tasks


def read_questions(path: Path = DATA) -> list[Question]:
    """Return all questions."""
    questions: list[Question] = []
    for row in map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines()[1:]):
        text = row["question"]
        match row["set"]:
            case "HotpotQA":
                tasks = [Task("search", name) for name in names_of(text, 2)]
            case "Movie":
                tasks = movie_tasks(text)
            case _:
                tasks = parallel_tasks(text, row["branch"])
        questions.append(Question(row["set"], row["id"], text, row["answer"], tuple(tasks)))
    return questions
