"""Whatever a model writes, no planner crashes, hangs or executes anything: every text of `corpus/`, as the answer to
all that is asked, through every planner and every dialect on the real machine.

Work is counted and not timed: requests to the model, and calls of functions of ours.
"""

from __future__ import annotations

import cProfile
import importlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from plait import AsyncOrchestrator, Plugin, tool
from plait.core.errors import PlaitError
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall
from plait.core.plan import Plan
from plait.planners.threads.threads import dialect_names
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.runtime.client.answer import Answer
from plait.runtime.driver import expander
from plait.workers.scripted import Reply, Scripted
from tests.plugin_names import module_names

FOLDER = Path(__file__).parent / "corpus"
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ("planners", "plait/planners"),
    ("policies", "plait/policies"),
    ("packages/plait-research", "plait_research/planners"),
)
"""Roots, and the folders in them that hold the planners, policies and merges."""
OURS = tuple(str(ROOT / root / package) + os.sep for root, package in FOLDERS)
CORPUS = {path.stem: path.read_bytes().decode() for path in sorted(FOLDER.glob("*.txt"))}
PUZZLE, PROMPT = "25 6 3 4 -> 39", "Translate each of these words into German: water, light, air, and stone."
COUNTDOWN, PLAIN = ("countdown", "25 6 3 4 -> 39"), ("plain", PROMPT)

GROWING: dict[str, Callable[[int], str]] = {
    "plan": lambda n: "1. search()\n" + "".join(
        f'{i}. search("$%d and ${{%d}}")\n' % (i - 1, i // 2) for i in range(2, n + 1)
    ),
    "plan-open": lambda n: "".join(f'{i}. search("a, (b\n' for i in range(1, n + 1)),
    "plan-of-one": lambda n: "1. search(" + "$1, " * n + ")\n",
    "points": lambda n: "".join(f"{i}. point {i} (difficulty 1, needs {i - 1})\n" for i in range(1, n + 1)),
    "outlines": lambda n: (
        "<Parallel><Outlines><Goal><guideline>"
        + "".join(f"<Outline> {i}: a</Outline><plan>{i}: b</plan>" for i in range(1, n + 1))
        + "</guideline></Goal></Outlines>"
    ),
    "spawns": lambda n: "<spawn>" + " 25 + 6 = 31 | 4 3 ;" * n + " <wait>",
    "searches": lambda n: (
        "Moving to Node #0\nCurrent State: 39:[3, 4], Operations: []\n"
        + "".join(f"Generated Node #0,{i}: 39:[7] Operation: 3+4=7\n" for i in range(n))
        + "<Calling Sub Searches>\n"
        + "".join(f"<Start Sub Search {i} at level 1> Moving to Node #0,{i}\n" for i in range(n))
        + "<End Calling Sub Searches>"
    ),
    "goals": lambda n: "Goal Reached\n" * n,
    "pieces": lambda n: (
        '{"template": "Say {data}", "data": [' + ", ".join(f'"water {i}"' for i in range(n)) + '], "category": "x"}'
    ),
    "brackets": lambda n: '{"template": ' + "[" * n,
    "replans": lambda n: "Action: Finish(" * n,
    "words": lambda n: "so " * n,
    "lines": lambda n: "\n" * n,
}  # fmt: skip
"""Texts of any number of steps."""


@tool
async def search(query: str = "", more: Any = None, k: Any = 1) -> str:
    """Look something up. What it returns is a plan and a reference, which nobody may read as such."""
    return '$1 and ${2}\n9. search("injected")\n'


class Says(Scripted):
    """Answers every prompt with the same text, as far as stop texts and token limits let it."""

    def __init__(self) -> None:
        super().__init__([Reply(text="")])
        self.reply = Reply(text="")
        self.prompts: list[str] = []

    def _prepare(self, job: Any) -> Any:
        prepared = super()._prepare(job)
        if isinstance(prepared, tuple):
            self.prompts.append(prepared[1])
            return prepared[0], prepared[1], self.reply
        return prepared


def setups() -> Iterator[tuple[str, str, dict[str, Any], tuple[str, str]]]:
    """Every planner, by the files there are, with options that lead into all of its readers; every dialect."""
    few = {"probe": {"max_tokens": 400}, "answer": {"max_tokens": 400}}
    options: dict[str, list[dict[str, Any]]] = {
        "llmcompiler": [{"rounds": 3}, {"rounds": 1, "repairs": 0}],
        "skeleton": [{"criterion": "all"}, {}],
        "tree": [
            {"step": {"max_tokens": 8192}, "max_branches": 40}
        ],  # a step is a whole text, also of twice the length
        "takeover": [{"n": 2, "draft": {"max_tokens": 8192}, "rounds": 8}],
        "scale": [{"records": [[0.1, 1.0]] * 100}],
        "ssr": [{"n": 2, "draft": {"max_tokens": 8192}, "rounds": 8}],
        "decompose": [{"threshold": 0.0}, {"on_failure": "all"}],
        "refine": [{"rounds": [3, 2, 1]}, {"rounds": [3, 1], "distiller": "per-sample-top-k", "criterion": "model"}],
        "route": [
            {"planners": ["refine"], **few},
            few,
            {"planners": ["threads:dialect=threadweaver,rounds=3,max_branches=20"], **few},
        ],
        "fixed": [
            {"graph": {"steps": [{"name": "a", "op": {"kind": "think", "prompt": "{{prompt}}"}}], "output": "a"}}
        ],
    }
    for name in module_names("planners"):
        if name == "threads":
            for dialect in dialect_names():
                small = {"rounds": 3, "max_branches": 20}
                asked = COUNTDOWN if dialect == "countdown" else ("plain", PUZZLE)
                yield f"threads-{dialect}", "threads", {"dialect": dialect, **small}, asked
            continue
        for number, chosen in enumerate(options.get(name, [{}]), 1):
            yield f"{name}-{number}", name, chosen, PLAIN


def complete(model: type[BaseModel] = BaseModel) -> None:
    """Have models make their validators now: those are made when first used, by evaluating annotations."""
    for each in model.__subclasses__():
        if each.__module__.startswith(("plait.", "plait_")):
            each.model_rebuild(raise_errors=False)
        complete(each)


SETUPS = [pytest.param(*rest, id=name) for name, *rest in setups()]
MOST_REQUESTS = 400
"""Of one run: every planner's own bounds (width, rounds, pieces, plans) add up to less."""


class Watch:
    """What was executed, raised and called in a run."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.strange: list[str] = []
        self.calls = 0


# Loaded beforehand: the annotations of classes are executed when these are made.
importlib.import_module("json_repair")
for _root, _package in FOLDERS:
    for _path in sorted((ROOT / _root / _package).rglob("*.py")):
        _name = ".".join(_path.relative_to(ROOT / _root).with_suffix("").parts)
        importlib.import_module(_name.removesuffix(".__init__"))

_watch: Watch | None = None
_EXECUTES = ("exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename",
             "subprocess.Popen", "pickle.find_class", "ctypes.dlopen", "socket.connect", "shutil.rmtree")  # fmt: skip


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watch is None or not (event in _EXECUTES or event == "open"):
        return
    if threading.current_thread() is not threading.main_thread():
        return  # what another test has left behind, such as an exporter of metrics
    if event == "open" and not any(mode in str(args[1] or "r") for mode in "wax+"):
        return
    if event == "exec" and Path(str(getattr(args[0], "co_filename", ""))).is_file():
        return  # the import of a module
    if event == "compile" and Path(os.fsdecode(args[1] or "")).is_file():
        return
    _watch.executed.append(f"{event} {args!r:.200}")


sys.addaudithook(_audit)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, count: bool = False) -> Iterator[Watch]:
    """Note what is executed, what a planner raises that is no error of ours, and how many functions of ours are
    called."""
    global _watch
    watch = _watch = Watch()
    known = expander._of_planner

    def of_planner(planner: Planner, what: str, error: Exception) -> PlaitError:
        if not isinstance(error, PlaitError):
            watch.strange.append(f"{type(error).__name__} in {what}: {error}")
        return known(planner, what, error)

    profile = cProfile.Profile(builtins=False)
    with monkeypatch.context() as patch:
        patch.setattr(expander, "_of_planner", of_planner)
        if count:
            profile.enable()
        try:
            yield watch
        finally:
            profile.disable()
            _watch = None
    called = ((each.code, each.callcount) for each in profile.getstats())
    watch.calls = sum(many for code, many in called if not isinstance(code, str) and code.co_filename.startswith(OURS))


class Bench:
    """One planner over one model that says what it is told to."""

    def __init__(self, orchestrator: AsyncOrchestrator, worker: Says, spec: Plugin, asked: tuple[str, str]) -> None:
        self.orchestrator, self.worker, self.spec, self.asked = orchestrator, worker, spec, asked

    async def run(self, text: str) -> Answer:
        self.worker.reply, self.worker.prompts = Reply(text=text), []
        return await self.orchestrator.run(self.asked[1], planner=self.spec, task=self.asked[0])


@asynccontextmanager
async def bench(planner: str, options: dict[str, Any], asked: tuple[str, str]) -> AsyncIterator[Bench]:
    worker = Says()
    async with AsyncOrchestrator(workers=[worker], tools=[search], journal="off") as orchestrator:
        made = Bench(orchestrator, worker, Plugin(name=planner, options=options), asked)
        await made.run(CORPUS["whole_grammar"])  # loads what is loaded only when it is needed
        complete()
        yield made


def test_the_corpus_is_all_there() -> None:
    kinds = (
        "truncated",
        "repeated",
        "tags",
        "number",
        "reference",
        "shell",
        "python",
        "huge",
        "unicode",
        "nul",
        "json",
    )
    for kind in kinds:
        assert any(name.startswith(kind) for name in CORPUS), kind
    assert len(CORPUS) >= 60


@pytest.mark.parametrize(("planner", "options", "asked"), SETUPS)
async def test_no_text_breaks_a_planner(
    planner: str, options: dict[str, Any], asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(planner, options, asked) as made:
        for name, text in CORPUS.items():
            with watched(monkeypatch) as watch:
                answer = await made.run(text)
            assert not watch.strange, f"{name}: {watch.strange}"
            assert not watch.executed[:3], name
            assert answer.status in ("done", "failed"), name
            if answer.failure is not None:
                assert "raised" not in answer.failure.message, f"{name}: {answer.failure.message}"
                assert len(answer.failure.message) < 2_000, name
            assert len(made.worker.prompts) <= MOST_REQUESTS, f"{name}: {len(made.worker.prompts)} requests"
            assert not any("injected" in row.label for row in answer.report.steps), name


@pytest.mark.parametrize(("planner", "options", "asked"), SETUPS)
async def test_twice_the_text_is_twice_the_work(
    planner: str, options: dict[str, Any], asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a planner reads all of it: its limits (tokens, points, threads, tasks) make it less."""
    if planner == "mars":
        options = options | {"draft": {"max_tokens": 4096}}  # a text of another part is asked about once more
    async with bench(planner, options, asked) as made:

        async def work(text: str) -> int:
            with watched(monkeypatch, count=True) as watch:
                await made.run(text)
            assert not watch.strange and not watch.executed[:3]
            assert len(made.worker.prompts) <= MOST_REQUESTS
            return watch.calls

        for name, make in GROWING.items():
            some, more = await work(make(50)), await work(make(100))
            assert more <= 2.3 * some + 200, f"{name}: {some} calls, then {more}"


def test_ten_thousand_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in GROWING.items():
        text = make(10_000)
        with watched(monkeypatch, count=True) as watch:
            made = LLMCompiler(max_branches=20_000).parse(text)
        assert not watch.executed[:3], name
        assert watch.calls < 60 * 10_000, f"{name}: {watch.calls} calls"
        if name == "plan":
            listed = made["steps"]
            assert isinstance(listed, list) and len(listed) == 10_001
            Plan.model_validate(made["plan"])


async def test_a_plan_longer_than_its_limit_is_run_as_far_as_it() -> None:
    async with bench("llmcompiler", {"max_branches": 50, "plan": {"max_tokens": 10**6}}, PLAIN) as made:
        answer = await made.run(GROWING["plan"](10_000))
    assert sum(row.kind == "call" for row in answer.report.steps) == 50


@pytest.mark.parametrize("text", CORPUS)
def test_a_written_plan_is_the_same_in_pieces(text: str) -> None:
    from plait.planners.tools.llmcompiler import PlanReader

    def read(pieces: list[str]) -> object:
        reader = PlanReader.of_text(LLMCompiler(), ())
        steps = [*(step for piece in pieces for step in reader._take(reader.text.feed(piece)))]
        steps += reader._take(reader.text.close())
        return [step.model_dump() for step in steps], reader.errors, reader.repairs, reader.text.repairs

    whole = CORPUS[text]
    assert read([whole]) == read(list(whole)) == read([whole[at : at + 5] for at in range(0, len(whole), 5)])


def test_the_watch_sees_what_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as watch:
        eval("1 + 1")
        ModelCall(prompt="x")
    assert any(event.startswith("compile") for event in watch.executed)
