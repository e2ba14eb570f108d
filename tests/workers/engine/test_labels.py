"""Probabilities of labels, on the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plait.core.result import Failure
from plait.workers._shared.resources import cpu_dtype
from plait.workers.engine import Engine

from .test_engine import everything, words
from .test_engine_requests import asking, end_of

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


async def test_labels_have_the_models_own_probabilities(engine: Engine, tiny_model: Path) -> None:
    """Beside a request that asks for signals of its own, in the same steps."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, cpu_dtype("auto"))  # what the engine computes in
    model = AutoModelForCausalLM.from_pretrained(tiny_model, torch_dtype=dtype)
    alone = await end_of(engine, asking(words(9, 4), max_tokens=20, logprobs=5))
    labels = words(30, 6).split()[::2]
    asked = [asking(words(i, 5), labels=tuple(labels), max_tokens=1) for i in range(4)]
    beside, *told = await asyncio.gather(
        end_of(engine, asking(words(9, 4), max_tokens=20, logprobs=5)), *(end_of(engine, each) for each in asked)
    )
    assert beside.signals is not None and alone.signals is not None
    assert beside.signals.confidence == pytest.approx(alone.signals.confidence, abs=0.02)
    for result in told:
        with torch.no_grad():
            row = torch.log_softmax(model(torch.tensor([result.prompt_ids])).logits[0, -1].float(), dim=-1).tolist()
        ids = engine_ids(tiny_model, labels)  # logits of 8 to 16 are known to 0.06 in bfloat16
        assert result.labels == {label: pytest.approx(row[token], abs=0.07) for label, token in ids.items()}
        assert result.text.strip() in labels and result.usage.completion == 1
        assert result.labels[result.text.strip()] >= max(result.labels.values()) - 0.02
    refused = (await everything(engine, asking("a", labels=(" ".join(labels), labels[0]), max_tokens=1)))[-1]
    assert isinstance(refused, Failure) and "must be one" in refused.message


def engine_ids(folder: Path, labels: list[str]) -> dict[str, int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {label: tokenizer.encode(label, add_special_tokens=False)[0] for label in labels}
