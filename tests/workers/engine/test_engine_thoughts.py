"""A model in this process whose chat template lets it think before it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from plait.workers._shared.prompt import ENDED, rendered
from plait.workers.engine import Engine
from tests.one_engine import opened

TEMPLATE = "{% for each in messages %}{{ each['content'] }} {% endfor %}<think> "


def ask(**fields: Any) -> ModelCall:
    sampling = Sampling(max_tokens=8, logit_bias=fields.pop("bias", {}), **fields)
    return ModelCall(prompt=(Text(text="w3 w4"),), chat=True, sampling=sampling)


@pytest.mark.parametrize(
    ("thinking", "template", "kwargs", "begin"),
    [
        ("off", "{{ enable_thinking }}", {"enable_thinking": False}, ""),
        ("on", "{{ enable_thinking }}", {"enable_thinking": True}, ""),
        ("off", "<think>", {}, ENDED),
        ("on", "<think>", {}, ""),
        ("auto", "<think>", {}, ""),
        ("off", "no thoughts", {}, ""),
    ],
)
def test_a_template_is_told_whether_to_think_as_it_can_be_told(
    thinking: Any, template: str, kwargs: dict[str, bool], begin: str
) -> None:
    told = rendered(ask(thinking=thinking), template)
    assert (told.sampling.chat_template_kwargs, told.begin) == (kwargs, begin)


@pytest.fixture
def thinker(tiny_model: Path, tmp_path: Path) -> Path:
    """The folder of the random model, with the words `<think>` and `</think>` and a template that begins a thought."""
    folder = tmp_path / "thinker"
    shutil.copytree(tiny_model, folder)
    words = (folder / "tokenizer.json").read_text().replace('"w1":', '"<think>":').replace('"w2":', '"</think>":')
    (folder / "tokenizer.json").write_text(words)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return folder


async def ends(engine: Engine, think: ModelCall, attempt: int) -> Result | Failure:
    *_, last = [item async for item in engine.run(Job(attempt=attempt, run="r", step="r:s", op=think))]
    assert isinstance(last, Result | Failure)
    return last


@pytest.mark.engine
@pytest.mark.own_engine
async def test_thoughts_have_room_of_their_own_and_are_told_apart(thinker: Path) -> None:
    """Of a model that never ends its thoughts: an answer after them, and one without."""
    close = json.loads((thinker / "tokenizer.json").read_text())["model"]["vocab"]["</think>"]
    async with opened(thinker) as engine:
        lost = await ends(engine, ask(thinking_tokens=16, bias={str(close): -100.0}), 1)
        silent = await ends(engine, ask(thinking="off", bias={str(close): -100.0}), 2)
    assert isinstance(lost, Failure) and lost.code == "cut-in-thoughts"
    assert lost.usage.completion == 8 + 16 and lost.usage.thoughts == 24
    assert isinstance(silent, Result) and silent.finish == "length"
    assert silent.reasoning == "" and silent.usage.completion == 8
