"""Planner `code-search`: many programs, run on the same inputs; tests and agreement choose one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from itertools import combinations, islice
from typing import Annotated, Any

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, StepFailed, Trajectory
from plait.core.planning import TrajectoryOptions, derive
from plait.core.programs import MAIN, Cell, has_returned, read_outputs
from plait.core.step_handles import CallHandle
from plait.core.vocabulary import Count, N, Repairs, Rounds

from .._programs import (
    RUN_PYTHON,
    begin_run,
    build_tracer,
    find_fault,
    finish_run,
    need_runner,
    put_fence,
    read_language,
    read_problem,
    render_cell,
)
from .line_search import LineSearch
from .programs import (
    INPUT,
    INPUTS,
    Candidate,
    Evidence,
    OutputJudge,
    Rule,
    Test,
    choose,
    cluster_by_behaviour,
    count_samples,
    count_votes,
    format_trace,
    is_decided,
    mutate_inputs,
    read_inputs,
    read_tests,
)

__all__ = ["CodeSearch", "Searching"]

REPAIR = "\n\nThis program fails: {failure}\nWrite the whole corrected function in a ```python block.\n"
_TRACED = 60
"""Lines of a trace."""
TESTS = """{question}

Do not solve it. Write up to {count} tests for it, one a line, each as JSON: {"args": [arguments], "want": result}
"""
SOURCE_INPUTS = INPUTS.replace("[arguments]", '["standard input"]')
DIFFERENCE = INPUT.replace("one input", "one test").replace("[arguments]", '[arguments], "want": the right result')


class CodeSearch(Flow):
    """Writes `n` programs in parallel, runs each on the public cases when it is complete, repairs those that fail, and
    chooses by tests that the model writes without seeing the programs.

    After S* (arXiv 2502.14382) and CodeMonkeys (arXiv 2501.14723). Differs: equal programs run once and count by their
    number; every program runs on every input once; a model call that distinguishes programs compares a pair of
    behaviours, not of programs; a test that an empty function passes does not count; the expectation of a test is
    evidence, not a fact. Agreement among programs decides only between equal votes, unless `criterion` says otherwise.
    No distinguishing test is requested where none could change the winner.

    `criterion=judged` is S*'s own way to choose. The model writes inputs alone, and for each pair of behaviours an
    input on which the two differ. It then sees both outputs in both orders, and a verdict counts if it is the same
    twice.

    Needs the task `code` (or `humaneval`) and the tool `run_python` of a sandbox: `tools=Sandbox().tools()`. In a
    compiled language (task `programs`) it needs `run_program`: there a repair is asked for the line that the compiler
    blames first (SPoC, arXiv 1906.04908) or a sanitizer names, and what a sanitizer faults passes nothing. Defaults: 8
    samples, 1 repair, 8 tests, 3 pairs.

    Where such a problem names the `source` of a translation, the model writes inputs alone. What the source program
    writes on them are further public cases, so that translations and tests are both kept by running (as in
    QiMeng-MuPa, arXiv 2506.11153, without its training).

    Where such a problem gives the program's `lines` in pseudocode, the search is SPoC's: `n` candidates for each line,
    the most probable combinations first, and what the compiler blames is excluded. The first program that passes the
    public cases is the answer. Differs: a candidate's score is the logarithm of its share of the samples.
    """

    fidelity = Fidelity(
        "variant",
        "the model writes a case with what it wants, not an input alone, but with `criterion=judged`",
        paper="2502.14382",
        oracles=("spoc-errors", "spoc-search"),
    )

    answer: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8), description="Writes a program; it is asked the question."
    )
    repair: Annotated[CallConfig, Uses("failure")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8),
        description="Corrects a program, in the conversation in which it was written.",
    )
    test: Annotated[CallConfig, Uses("question", "count")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0), description="Writes tests without seeing a program."
    )
    judge: Annotated[CallConfig, Uses("question", "a", "b")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="Writes a test on which the programs `{a}` and `{b}` differ.",
    )
    probe: Annotated[CallConfig, Uses("question", "input", "a", "b", "output_a", "output_b")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="Says which of two outputs is right, with `criterion=judged`; there `judge` writes the input.",
    )
    part: CallConfig = Field(
        default=CallConfig(max_tokens=128, temperature=1.0),
        description="Writes a line, where the problem gives lines. Its template has `{question}`, `{number}` and "
        "`{part}`, the pseudocode.",
    )
    n: N = 8
    rounds: Rounds = Field(
        default=100,
        description="Maximum number of rounds. Each reads the results of the one before: a program of lines is "
        "compiled.",
    )
    penalty: float = Field(
        default=0.0,
        ge=0.0,
        description="Score that a line's candidate loses when the compiler blames it; SPoC's authors take 10. 0: it is "
        "excluded, as by their default.",
    )
    repairs: Repairs = 1
    tests: Count = Field(default=8, ge=0, description="Tests that the model writes, in one call.")
    pairs: Count = Field(
        default=3, ge=0, description="Most pairs of behaviours for which a test that tells them apart is asked for."
    )
    criterion: Rule = Field(
        default="votes",
        description="Criterion: `votes` of tests, `agreement` (votes times cluster), the `majority` of "
        "behaviours, or outputs that the model has `judged`.",
    )
    trace_guided: bool = Field(
        default=False,
        description="Show a repair what each line did on the public case that failed, as EG-CFG does (arXiv "
        "2506.10948, its guidance weight being 1). One run of the program more for each repair.",
    )

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Write, run, repair, test and choose."""
        entry, public = read_problem(ctx.brief.task, "code-search")
        need_runner(ctx.brief, "code-search")
        if lines := getattr(getattr(ctx.brief.task, "problem", None), "lines", ()):
            return await LineSearch(ctx, question, lines, public).answer(self.part, self.n, self.rounds, self.penalty)
        return await Searching(self, ctx, question, entry, public).answer()


class Searching:
    """One run. `evidence` and `candidates` tell what it found."""

    def __init__(
        self,
        options: CodeSearch,
        ctx: Context,
        question: str,
        entry: str,
        public: list[Test],
    ) -> None:
        self._options, self._ctx, self._question, self._entry, self._public = options, ctx, question, entry, public
        self._compiled = read_language(ctx.brief.task) != "python"
        self._candidates: dict[str, Candidate] = {}
        self.evidence: list[tuple[Candidate, Evidence]] = []
        """What spoke for each program among which the choice was."""
        self.tests: list[Test] = []
        """Tests that they were run on; none where nothing was left to choose."""
        self._runs: dict[str, tuple[str, CallHandle]] = {}
        """Runs with their keys, by program and inputs."""

    @property
    def candidates(self) -> list[Candidate]:
        """All different programs."""
        return list(self._candidates.values())

    async def answer(self) -> Answerable:
        """Write, run, repair, test and choose."""
        options, ctx = self._options, self._ctx
        asked = await self._tests()
        results = await ctx.gather(*(self._sample(i) for i in range(1, options.n + 1)), return_exceptions=True)
        for error in results:  # a sample that failed is left out; anything else is a defect
            if isinstance(error, BaseException) and not isinstance(error, StepFailed):
                raise error
        if not self._candidates:
            raise PlannerError(f"none of {options.n} samples has a program that defines {self._entry!r}")
        best = max(candidate.passed for candidate in self._candidates.values())
        pool = [candidate for candidate in self._candidates.values() if candidate.passed == best]
        if options.criterion == "judged" and len(pool) > 1:
            return await self._choose_by_judge(pool, asked, best)
        tests = await self._read_tests(asked)
        if len(pool) == 1:
            self.evidence = [(pool[0], Evidence(0.0, pool[0].weight, len(pool[0].program)))]
            return self._answer_with(pool, pool[0], best, "the only one left")
        inputs = [args for args, _ in (*self._public, *tests)]
        inputs += [row for args, _ in self._public for row in mutate_inputs(args)]
        await self._matrix(pool, inputs)
        if not self._is_decided(pool, inputs, tests):
            tests += await self._ask_for_distinguishing_tests(pool, inputs)
            await self._matrix(pool, [args for args, _ in tests])
        keys = list(dict.fromkeys(json.dumps(row) for row in inputs))
        groups = cluster_by_behaviour(pool, keys)
        size = {id(candidate): count_samples(group) for group in groups.values() for candidate in group}
        evidence = [
            Evidence(float(count_votes(candidate, tests)), size[id(candidate)], len(candidate.program))
            for candidate in pool
        ]
        self.evidence, self.tests = list(zip(pool, evidence, strict=True)), tests
        winner = choose(evidence, options.criterion)
        why = (
            f"{evidence[winner].votes:.0f} of {len(tests)} tests, {len(groups)} behaviours on {len(keys)} inputs, "
            f"{evidence[winner].cluster} of {sum(candidate.weight for candidate in pool)} programs behave like it"
        )
        return self._answer_with(pool, pool[winner], best, why)

    async def _choose_by_judge(self, pool: Sequence[Candidate], asked: Trajectory | None, best: int) -> Answerable:
        """Choose as S* does."""
        inputs = [args for args, _ in self._public]
        with contextlib.suppress(StepFailed):
            inputs += read_inputs((await asked).text, self._options.tests) if asked is not None else []
        await self._matrix(pool, inputs)
        groups = list(cluster_by_behaviour(pool, list(dict.fromkeys(map(json.dumps, inputs)))).values())
        judge = OutputJudge(self._ctx, self._question, self._options.judge, self._options.probe, self._cells)
        winner, wins = await judge.choose_best(groups, self._options.pairs)
        told = f"{len(groups)} behaviours, {judge.compared} pairs judged, of which it won {wins}"
        return self._answer_with(pool, winner, best, told)

    def _answer_with(self, pool: Sequence[Candidate], winner: Candidate, best: int, why: str) -> Answerable:
        told = f"passes {best} of {len(self._public)} public cases; {len(self._candidates)} different programs, {why}"
        return self._ctx.answer(winner.program, told)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _sample(self, number: int) -> None:
        """Write a program, and repair it while public cases fail."""
        options, ctx = self._options, self._ctx
        line = ctx.think(self._question, options.answer, **self._call_options(f"program-{number}"))
        for repair in range(options.repairs + 1):
            await line
            candidate = self._candidate(line)
            if candidate is None:
                failure = f"there is no block with a function {self._entry!r}."
            else:
                if candidate.weight > 1:
                    return  # somebody wrote it before, and repairs it
                failure = await self._failure(candidate)
                if not failure:
                    return
                if options.trace_guided and not self._compiled and repair < options.repairs:
                    failure += await self._trace(candidate)
            if repair < options.repairs:
                pieces = options.repair.parts(put_fence(REPAIR, ctx.brief.task), failure=failure)
                line = line.think(pieces, options.repair, **self._call_options(f"repair-{number}.{repair + 1}"))

    def _call_options(self, name: str) -> TrajectoryOptions:
        return {"name": name, "seed": derive(self._ctx.brief.request.seed, "code-search", name)}

    def _candidate(self, line: Trajectory) -> Candidate | None:
        task = self._ctx.brief.task
        program = task.extract(line.text)
        if not isinstance(program, str):
            return None
        key = task.key(program)
        known = self._candidates.get(key)
        if known is not None:
            known.weight += 1
            return known
        made = self._candidates[key] = Candidate(program, key, line)
        return made

    async def _failure(self, candidate: Candidate) -> str:
        """Run the public cases; return the first failure as text, or an empty text."""
        cells = await self._cells(candidate, [args for args, _ in self._public])
        first = ""
        for (args, want), cell in zip(self._public, cells, strict=True):
            if has_returned(cell, want):
                candidate.passed += 1
            elif not first:
                call = f"{self._entry}({', '.join(map(json.dumps, args))})"
                first = f"{call} gave {render_cell(cell)}, and should give {json.dumps(want)}."
                if cell[0] == "broken" and self._compiled:
                    first = f"{cell[1]}. Correct that line."
        if not first and self._public:
            first = await find_fault(self._ctx, candidate.program, str(self._public[0][0][0]))
            candidate.passed *= not first  # what a sanitizer faults passes nothing
        return first

    async def _trace(self, candidate: Candidate) -> str:
        """Return what the lines of a program did on the first public case that it fails, or an empty text."""
        args = next(args for args, want in self._public if not has_returned(candidate.cells[json.dumps(args)], want))
        key = f"{self._ctx.random.random():.17f}"
        code = build_tracer(candidate.program, self._entry, args, _TRACED, key)
        try:
            result = await self._ctx.call(RUN_PYTHON, code=code)
        except StepFailed:
            return ""
        ((kind, value),) = read_outputs(result, 1, key)
        return format_trace(candidate.program, value) if kind == "value" else ""

    # -- running ------------------------------------------------------------------------------------------------------

    async def _cells(self, candidate: Candidate, inputs: Sequence[list[JsonValue]]) -> list[Cell]:
        """Run a program on the inputs that it has not been run on; return its cells for all."""
        keys = [json.dumps(row) for row in inputs]
        new = [args for args, key in zip(inputs, keys, strict=True) if key not in candidate.cells]
        if new:
            known = json.dumps([candidate.program, new])
            if known not in self._runs:
                self._runs[known] = begin_run(self._ctx, candidate.program, self._entry, new)
            cells = await finish_run(self._ctx, candidate.program, len(new), self._runs[known])
            candidate.cells |= dict(zip((json.dumps(row) for row in new), cells, strict=True))
        return [candidate.cells[key] for key in keys]

    async def _matrix(self, pool: Sequence[Candidate], inputs: Sequence[list[JsonValue]]) -> None:
        unique = list({json.dumps(row): row for row in inputs}.values())
        if unique:
            await self._ctx.gather(*(self._cells(candidate, unique) for candidate in pool))

    # -- tests --------------------------------------------------------------------------------------------------------

    async def _tests(self) -> Trajectory | None:
        if source := getattr(getattr(self._ctx.brief.task, "problem", None), "source", None):
            self._public += await self._run_source(source)
        if source or not self._options.tests:
            return None
        prompt = self._options.test
        default = INPUTS if self._options.criterion == "judged" else TESTS
        pieces = prompt.parts(default, question=self._question, count=str(self._options.tests))
        return self._ctx.think(pieces, prompt, name="tests")

    async def _run_source(self, source: Any) -> list[Test]:
        """Ask for inputs, run the program that is translated, and return those on which it ends well, with its outputs.
        Raises `PlannerError` where it does not run at all."""
        ctx, prompt = self._ctx, self._options.test
        pieces = prompt.parts(SOURCE_INPUTS, question=self._question, count=str(self._options.tests))
        try:
            inputs = read_inputs((await ctx.think(pieces, prompt, name="tests")).text, self._options.tests)
        except StepFailed:
            return []
        inputs = [args for args in inputs if len(args) == 1 and isinstance(args[0], str)]
        run = begin_run(ctx, source.code, MAIN, inputs, source.language)
        cells = await finish_run(ctx, source.code, len(inputs), run, source.language)
        if cells and all(kind == "broken" for kind, _ in cells):
            raise PlannerError(f"the source program cannot be run: {cells[0][1]}")
        return [(args, value) for args, (kind, value) in zip(inputs, cells, strict=True) if kind == "value"]

    async def _read_tests(self, asked: Trajectory | None) -> list[Test]:
        if asked is None:
            return []
        try:
            return read_tests((await asked).text, self._options.tests)
        except StepFailed:
            return []

    def _is_decided(self, pool: Sequence[Candidate], inputs: Sequence[list[JsonValue]], tests: Sequence[Test]) -> bool:
        """Whether the tests that tell behaviours apart, a vote each, could change nothing any more."""
        keys = [json.dumps(row) for row in inputs]
        behaviours = [candidate.behaviour(keys) for candidate in pool]
        kinds = len(set(behaviours))
        outstanding = min(self._options.pairs, kinds * (kinds - 1) // 2)
        votes = [float(count_votes(candidate, tests)) for candidate in pool]
        return self._options.criterion == "votes" and is_decided(votes, behaviours, outstanding)

    async def _ask_for_distinguishing_tests(
        self, pool: Sequence[Candidate], inputs: Sequence[list[JsonValue]]
    ) -> list[Test]:
        """Ask, for each pair of the largest behaviours, for a test on which they differ."""
        groups = sorted(
            cluster_by_behaviour(pool, [json.dumps(row) for row in inputs]).values(),
            key=lambda group: -count_samples(group),
        )
        pairs = list(islice(combinations([group[0] for group in groups], 2), self._options.pairs))
        prompt = self._options.judge
        lines = [
            self._ctx.think(
                prompt.parts(DIFFERENCE, question=self._question, a=a.program, b=b.program),
                prompt,
                name=f"difference-{i}",
            )
            for i, (a, b) in enumerate(pairs, 1)
        ]
        return [test for line in lines for test in (await self._read_tests(line))[:1]]
