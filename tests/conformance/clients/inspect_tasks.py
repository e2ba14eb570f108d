"""Inspect."""

from __future__ import annotations

import tempfile
from importlib.metadata import version

from expected import Text
from inspect_ai import Task, eval_async
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import chain_of_thought, generate, self_critique, use_tools
from inspect_ai.tool import tool

VERSION = version("inspect-ai")


@tool
def weather():
    async def execute(city: str) -> str:
        """Tell the weather.

        Args:
            city: where.
        """
        return "sun"

    return execute


async def ran(base, model, solver, target="fine", question="hello", responses=False, **config):
    served = get_model(f"openai-api/plait/{model}", base_url=base, api_key="none", memoize=False,
                       config=GenerateConfig(max_retries=0, **config), responses_api=responses)  # fmt: skip
    task = Task(dataset=[Sample(question, target=target)], solver=solver, scorer=includes())
    with tempfile.TemporaryDirectory() as folder:
        (log,) = await eval_async(task, model=served, log_dir=folder, log_format="json")
    assert log.status == "success", log.error.message if log.error else log.status
    accuracy, output = log.results.scores[0].metrics["accuracy"].value, log.samples[0].output
    assert accuracy == 1 or Text(target) == output.completion, output.completion
    assert output.usage.output_tokens > 0 and output.stop_reason in ("stop", "max_tokens", "tool_calls")


async def check_generate(base, model):
    await ran(base, model, generate())


async def check_settings(base, model):
    more = {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 3,
        "seed": 1,
        "max_tokens": 50,
        "frequency_penalty": 0.1,
        "logprobs": True,
    }
    await ran(base, model, generate(), **more)


async def check_several_choices(base, model):
    await ran(base, model, generate(), num_choices=2)


async def check_chain_of_thought_and_critique(base, model):
    await ran(base, model, [chain_of_thought(), generate(), self_critique()])


async def check_tools(base, model):
    await ran(base, model, [use_tools(weather()), generate()], "sunny", "the weather in Rome?")


async def check_react(base, model):
    await ran(base, model, react(tools=[weather()]), "fine", "the weather in Rome?")


async def check_responses(base, model):
    await ran(base, model, generate(), responses=True)
