"""Planner `recursive`: code of a model that reads the request and asks sub-calls, run in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from experiments._tools.worker import InProcess, text_of
from plait import Orchestrator, Request
from plait.core.errors import PlaitError
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.runtime.client.answer import Answer
from plait.workers.tools.sandbox import Process, Program, ProgramOutcome, Sandbox, SandboxLimits

LINES = [f"Line {i} has the number {i * 7919 % 10007}.\n" for i in range(40_000)]
TEXT = "".join(LINES) + "What is the number of line 77?"
"""1.3 million characters."""
ROOT = "is the string `context`"


def block(code: str) -> str:
    return f"Let me see.\n```repl\n{code}\n```\n"


class Model(InProcess):
    """Its turns are given; a sub-call's answer is made from its prompt."""

    name = "model"

    def __init__(self, turns: Sequence[str], sub: Callable[[str], str] = str.upper) -> None:
        self._turns, self._sub = iter(turns), sub
        self.seen: list[str] = []
        """The prompt of each turn but the first."""
        self.prompts: list[str] = []
        """Prompts of sub-calls."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        text = text_of(job.op)
        if ROOT in text:
            self.seen.append(text.removesuffix("\n\nAssistant:"))
            text = next(self._turns)
        else:
            self.prompts.append(text)
            text = self._sub(text)
        if text == "fail":
            yield Failure(kind="EngineError", message="no luck")
        else:
            yield Result(value=text, usage=Usage(completion=len(text.split())), finish="stop")


def run(model: Model, request: Any = TEXT, sandbox: Sandbox | None = None, **options: Any) -> Answer[Any]:
    sandbox = sandbox or Sandbox("process", limits=SandboxLimits(seconds=60))
    with Orchestrator(workers=[model], tools=sandbox.tools(), journal=None) as orchestrator:
        return orchestrator.run(request, planner={"name": "recursive", "options": options})


class Faulty:
    """Ends programs with a fault in their text in this way, and runs the others."""

    name, isolates = "faulty", False

    def __init__(self, fault: str, outcome: ProgramOutcome) -> None:
        self._fault, self._outcome, self._process = fault, outcome, Process()

    async def run(self, program: Program) -> ProgramOutcome:
        return self._outcome if self._fault in program.code else await self._process.run(program)

    async def close(self) -> None:
        await self._process.close()


def test_a_batch_reads_all_of_a_text_that_no_context_holds() -> None:
    code = """
parts = [context[at:at + 100_000] for at in range(0, len(context), 100_000)]
answers = llm_query_batched([f"Line 77?\\n{part}" for part in parts])
print([answer for answer in answers if answer])
"""
    model = Model([block(code), "FINAL(9343 (the right one))"], lambda text: "9343" * ("Line 77 has" in text))
    answer = run(model)
    assert answer.text == "9343 (the right one)"
    assert answer.why == "2 turns, 13 sub-calls"
    assert sorted(model.prompts) == sorted(
        f"Line 77?\n{TEXT[at : at + 100_000]}" for at in range(0, len(TEXT), 100_000)
    )
    assert model.seen[1].endswith("The code printed:\n['9343']\n")
    assert len(model.seen[0]) < 7000
    assert TEXT[:2000] in model.seen[0]
    assert TEXT[-2000:] in model.seen[0]


def test_variables_stay_and_earlier_code_prints_nothing_again() -> None:
    turns = [
        block("x = llm_query('a')\nprint('one')"),
        block("y = llm_query(x + 'b')\nprint('two', y)"),
        "FINAL_VAR(y)",
    ]
    model = Model(turns, lambda text: text + "!")
    answer = run(model, "short")
    assert (answer.text, model.prompts) == ("a!b!", ["a", "a!b"])
    assert model.seen[2].endswith("The code printed:\ntwo a!b!\n")


@pytest.mark.parametrize(
    "last",
    [
        block("answer['content'] = 5\nanswer['ready'] = True"),
        block("FINAL(x)"),
        block("FINAL_VAR('x')"),
        block("pass") + 'FINAL_VAR("x")',
        block("x = 6") + "FINAL(5)",
    ],
)
def test_each_published_form_of_an_answer_ends_the_run(last: str) -> None:
    assert run(Model([block("x = 5"), last]), "short").text == "5"


def test_prompts_that_are_not_ranges_of_the_text_arrive_whole() -> None:
    text = "".join(f"é{i}\r\n" for i in range(500)) + "\n".join(["The grass is green. The sky is blue."] * 50)
    code = "import re\nllm_query_batched([context, context[::-1], context.upper(), re.sub('7', '', context)])"
    model = Model([block(code), "FINAL(x)"], lambda prompt: "")
    run(model, text)
    assert model.prompts == [text, text[::-1], text.upper(), text.replace("7", "")]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            "llm_query_batched(map(str, range(5)))",
            "ValueError: A batch has at most 4 prompts, got 5.",
        ),
        (
            "for i in range(3): llm_query_batched([f'{i}{j}' for j in range(3)])",
            "Only 0 sub-calls are left, got 3 prompts.",
        ),
        ("llm_query('x' * 500_001)", "ValueError: A prompt has 1 to 500000 characters, got 500001."),
        ("llm_query('')", "ValueError: A prompt has 1 to 500000 characters, got 0."),
        ("nothing", "NameError: name 'nothing' is not defined"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("FINAL_VAR('z')", "KeyError: 'z'"),
        ("llm_query('x', model='other')", "TypeError"),
    ],
)
def test_a_mistake_of_the_code_is_shown_and_no_sub_call_is_made_for_it(code: str, error: str) -> None:
    model = Model([block(code), block("print('again')"), "FINAL(ok)"])
    assert run(model, "short", width=4, max_branches=6).text == "ok"
    assert error in model.seen[1]
    assert model.seen[2].endswith("The code printed:\nagain\n")
    assert len(model.prompts) == (6 if "left" in error else 0)


def test_the_limit_counts_the_sub_calls_of_all_turns() -> None:
    model = Model([*(block(f"print(llm_query('{i}'))") for i in range(4)), "FINAL(ok)"])
    run(model, "short", max_branches=3)
    assert model.prompts == ["0", "1", "2"]
    assert "Only 0 sub-calls are left, got 1 prompts." in model.seen[4]


def test_a_query_that_code_catches_or_makes_in_threads_is_answered() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
try:
    a = llm_query("a")
except BaseException:
    a = "caught"
with ThreadPoolExecutor() as pool:
    print(a, *pool.map(llm_query, "bcd"))
"""
    model = Model([block(code), "FINAL(ok)"])
    run(model, "short")
    assert model.seen[1].endswith("The code printed:\nA B C D\n")
    assert sorted(model.prompts) == ["a", "b", "c", "d"]


def test_code_that_never_ends_is_forgotten_and_the_model_told() -> None:
    turns = [block("x = 1"), block("while True: pass"), block("print(x)"), "FINAL(ok)"]
    model = Model(turns)
    sandbox = Sandbox(Faulty("while True", ProgramOutcome(status="timeout", stderr="killed")))
    assert run(model, "short", sandbox).text == "ok"
    assert "The code was stopped and is forgotten (timeout): killed" in model.seen[2]
    assert model.seen[3].endswith("The code printed:\n1\n")


def test_code_that_ends_its_process_or_prints_past_the_sandbox_is_forgotten() -> None:
    turns = [block("import os\nos._exit(0)"), block("llm_query('é' * 100_000)"), "FINAL(ok)"]
    model = Model(turns)
    assert run(model, "short").text == "ok"
    assert "stopped and is forgotten (done)" in model.seen[1]
    assert "stopped and is forgotten (too much output)" in model.seen[2]
    assert model.prompts == []


def test_a_long_output_keeps_head_and_tail() -> None:
    model = Model([block("print('a' * 500 + 'b' * 500)"), "FINAL(ok)"])
    run(model, "short", observation_chars=100)
    assert f"{'a' * 50}\n[901 characters left out]\n{'b' * 49}\n" in model.seen[1]


def test_a_dead_sandbox_ends_the_run_with_its_reason() -> None:
    sandbox = Sandbox(Faulty("_plait_turn", ProgramOutcome(status="broken", stderr="no space left")))
    answer = run(Model([block("1")]), "short", sandbox)
    assert answer.failure is not None
    assert answer.failure.message.endswith("the sandbox does not work: no space left")


def test_without_a_sandbox_the_error_names_the_remedy() -> None:
    with Orchestrator(workers=[Model([])], journal=None) as orchestrator:
        answer = orchestrator.run("short", planner="recursive")
    assert answer.failure is not None
    assert "Give tools=Sandbox().tools()." in answer.failure.message


def test_without_final_the_model_must_answer_and_why_reports_it() -> None:
    model = Model([block("print(1)"), "Hmm.", "FINAL(7)"])
    answer = run(model, "short", rounds=2)
    assert (answer.text, answer.why) == ("7", "no FINAL in 2 turns; asked to answer then")
    assert "There was no block ```repl and no FINAL(answer) in your turn." in model.seen[2]
    assert "No turns are left." in model.seen[2]
    assert run(Model(["Hmm.", "Seven."]), "short", rounds=1).text == "Seven."
    failed = run(Model(["Hmm.", " "]), "short", rounds=1)
    assert failed.failure is not None
    assert "recursive has no answer after 1 turns. Raise `rounds`." in failed.failure.message


def test_a_recursive_query_has_a_session_of_its_own() -> None:
    turns = [
        block("print(rlm_query('x' * 5000 + 'What?'))"),
        block("print(len(context), rlm_query('deeper'))"),  # at the last level: a plain call
        "FINAL(in the middle)",
        "FINAL(ok)",
    ]
    model = Model(turns)
    assert run(model, "short", depth=2, max_branches=2).text == "ok"
    assert model.seen[2].endswith("The code printed:\n5005 DEEPER\n")
    assert model.seen[3].endswith("The code printed:\nin the middle\n")


def test_a_failed_sub_call_is_a_text_that_code_can_read() -> None:
    model = Model(
        [block("print(llm_query_batched(['a', 'b']))"), "FINAL(ok)"], lambda text: "fail" if text == "a" else text
    )
    assert run(model, "short").text == "ok"
    assert "['Error: 1.think-1: EngineError: no luck', 'b']" in model.seen[1]


def test_code_that_changes_what_is_asked_gets_no_sub_call() -> None:
    reach = "import sys\nasked = sys._getframe(1).f_locals['asked']\n"
    model = Model([block(reach + "asked.append(5)"), block(reach + "asked.append(['llm', [[0, 5]] * 9])"), "FINAL(ok)"])
    assert run(model, "short").text == "ok"
    assert "stopped and is forgotten" in model.seen[1]
    assert model.prompts[:1] == ["short" * 9]


def test_a_conversation_is_the_text() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1."},
        {"role": "user", "content": "Two?"},
    ]
    model = Model([block("print(context)"), "FINAL(2)"])
    assert run(model, Request(messages=messages)).text == "2"
    assert model.seen[1].endswith("The code printed:\nsystem: Be brief.\n\nuser: One?\n\nassistant: 1.\n\nuser: Two?\n")


def test_a_failed_turn_fails_the_run() -> None:
    answer = run(Model(["fail"]), "short")
    assert answer.failure is not None
    assert "no luck" in answer.failure.message


@pytest.mark.parametrize("options", [{"depth": 0}, {"width": 0}, {"rounds": 0}, {"preview_chars": 0}])
def test_limits_below_one_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PlaitError):
        run(Model([]), "short", **options)
