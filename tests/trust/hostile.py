"""Everything that a request, planner, policy, merge, tool, task or worker may do wrong, drawn by a seed.

`case(random)` returns one hostile request as keywords of `AsyncOrchestrator.submit`. `Nasty` is a worker that serves
innocent prompts as they should be served, and does to others what their prompt says (`DO:name`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

from plait import Budget, Join, Merge, ModelCall, Plan, Planner, Policy, Ref, Step, ToolCall, tool
from plait.core.events import Job
from plait.core.interfaces import Defer, Pin, Progress, ReviewAt, Stop, Verdict, Worker
from plait.core.ops import Kind, Text
from plait.core.result import Failure, Result, Signals, TokenDraws, Usage
from plait.core.sampling import Sampling

SURROGATE = "half \ud83d of a pair"
HUGE = 10**30


def deep(levels: int = 5_000) -> Any:
    """A list in a list in a list."""
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def raw(cls: type, **fields: Any) -> Any:
    """An instance whose fields were never checked, as a worker of somebody else's may make one."""
    return cls.model_construct(**fields)


def nonsense() -> list[Any]:
    """Values that are no JSON, or hard to write down."""
    return [None, math.nan, math.inf, -math.inf, HUGE, -HUGE, b"bytes", object(), {1: 2}, {1, 2}, deep(), SURROGATE,
            "\0\x1b[2J", "x" * 1_000_000, int("9" * 4_000), lambda: 0, Exception("a value"), {"$ref": "nobody"},
            {"a": {"b": [object()]}}, [math.nan], {SURROGATE: SURROGATE}, 1j]  # fmt: skip


def usages() -> list[Any]:
    """Counts that cannot be."""
    return [raw(Usage, prompt=HUGE, cached=HUGE, completion=HUGE, cost=math.inf),
            raw(Usage, prompt=-5, cached=-5, completion=-5, cost=-1.0), raw(Usage, completion=math.nan, cost=math.nan),
            raw(Usage, completion="many"), None, Usage(completion=10**9)]  # fmt: skip


class Nasty(Worker):
    """Says `said: PROMPT'S LAST WORD` to an innocent prompt, and does what any other asks for."""

    name = "nasty"
    slots = 64
    serves: tuple[Kind, ...] = ("think",)

    def __init__(self) -> None:
        self._stops: dict[int, asyncio.Event] = {}

    async def start(self) -> None:
        pass

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        prompt = "".join(getattr(part, "text", "") for part in job.op.prompt)
        what = prompt.partition("DO:")[2].split(" ")[0]
        if not what:
            yield Progress(text="said: ", tokens=1)
            await asyncio.sleep(0)
            yield Result(value=f"said: {prompt.split()[-1]}", usage=Usage(prompt=3, completion=2))
            return
        if what == "hang":
            stop = self._stops[job.attempt] = asyncio.Event()
            await stop.wait()
            yield Result(value="", finish="cancelled")
            return
        async for item in DEEDS[what](job):
            yield item

    async def cancel(self, attempt: int) -> None:
        if attempt in self._stops:
            self._stops[attempt].set()

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def close(self) -> None:
        for stop in self._stops.values():
            stop.set()


def yielding(*items: Any) -> Callable[[Job], AsyncIterator[Any]]:
    """A deed: these items."""

    async def deed(job: Job) -> AsyncIterator[Any]:
        for item in items:
            yield item

    return deed


def raising(error: Callable[[], BaseException], first: Sequence[Any] = ()) -> Callable[[Job], AsyncIterator[Any]]:
    """A deed: an exception, after some items."""

    async def deed(job: Job) -> AsyncIterator[Any]:
        for item in first:
            yield item
        raise error()

    return deed


RARE = ("reasoning", "anew", "prior", "labels", "drawn", "patch", "partial", "extracted")
"""Fields of a result that few workers set."""


def deeds() -> dict[str, Callable[[Job], AsyncIterator[Any]]]:
    """What the worker may do, by name."""
    found: dict[str, Callable[[Job], AsyncIterator[Any]]] = {
        "nothing": yielding(),
        "error": raising(lambda: RuntimeError(SURROGATE)),
        "exit": raising(lambda: GeneratorExit()),
        "group": raising(lambda: BaseExceptionGroup("many", [KeyboardInterrupt(), ValueError("x")])),
        "system-exit": raising(lambda: SystemExit(3)),
        "late-error": raising(lambda: MemoryError(), [Progress(text="a", tokens=1)]),
        "recursion": raising(lambda: RecursionError("deep")),
        "cancelled": raising(lambda: asyncio.CancelledError()),
        "two-results": yielding(Result(value="a"), Result(value="b")),
        "after": yielding(Result(value="a"), Progress(text="b", tokens=5)),
        "failure": yielding(raw(Failure, kind=SURROGATE, message=SURROGATE * 1_000, retryable=True)),
        "failure-object": yielding(raw(Failure, kind=object(), message=7)),
        "lost": yielding(Failure(kind="WorkerLost", message="gone", lost=True)),
    }
    for number, value in enumerate(nonsense()):
        found[f"value-{number}"] = yielding(raw(Result, value=value, usage=Usage(completion=1)))
        found[f"item-{number}"] = yielding(value)
        found[f"text-{number}"] = yielding(raw_progress(text=value, tokens=1), Result(value="x"))
        found[f"tokens-{number}"] = yielding(raw_progress(text="x", tokens=value), Result(value="x"))
        found[f"ids-{number}"] = yielding(raw_progress(text="x", tokens=1, ids=value), Result(value="x"))
        found[f"group-{number}"] = yielding(raw_progress(text="x", tokens=1, group=value), Result(value="x"))
        found[f"result-ids-{number}"] = yielding(raw(Result, value="x", token_ids=value, prompt_ids=value))
        found[f"logprob-{number}"] = yielding(raw(Result, value="x", logprob=value, finish=value, why=value))
        for name in RARE:
            found[f"{name}-{number}"] = yielding(raw(Result, value="x", **{name: value}))
    found["plan"] = yielding(raw(Result, value="x", patch=Plan(steps=(), output="a")))
    found["labels"] = yielding(raw(Result, value="x", labels={SURROGATE: -1.0, "a": math.nan, 3: "b"}))
    found["drawn"] = yielding(raw(Result, value="x", drawn=raw(TokenDraws, logprobs="many", end=7, policies=None)))
    for number, usage in enumerate(usages()):
        found[f"usage-{number}"] = yielding(raw(Result, value="x", usage=usage))
    found["signals"] = yielding(
        raw(Result, value="x", signals=raw(Signals, k=-9, confidence=math.nan, lowest="low", entropy=None))
    )
    return found


def raw_progress(**fields: Any) -> Any:
    """A progress whose fields are of any kind: a dataclass checks nothing."""
    return Progress(**fields)


DEEDS = deeds()


# -- plugins of a caller's ---------------------------------------------------------------------------------------------


class Bad(Planner):
    """A planner that raises, or says what is no plan."""

    what: str = "raise"

    def start(self, brief: Any) -> Any:
        ask = Step(name="a", op=ModelCall(prompt="DO:usage-0 x"), expands=self.what.startswith("reader"))
        match self.what:
            case "raise":
                raise RuntimeError(SURROGATE)
            case "exit":
                raise SystemExit("bye")
            case "none":
                return None
            case "text":
                return "a plan"
            case "raw":
                return raw(Plan, steps=("x", 3), output=None, budget=None)
            case "cycle":
                op = Join()
                return Plan(
                    steps=(Step(name="a", op=op, needs=("b",)), Step(name="b", op=op, needs=("a",))), output="a"
                )
            case "bad-args":
                return Plan(steps=(Step(name="a", op=raw(ToolCall, kind="call", tool="double", args={"x": object()})),),
                            output="a")  # fmt: skip
            case _:
                return Plan(steps=(ask,), output="a")

    def reader(self, step: Any, brief: Any) -> Any:
        match self.what:
            case "reader-raise":
                raise RuntimeError("no reader")
            case "reader-none":
                return None
            case "reader-close":
                return Reader(lambda: 1 / 0)
            case "reader-text":
                return Reader(lambda: "more plan")
            case "reader-raw":
                return Reader(lambda: raw(Plan, steps=(None,), output=SURROGATE, budget=None))
            case _:
                return Reader(lambda: Plan(steps=(Step(name="z", op=ModelCall(prompt="DO:nothing x")),), output="z"))


class Reader:
    """A reader whose last patch is anything."""

    def __init__(self, last: Callable[[], Any]) -> None:
        self.last = last

    def feed(self, delta: str) -> Any:
        return ()

    def close(self, result: Any) -> Any:
        return self.last()


PLANNERS = ("raise", "exit", "none", "text", "raw", "cycle", "bad-args", "reader-raise", "reader-none", "reader-close",
            "reader-text", "reader-raw", "reader-more")  # fmt: skip


class BadPolicy(Policy):
    """A policy that raises, or says what is no opinion."""

    where: str = "rank"
    which: int = 0

    def rank(self, step: Any, view: Any) -> Any:
        return self._say() if self.where == "rank" else (0.0,)

    def place(self, step: Any, view: Any) -> Any:
        return self._say() if self.where == "place" else None

    def review(self, event: Any, view: Any) -> Any:
        return self._say() if self.where == "review" else ()

    def first_look(self) -> Any:
        return self._say() if self.where == "first_look" else None

    def _say(self) -> Any:
        said = opinions()[self.which]
        if isinstance(said, Exception):
            raise said
        return said


def opinions() -> list[Any]:
    """What a policy may say."""
    wakes = [[ReviewAt(at=at)] for at in (math.nan, math.inf, -math.inf, HUGE, -5.0)]
    return [*nonsense(), RuntimeError(SURROGATE), *wakes, [Stop("nobody", SURROGATE)], [Stop("a", "a name, not an id")],
            [None], [object()], Pin("nobody"), Pin("nasty", SURROGATE), Defer(SURROGATE), Defer("x", behind="y"),
            ("x",), (math.nan,), (HUGE, math.inf), [ReviewAt(at="soon")]]  # type: ignore[arg-type]  # fmt: skip


class BadMerge(Merge):
    """A merge that raises, or says what is no verdict."""

    which: int = 0
    early: bool = False

    def merge(self, branches: Any, task: Any) -> Any:
        said = verdicts()[self.which]
        if isinstance(said, Exception):
            raise said
        return said

    def decided(self, branches: Any, outstanding: int, task: Any) -> Any:
        return self.merge(branches, task) if self.early else False


def verdicts() -> list[Any]:
    """What a merge may say."""
    values = [raw(Verdict, value=value, why=SURROGATE, extracted=True, patch=None, winner=None) for value in nonsense()]
    return [*values, *nonsense(), RuntimeError("no"), raw(Verdict, value=1, why=None, patch="more", extracted=None)]


@tool
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@tool
async def nasty(which: int) -> Any:
    """Return or raise what no tool should."""
    if which < 0:
        raise [RuntimeError(SURROGATE), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), RecursionError(),
               BaseExceptionGroup("x", [SystemExit(1)])][-which - 1]  # fmt: skip
    return nonsense()[which]


# -- one case ----------------------------------------------------------------------------------------------------------


def case(random: Random) -> dict[str, Any]:
    """Return the keywords of one hostile request. Each ends by itself, or by its budget of half a second."""
    budget = Budget(seconds=0.5, attempts=8, steps=200)
    deed = random.choice(["hang", *DEEDS])
    options: dict[str, Any] = {"text": f"DO:{deed} x", "budget": budget}
    match random.randrange(10):
        case 0 | 1 | 2:
            pass
        case 3:
            options |= {"planner": f"sample:n={random.randint(2, 4)}", "policies": ["consensus"]}
        case 4:
            options["planner"] = Bad(what=random.choice(PLANNERS))
        case 5:
            where = random.choice(["rank", "place", "review", "first_look"])
            policy = BadPolicy(where=where, which=random.randrange(len(opinions())))
            options |= {"text": "good", "policies": [policy], "planner": "sample:n=3"}
        case 6:
            merge = BadMerge(which=random.randrange(len(verdicts())), early=random.random() < 0.3)
            options |= {"text": "good", "planner": "sample:n=3", "merge": merge}
        case 7:
            which = random.randrange(-6, len(nonsense()))
            call = Step(name="a", op=ToolCall(tool="nasty", args={"which": which}))
            then = Step(name="b", op=ModelCall(prompt=(Text(text="good "), Ref(step="a"))))
            options |= {"plan": Plan(steps=(call, then), output="b"), "tools": [nasty]}
        case 8:
            said = random.choice(nonsense())

            def judge(answer: Any) -> Any:
                if random.random() < 0.5:
                    raise RuntimeError(SURROGATE)
                return said

            options |= {"text": "good", "verify": judge, "planner": "sample:n=2,merge=best-of"}
        case _:
            options |= random.choice(requests())
    return options


def requests() -> list[dict[str, Any]]:
    """Requests that are wrong by themselves."""
    return [{"text": SURROGATE}, {"text": "\0" * 100}, {"text": b"bytes"}, {"text": None}, {"text": deep()},
            {"seed": HUGE}, {"seed": "x"}, {"seed": -1}, {"n": 0}, {"n": -3}, {"n": HUGE}, {"n": math.nan},
            {"planner": "nobody"}, {"planner": 7}, {"planner": SURROGATE}, {"merge": SURROGATE}, {"policies": "fifo"},
            {"policies": [None]}, {"policies": 3}, {"task": "nobody"}, {"task": object()}, {"tokens": -1},
            {"tokens": math.nan}, {"seconds": math.nan}, {"seconds": -1}, {"seconds": "soon"}, {"planer": "single"},
            {"temperature": 1}, {"budget": 5}, {"budget": {"tokens": "many"}}, {"tools": [object()]}, {"tools": 5},
            {"plan": "x"}, {"plan": raw(Plan, steps=(), output="a", budget=None)},
            {"plan": Plan(steps=(Step(name="a", op=ModelCall(prompt=SURROGATE)),), output="a")},
            {"plan": Plan(steps=(Step(name="a", op=ToolCall(tool="double", args={"x": deep(60)})),), output="a")},
            {"plan": Plan(steps=(Step(name="a", op=ModelCall(prompt="DO:hang x",
                                                         sampling=Sampling(max_tokens=HUGE))),), output="a")},
            ]  # fmt: skip
