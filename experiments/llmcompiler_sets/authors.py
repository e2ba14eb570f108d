"""The authors' own planner, task fetching unit and joiner, from a clone of their repository, in virtual time.

What they import from LangChain is replaced by empty classes: their code calls the model through two methods. The plan
streams token by token into their parser, as with `--stream`. Their code is not in this folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .._tools.virtual_vllm import VirtualLoop
from .questions import Question

CHARACTERS_A_TOKEN = 4
EXAMPLES = {"HotpotQA": "hotpotqa", "Movie": "movie", "ParallelQA": "parallelqa"}
_STUBS = {
    "langchain.callbacks.base": ("AsyncCallbackHandler", "Callbacks", "BaseCallbackHandler"),
    "langchain.callbacks.manager": ("AsyncCallbackManagerForChainRun", "CallbackManagerForChainRun"),
    "langchain.chat_models.base": ("BaseChatModel",),
    "langchain.llms": ("BaseLLM",),
    "langchain.llms.base": ("BaseLLM",),
    "langchain.prompts.base": ("StringPromptValue",),
    "langchain.schema": ("LLMResult", "OutputParserException"),
    "langchain.schema.messages": ("HumanMessage", "SystemMessage"),
    "langchain.agents.agent": ("AgentOutputParser",),
    "src.callbacks.callbacks": ("AsyncStatsCallbackHandler",),
    "src.chains.chain": ("Chain",),
    "src.executors.schema": ("Plan",),
    "src.tools.base": ("StructuredTool", "Tool"),
    "src.utils.logger_utils": ("log",),
}


class Anything:
    """Take the place of a class of LangChain."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given, self.named = given, named

    def __init_subclass__(cls, **given: Any) -> None:
        pass


class Tool:
    """A tool, as their plans name it."""

    stringify_rule = None

    def __init__(self, name: str, func: Any, description: str) -> None:
        self.name, self.func, self.description = name, func, description


class Model(Anything):
    """The model: writes the plan, then the answer, token by token."""

    def __init__(self, plan: str, answer: str, decode: float, prefill: float, question: str) -> None:
        self.plan, self.answer, self.decode, self.prefill, self.question = plan, answer, decode, prefill, question
        self.written = 0

    async def read(self, prompt: str) -> None:
        """Wait for what the prompt has behind the instructions and examples, which are cached."""
        own = prompt[prompt.rfind(self.question) :]
        await asyncio.sleep(len(own) / CHARACTERS_A_TOKEN / self.prefill)

    async def apredict(self, message: str, callbacks: Sequence[Any] = (), stop: Any = None) -> str:
        """Write the plan, in pieces of a token."""
        await self.read(message)
        for start in range(0, len(self.plan), CHARACTERS_A_TOKEN):
            await asyncio.sleep(self.decode)
            self.written += 1
            for each in callbacks:
                await each.on_llm_new_token(self.plan[start : start + CHARACTERS_A_TOKEN], run_id=None)
        for each in callbacks:
            await each.on_llm_end(None, run_id=None)
        return self.plan

    async def agenerate_prompt(self, prompts: Sequence[Any], **_: Any) -> Any:
        """Write the joiner's answer."""
        await self.read(prompts[0].named["text"])
        tokens = max(1, len(self.answer) // CHARACTERS_A_TOKEN)
        self.written += tokens
        await asyncio.sleep(tokens * self.decode)
        return types.SimpleNamespace(generations=[[types.SimpleNamespace(text=self.answer)]])


@contextlib.contextmanager
def imported(clone: Path) -> Iterator[Any]:
    """Import their code from the files of a clone, with LangChain replaced."""
    for name, classes in _STUBS.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            module = ".".join(parts[:depth])
            if module.startswith("langchain") or module == name:
                sys.modules.setdefault(module, types.ModuleType(module)).__path__ = []
        for each in classes:
            stub: Any = (lambda *_, **__: None) if each == "log" else type(each, (Anything,), {})
            setattr(sys.modules[name], each, stub)
    sys.modules["langchain.llms"].BaseLLM = sys.modules["langchain.llms.base"].BaseLLM = Model  # type: ignore[attr-defined]
    sys.path.insert(0, str(clone))
    try:
        yield importlib.import_module("src.llm_compiler.llm_compiler").LLMCompiler
    finally:
        sys.path.remove(str(clone))


def answer(
    compiler: Any, question: Question, plan: str, said: str, decode: float, prefill: float, example: str
) -> tuple[float, str]:
    """Run a question by their code; return the seconds and the answer."""

    def tool_of(name: str) -> Callable[..., Any]:
        async def call(text: str, *_: Any) -> str:
            place = next(at for at, task in enumerate(question.tasks) if task.tool == name and task.text == text)
            await asyncio.sleep(question.seconds(place))
            return question.observation(place)

        return call

    tools = [Tool(name, tool_of(name), name) for name in ("search", "math")]
    model = Model(plan, said, decode, prefill, question.text)
    theirs = compiler(
        tools=tools, planner_llm=model, planner_example_prompt=example, planner_example_prompt_replan=None,
        planner_stop=None, planner_stream=True, agent_llm=model, joinner_prompt=example, joinner_prompt_final=None,
        max_replans=1, benchmark=False,
    )  # fmt: skip
    loop = VirtualLoop()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = loop.run_until_complete(theirs._acall({"input": question.text}))
        return loop.now, next(iter(found.values()))
    finally:
        loop.close()
