"""The planner of tools: its traces, its words, the tokenizer, and what the orchestrator's planners really ask it."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator

import pytest

from plait import AsyncOrchestrator, Plugin
from plait.core.interfaces import Job, Progress
from plait.core.ops import ModelCall, Text
from plait.core.result import Failure, Result
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.workers.scripted import Reply, Scripted
from plait_bench.tasks.tables import Tables
from plait_bench.tasks.tables.language import NAMES
from training.tables import check, evaluate, vocab
from training.tables.generate import MIXTURE, Case, draw_trace, native_trace, plan_text, replan_trace
from training.tables.questions import held_out, is_test
from training.trades import CHAT_TEMPLATE, TRADES

CASES = [Case(text, at) for at, text in enumerate(held_out(24))]


@pytest.mark.parametrize("mode", list(MIXTURE))
def test_traces_are_words_of_the_vocabulary_and_both_tokenizers_cut_them_alike(mode: str) -> None:
    rng, tokenizer = random.Random(mode), TRADES["tables"].tokenizer()
    for _ in range(30):
        trace = draw_trace(rng, mode)
        text = vocab.decode(trace.ids)
        assert len(trace.ids) == len(trace.weights) < 500 and trace.weights[-1] > 0
        assert vocab.encode(text) == trace.ids == tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(trace.ids, skip_special_tokens=False) == text


def test_training_never_draws_from_the_test_split() -> None:
    rng = random.Random(5)
    names = {f"s{at}": name for at, name in enumerate(NAMES[:10])} | {f"n{at}": str(at + 2) for at in range(10)}
    for _ in range(200):
        shown = vocab.decode(draw_trace(rng, "plan").ids).removeprefix("<plan>").partition("\n")[0]
        assert not is_test(re.sub(r"\b[sn][0-9]\b", lambda found: names[found[0]], shown))


def test_the_teachers_plans_pass_the_independent_check_and_wrong_ones_do_not() -> None:
    rng = random.Random(7)
    for case in CASES:
        text = plan_text(case, range(len(case.calls)), {})
        assert check.judge_plan(case, text) == (True, True)
        assert check.judge_plan(case, text.replace("lookup", "look")) == (False, False)
        assert not check.judge_plan(case, f'1. lookup("age", "s9")\n{text}').executable
        again = evaluate.prompt_of(replan_trace(rng, case).trace())
        assert evaluate.whole_is_right(case, vocab.decode(again[0]), vocab.decode(again[1]))
    other = check.judge_plan(CASES[0], plan_text(CASES[-1], range(len(CASES[-1].calls)), {}))
    assert not other.equivalent


def test_plans_are_read_by_the_planners_own_parser_without_repairs() -> None:
    for case in CASES:
        parsed = LLMCompiler().parse(plan_text(case, range(len(case.calls)), {}), check.specs())
        assert not parsed["errors"] and not parsed["repairs"]
        steps = parsed["steps"]
        assert isinstance(steps, list) and len(steps) == len(case.calls) + 1


class Teacher(Scripted):
    """Answers as the teacher would, and notes what it was asked."""

    def __init__(self, case: Case) -> None:
        super().__init__([Reply(text="")])
        self.case, self.asked = case, list[str]()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        prompt = vocab.shortened("".join(part.text for part in job.op.prompt if isinstance(part, Text)))
        self.asked.append(prompt)
        if prompt.startswith("<plan>"):
            text = plan_text(self.case, range(len(self.case.calls)), {})
        elif prompt.startswith("<replan>"):
            text = "9. join()<END_OF_PLAN>"
        else:
            text = "Action: Replan(some calls failed)<END_OF_RESPONSE>"
        self.script = self.script.model_copy(update={"replies": (Reply(text=text),)})
        async for each in super().run(job):
            yield each


def test_what_the_planner_asks_is_what_the_model_was_trained_on() -> None:
    """Prompts of `llmcompiler`, with a plan whose look-ups all fail, are cut into the marks of training."""
    case = next(case for case in CASES if len(case.calls) > 3)

    async def asked() -> list[str]:
        worker = Teacher(case)
        task = Plugin(name="tables", options={"latency": [0.0, 0.0], "failing": 1.0})
        async with AsyncOrchestrator(workers=[worker]) as orchestrator:
            await orchestrator.run(case.plain, task=task, planner=Plugin(name="llmcompiler"))
        return worker.asked

    prompts = asyncio.run(asked())
    tokenizer = TRADES["tables"].tokenizer()
    for prompt in prompts:
        assert tokenizer.encode(prompt, add_special_tokens=False).ids == vocab.encode(prompt)
    marks = [prompt[: prompt.index(">") + 1] for prompt in prompts]
    assert marks == ["<plan>", "<joiner>", "<replan>", "<last>"]
    assert prompts[0] == f"<plan>{case.text}\n\n"
    assert prompts[1].startswith(f'<joiner>{case.text}\n\n1. lookup("') and prompts[1].endswith("<failed>\n\n")
    assert prompts[2].startswith(f"<replan>{case.text}<previous>1. lookup") and prompts[2].endswith("<failed><again>")


def test_the_chat_template_writes_native_turns_as_in_training() -> None:
    jinja2 = pytest.importorskip("jinja2")
    case = CASES[5]
    text = "".join(part for part, _ in native_trace(random.Random(1), case).parts)
    head, *turns = text.split("<end>")
    messages: list[dict[str, object]] = [{"role": "user", "content": case.text}]
    head = head.removeprefix(f"<native>{case.text}\n")
    for turn in [head, *turns[:-1]]:
        results, _, rest = turn.rpartition("</tool_response>\n") if "</tool_response>" in turn else ("", "", turn)
        for result in results.split("</tool_response>\n"):
            if result:
                messages.append({"role": "tool", "content": result.removeprefix("<tool_response>")})
        made = [{"function": {"name": c.tool, "arguments": dict(zip(check.PARAMETERS[c.tool], c.args, strict=True))}}
                for c in check.read_calls(rest) or []]  # fmt: skip
        messages.append({"role": "assistant", "tool_calls": made, "content": "" if made else rest})
    environment = jinja2.Environment()
    environment.filters["tojson"] = json.dumps
    assert environment.from_string(CHAT_TEMPLATE).render(messages=messages, tools=[1]) == text


def test_the_task_shows_the_model_what_it_was_trained_on() -> None:
    for case in CASES:
        assert Tables(text=case.plain).render() == case.text


def test_the_shipped_model_plans_and_joins() -> None:
    """Short questions of the test split, in plain torch; its tokenizer is the one made here."""
    from training.decode import generate
    from training.export import load
    from training.trades import TRADES

    folder = TRADES["tables"].folders["small"]
    assert json.loads((folder / "tokenizer.json").read_text()) == json.loads(TRADES["tables"].tokenizer().to_str())
    model = load(folder)
    cases = [Case(text, at) for at, text in enumerate(held_out(12, sizes=(1, 4)))]
    texts = generate(model, [vocab.encode(f"<plan>{case.text}\n\n") for case in cases], evaluate.STOPS, 120)
    right = [check.judge_plan(case, vocab.decode(ids)).equivalent for case, ids in zip(cases, texts, strict=True)]
    assert sum(right) >= 11
