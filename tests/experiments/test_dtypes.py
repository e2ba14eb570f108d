"""Prompts on which the bundled models are compared in two types of weights."""

from __future__ import annotations

import pytest

from experiments.throughput.dtypes import asked
from training.trades import TRADES


@pytest.mark.parametrize("trade", ["countdown", "tables", "arithmetic", "outline"])
def test_prompts_are_those_of_training_without_what_the_model_writes(trade: str) -> None:
    prompts = [tuple(prompt["prompt_token_ids"]) for prompt in asked(trade, 20)]
    assert len(set(prompts)) == 20
    assert prompts == [tuple(prompt["prompt_token_ids"]) for prompt in asked(trade, 20)]
    words = [[TRADES[trade].words[place] for place in ids] for ids in prompts]
    assert all(text and text[-1] != "<end>" for text in words)
    if trade in ("countdown", "arithmetic"):
        assert {text[-1] for text in words} == {"<go>"}
