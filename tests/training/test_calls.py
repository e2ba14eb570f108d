"""Questions that are made up for the adapter, what is trained on them, and the adapter that comes of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plait.planners.tools.llmcompiler import LLMCompiler
from training.calls import lora
from training.calls.generate import catalogue, draw
from training.calls.prompts import prompt

torch = pytest.importorskip("torch")


def test_a_plan_calls_what_there_is_as_often_as_it_says() -> None:
    counts: Counter[int] = Counter()
    for seed in range(300):
        example = draw(random.Random(seed), held=seed % 5 == 0)
        told: Any = LLMCompiler().parse(example.plan, example.tools)
        assert not told["errors"] and not told["repairs"], (example.plan, told)
        steps = [step for step in told["steps"] if step["tool"] != "join"]
        assert len(steps) == example.count and example.plan.endswith("join()<END_OF_PLAN>")
        assert len({json.dumps([step["tool"], step["args"]], sort_keys=True) for step in steps}) == example.count
        counts[example.count] += 1
    assert set(range(1, 6)) <= set(counts)


def test_every_value_of_a_call_stands_in_its_question() -> None:
    for seed in range(200):
        example = draw(random.Random(seed))
        told: Any = LLMCompiler().parse(example.plan, example.tools)
        for step in told["steps"]:
            for value in step["args"].values():
                written = json.dumps(value) if isinstance(value, list) else str(value)
                assert written in example.question, (written, example.question)


def test_functions_that_are_held_back_are_never_drawn() -> None:
    held = {spec.description for seed in range(300) for spec in draw(random.Random(seed), held=True).tools}
    drawn = {spec.description for seed in range(1500) for spec in draw(random.Random(seed)).tools}
    assert not held & drawn and len(held) + len(drawn) == len(catalogue())


def test_the_prompt_is_the_planner_s() -> None:
    example = draw(random.Random(1))
    text = prompt(example)
    assert text.endswith(f"\nQuestion: {example.question}\n\n")
    assert all(spec.name in text for spec in example.tools)


def tiny() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=3, **sizes)).eval()


def test_an_adapter_begins_as_nothing_learns_and_is_kept(tmp_path: Path) -> None:
    model, ids = tiny(), torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    before = model(ids).logits
    trained = lora.adapt(model, first=1)
    assert len(trained) == 2 * 2 * 7 and torch.equal(model(ids).logits, before)
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    lora.save(model, tmp_path, "tiny")
    again = tiny()
    lora.adapt(again, first=1)
    lora.load(again, tmp_path)
    assert torch.allclose(again(ids).logits, model(ids).logits, atol=0.05), "kept in bfloat16"
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["layers_to_transform"] == [1, 2] and config["r"] == lora.RANK


def test_a_correction_is_that_of_peft(tmp_path: Path) -> None:
    """W·x + alpha/r · B·A·x, worked out from the file as another program reads it."""
    from safetensors.torch import load_file

    model = tiny()
    lora.adapt(model, first=2)
    part = model.model.layers[2].self_attn.q_proj
    with torch.no_grad():
        part.lora_B.normal_()
    lora.save(model, tmp_path, "tiny")
    kept = load_file(str(tmp_path / "adapter_model.safetensors"))
    at = "base_model.model.model.layers.2.self_attn.q_proj."
    delta = (kept[f"{at}lora_B.weight"].float() @ kept[f"{at}lora_A.weight"].float()) * lora.ALPHA / lora.RANK
    x = torch.randn(4, 32)
    assert torch.allclose(part(x), x @ (part.base.weight + delta).T, atol=0.1)
