"""What every planner promises, held against each file in `planners`: pure, printable, documented, and readers that do
not care how a text is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plait import AsyncOrchestrator, Plugin, tool
from plait.core.errors import PlannerError
from plait.core.flow import Flow
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import ModelCall
from plait.core.plan import Plan, Step, validate
from plait.core.request import Request
from plait.core.result import Result
from plait.planners.threads.threads.dialects import load, names as dialect_names
from plait.runtime.driver.flows import first_patch
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.plugin_names import module_names

ROOT = Path(__file__).resolve().parents[2]
NAMES = module_names("planners")
DIALECTS = dialect_names()
PROMPT = "Translate these words into German: water, light, air."

OPTIONS: dict[str, dict[str, Any]] = {
    "fixed": {"graph": {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "{{prompt}}"}}], "output": "a"}},
    "threads": {"dialect": "threadweaver"},
    "skeleton": {"criterion": "all"},
    "route": {"planners": ["refine"]},
    "refine": {"rounds": [2, 1]},
    "partial_rollout": {"criterion": "uniform"},
}
ASKS: dict[str, tuple[str, str]] = {
    "evolve": ("code", '{"prompt": "Return x.", "entry": "same", "public": [{"args": [1], "want": 1}]}'),
    "code_search": ("code", '{"prompt": "Return x.", "entry": "same", "public": [{"args": [1], "want": 1}]}'),
}
"""Task and text, for a planner that does not take any."""
SAYS: dict[str, str] = {
    "evolve": "```python\ndef same(x):\n    return x\n```",
    "code_search": "```python\ndef same(x):\n    return x\n```",
    "llmcompiler": 'Thought: two\n1. search("a")\n2. search("$1", k=2)\n3. join()\n',
    "threads": "<Parallel>\n<Outlines>\n<Outline> 1: a</Outline>\n<Outline> 2: b</Outline>\n</Outlines>",
    "react": '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>\nand so on',
    "workflow": '{"steps": [{"id": "a", "call": "search", "args": {"query": "a"}}], "answer": "$a"}',
    "skeleton": "1. Water\n2. Light\n3. Air\n",
    "skeleton_graph": "1. Begin (difficulty 1)\n2. End (difficulty 2, needs 1)\n",
    "recursive": "```repl\nprint(context)\n```",
    "decompose": '{"template": "Translate: {data}", "data": ["water", "light", "air"], "category": "x"}',
}
"""What leads on to more steps; the others ask for an answer, and any will do."""


@tool
async def search(query: str, k: int = 1) -> str:
    """Look something up."""
    return query * k


@tool
def run_python(code: str, stdin: str = "") -> dict[str, str]:
    """Run a program. This one runs none."""
    return {"stdout": ""}


def planner(name: str) -> Planner:
    return Plugins().planner(Plugin(name=name, options=OPTIONS.get(name, {})))


def brief(name: str, seed: int = 0) -> PlanningContext:
    task, text = ASKS.get(name, ("plain", PROMPT))
    request = Request(text=text, task=Plugin(name=task), planner=Plugin(name=name), seed=seed)
    return PlanningContext(request, Plugins().task(request.task, text), (search.spec, run_python.spec), Plugins())


@dataclass
class Read:
    """What one reader was given, and what it said."""

    step: Step
    brief: PlanningContext
    text: str = ""
    result: Result | None = None
    said: list[Plan] = field(default_factory=list)
    closed: Plan | None = None


class Spy:
    """A reader that notes what passes through it."""

    def __init__(self, inner: Reader, log: Read) -> None:
        self.inner, self.log = inner, log

    def feed(self, delta: str) -> Sequence[Plan]:
        self.log.text += delta
        said = self.inner.feed(delta)
        self.log.said += said
        return said

    def close(self, result: Result) -> Plan | None:
        self.log.result = result
        self.log.closed = self.inner.close(result)
        return self.log.closed


async def observed(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Read], Any]:
    """Run a planner, and return what its readers were given and said."""
    kind, log = type(planner(name)), list[Read]()
    known = kind.reader

    def reader(self: Planner, step: Step, about: PlanningContext) -> Reader:
        log.append(Read(step, about))
        return Spy(known(self, step, about), log[-1])

    joiner = Reply(when="^Answer the question from", text="Action: Finish(ok)")
    worker = Scripted([joiner, Reply(text=SAYS.get(name, "so it is \\boxed{42}"))])
    with monkeypatch.context() as patch:
        patch.setattr(kind, "reader", reader)
        async with AsyncOrchestrator(workers=[worker], tools=[search, run_python]) as orchestrator:
            options = OPTIONS.get(name, {})
            task, text = ASKS.get(name, ("plain", PROMPT))
            answer = await orchestrator.run(text, task=task, planner=Plugin(name=name, options=options))
    return log, answer


def steps(plans: Sequence[Plan | None]) -> list[dict[str, Any]]:
    return [step.model_dump() for plan in plans if plan is not None for step in plan.steps]


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_is_its_options_and_keeps_nothing(name: str) -> None:
    made = planner(name)
    with pytest.raises(ValidationError, match="frozen"):
        made.__setattr__(next(iter(type(made).model_fields)), None)
    assert type(made).model_validate_json(made.model_dump_json()) == made
    one, two = made.start(brief(name)), planner(name).start(brief(name))
    assert one == two == made.start(brief(name)), "the same request is planned the same way"
    validate(one)
    assert Plan.model_validate_json(one.model_dump_json()) == one
    for step in first_patch(made, brief(name)).steps if isinstance(made, Flow) else one.steps:
        if isinstance(step.op, ModelCall):
            assert step.op.sampling.max_tokens >= 1
            assert step.op.sampling.seed is not None or step.op.sampling.temperature == 0.0 or name == "fixed"


@pytest.mark.parametrize("name", NAMES)
async def test_a_planner_runs_to_an_answer_and_its_readers_do_not_care_how_a_text_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, answer = await observed(name, monkeypatch)
    assert answer.status == "done", answer.failure
    reads = type(planner(name)).reader is not Flow.reader
    assert bool(log) == (reads and any(step.expands for step in planner(name).start(brief(name)).steps))
    for read in log:
        if read.result is None:
            continue
        for size in (1, 3, 10**6):
            # A reader goes by the step's role: names are for people.
            again = planner(name).reader(read.step.model_copy(update={"name": "renamed"}), read.brief)
            said = [plan for at in range(0, len(read.text), size) for plan in again.feed(read.text[at : at + size])]
            last = again.close(read.result)
            assert steps([*said, last]) == steps([*read.said, read.closed]), f"{read.step.name} in pieces of {size}"
            assert last == read.closed or size != 1 or read.text == ""
        if read.closed is not None:
            assert Plan.model_validate_json(read.closed.model_dump_json()) == read.closed


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_needs_no_reader_has_none(name: str) -> None:
    step = Step(name="somebody-elses", op=ModelCall(prompt="x"), expands=True)
    with pytest.raises(PlannerError):
        planner(name).reader(step, brief(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_published_planner_says_where_it_is_from_its_defaults_and_what_differs(name: str) -> None:
    doc = " ".join((type(planner(name)).__doc__ or "").split())
    if planner(name).fidelity is None:  # not a published method
        return
    assert re.search(r"arXiv \d{4}\.\d{5}", doc), "no paper is named"
    assert re.search(r"\bdefaults?\b", doc, re.IGNORECASE), "the defaults are not said"
    assert re.search(r"\bdiffer", doc, re.IGNORECASE), "what differs from the original is not said"


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_says_where_it_is_from_its_defaults_and_what_differs(name: str) -> None:
    folder = ROOT / "planners/plait/planners/threads/threads/dialects"
    if (file := folder / f"{name}.py").exists():
        doc = " ".join(file.read_text().split('"""')[1].split())
    else:  # a table: the comment before it
        comment = (folder / "published.toml").read_text().partition(f"\n[{name}]\n")[0].rpartition("\n\n")[2]
        doc = " ".join(comment.replace("#", " ").split())
    assert name == "countdown" or re.search(r"arXiv \d{4}\.\d{5}", doc)
    assert name == "countdown" or re.search(r"\bdefaults\b", doc, re.IGNORECASE)
    assert name == "countdown" or re.search(r"\bdiffer", doc, re.IGNORECASE)
    assert (load(name).fork and load(name).tags) or name == "apr"


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_has_tests(name: str) -> None:
    used = re.compile(rf"planner=(?:Plugin\(name=)?\"{name}\b|\b{type(planner(name)).__name__}\(|\"{name}\"")
    tests = [path for folder in ("planners", "policies") for path in (ROOT / "tests" / folder).glob("test_*.py")
             if path.name not in ("test_contract.py", "test_corpus.py")]  # fmt: skip
    assert any(used.search(path.read_text()) or f".{name} " in path.read_text() for path in tests)


def test_the_page_of_planners_has_a_row_and_a_picture_for_each_section() -> None:
    document = (ROOT / "docs" / "planners.md").read_text()
    table = document.partition("\n## All planners\n")[2].partition("\n## ")[0]
    sections = dict(re.findall(r"\n## ([a-z-]+)\n(.*?)(?=\n## |\Z)", document, re.DOTALL))
    assert sections.keys() == set(re.findall(r"^\| \[`([a-z-]+)`\]\(", table, re.MULTILINE))
    assert sections.keys() <= {name.replace("_", "-") for name in NAMES}, "a section of a planner that left"
    assert len(sections) > 20 and all("```mermaid" in section for section in sections.values())
