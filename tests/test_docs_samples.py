"""The Python samples of the pages on code of one's own run as they stand, with a script in the place of a model."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.workers.http.fake_server import FakeServer

PAGES = Path(__file__).resolve().parent.parent / "docs" / "howto"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SCRIPTED = """
import functools
from pydantic import BaseModel
from plait import Agent, AsyncOrchestrator, Budget, Orchestrator, tool
from plait.planners.search.tree import Tree
from plait.workers.scripted import Reply, Scripted

def answering(*replies):
    return functools.partial(Orchestrator, workers=[Scripted([Reply(**reply) for reply in replies])])
"""
AGENTS = """
class City(BaseModel):
    name: str
    people: int

@tool
def population(city: str) -> int:
    '''Return how many people live there.'''
    return 5

Orchestrator = answering({"text": '{"name": "Rome", "people": 5}'})
"""
STEPS = {"when": "(?s)check", "text": "answer: 42"}, {"text": "check it\n"}
BEFORE = {
    "own-agent 1": AGENTS,
    "own-agent 2": AGENTS,
    "own-flow 2": "orchestrator = AsyncOrchestrator(workers=[Scripted([Reply(text='4')])])\n",
    "own-search 1": f"question, plait = 'What is 6 times 7?', answering(*{STEPS!r})()\n",
}
"""What a page takes for granted, by the page and the number of its sample."""
AFTER = {
    "own-agent 1": "assert answer.output == City(name='Rome', people=5), answer",
    "own-agent 2": "assert 'Rome' in answer.answer and answer.status == 'done'",
    "own-agent 3": "assert write.name == 'write' and write.approve and write.side_effects",
    "own-flow 1": """
with answering({"when": "Right or wrong", "text": "right"}, {"text": "blue"})() as plait:
    assert plait.run("Which colour?", planner=Checked()).answer == "blue"
""",
    "own-flow 2": "assert ctx.result.answer == '4'",
    "own-planner 1": """
assert waves == [["rome", "oslo"], ["both"]] and kinds == {"rome": "call", "oslo": "call", "both": "join"}
assert wider.steps[2].needs == ("rome", "oslo", "bern") and len(wider.steps) == 4
""",
    "own-search 1": "assert plait.run(question, planner=Tree(search='stride', scorer=Checked())).answer == '42'",
    "own-search 2": "assert reward.name == 'reward'",
    "own-search 3": f"""
with answering(*{STEPS!r})() as plait:
    assert plait.run("What is 6 times 7?", planner=Tree(search=Newest(), n=4, depth=4)).answer == "42"
""",
    "own-server 1": "assert answer.status == 'done'",
}
"""What has to be so behind it."""


def samples() -> dict[str, str]:
    """Return the samples, by page and number."""
    return {
        f"{page.stem} {number}": code
        for page in sorted(PAGES.glob("own-*.md"))
        for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), 1)
    }


def test_each_sample_is_looked_at() -> None:
    assert set(samples()) == set(AFTER)


@pytest.mark.parametrize("name", AFTER)
async def test_a_sample_runs_as_it_stands(name: str) -> None:
    async with FakeServer() as server:
        code = samples()[name].replace("http://localhost:8000/v1", server.url)
        names: dict[str, Any] = {}
        for part in (SCRIPTED, BEFORE.get(name, ""), code, AFTER[name]):
            compiled = compile(part, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            done = eval(compiled, names)  # a page's own code
            if inspect.isawaitable(done):
                await done
