"""The exported folder loads with transformers by path and computes what our network computes; generation is
exact.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from training.decode import generate
from training.evaluate import TABLE, Row, update_card
from training.export import export, hf_config, load, write_card
from training.model import Llama, ModelConfig, parameter_count
from training.trades import by_words
from training.vocab import END, ID, WORDS, encode

CONFIG = ModelConfig(d=64, layers=2, heads=2, ff=96)
BUNDLED = Path(__file__).parents[2] / "packages" / "plait-models" / "plait_models" / "models" / "countdown"
PROMPTS = [
    "<child> T24 9 8 3 <go>",
    "<parent> 4 T62 25 19 5 3 <go>",
    "<direct> T62 25 19 5 3 <go> 25 / 5 = 5",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("model")
    export(Llama(CONFIG), path, {"tokens": 0})
    return path


def test_tokenizer_is_one_word_one_token() -> None:
    tokenizer = by_words()
    assert tokenizer.get_vocab_size() == len(WORDS)
    for text in PROMPTS:
        assert tokenizer.encode(text).ids == encode(text)
        assert tokenizer.decode(encode(text)) == text
    assert tokenizer.decode(encode("<none> <end>"), skip_special_tokens=True) == "<none>"


def test_transformers_loads_tokenizer_by_path_without_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    for text in PROMPTS:
        assert tokenizer(text)["input_ids"] == encode(text)
        assert tokenizer.decode(encode(text)) == text
    assert tokenizer.eos_token_id == END and tokenizer.bos_token_id is None


def test_transformers_computes_the_same_scores(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    ours = load(folder).eval()
    with torch.inference_mode():
        for text in PROMPTS:
            ids = torch.tensor([encode(text)])
            expected = theirs(ids).logits
            found = ours.logits(ours.hidden(ids, torch.float32), torch.float32)
            assert torch.allclose(expected, found, atol=2e-4, rtol=1e-3)


def test_no_half_written_files_are_left(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "training.json",
    ]  # fmt: skip


def test_cached_generation_equals_recomputing(folder: Path) -> None:
    model = load(folder)
    prompts = [encode(text) for text in PROMPTS]
    together = generate(model, prompts, stop={END}, limit=12, rows=2)
    for prompt, continuation in zip(prompts, together, strict=True):
        ids = list(prompt)
        with torch.inference_mode():
            for token in continuation:
                scores = model.logits(model.hidden(torch.tensor([ids]), torch.float32), torch.float32)
                assert int(scores[0, -1].argmax()) == token
                ids.append(token)
        assert len(continuation) == 12 or continuation[-1] == END


def test_generation_stops_and_respects_the_context(folder: Path) -> None:
    model = load(folder)
    free = generate(model, [encode(PROMPTS[0])], stop=(), limit=9)[0]
    assert generate(model, [encode(PROMPTS[0])], stop={free[3]}, limit=9)[0] == free[: free.index(free[3]) + 1]
    long = [1] * (CONFIG.context - 4)
    assert len(generate(model, [long, long[:5]], stop=(), limit=9)[0]) == 4
    sampled = [generate(model, [encode(PROMPTS[1])] * 4, (), 9, temperature=1.0, seed=s) for s in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


@pytest.mark.skipif(not (BUNDLED / "model.safetensors").exists(), reason="no model was exported")
def test_the_bundled_folder_is_small_and_of_this_vocabulary() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) < 8_000_000
    assert json.loads((BUNDLED / "tokenizer.json").read_text())["model"]["vocab"] == ID
    config = load(BUNDLED).config
    assert json.loads((BUNDLED / "config.json").read_text()) == hf_config(config)
    assert config.context == 1024


def test_a_model_without_a_card_gets_one(tmp_path: Path) -> None:
    facts = {"steps": 16_000, "tokens": 70_454_018, "seconds": 3543, "seed": 1}
    assert write_card(load(BUNDLED), tmp_path, "python -m training", facts, TABLE)
    card = (tmp_path / "README.md").read_text()
    assert "A Llama of 1.1 million parameters (5 layers, width 128, 4 heads, context 1,024 tokens" in card
    assert "(seed 1, 16,000 steps): 70.5 million tokens in 59 minutes" in card
    assert update_card([Row("direct", 10, 0.5, (0.2, 0.8), 0.0, 3.0, 3.0, 3.0)], tmp_path / "README.md")
    assert "50.0 % (20.0–80.0)" in (tmp_path / "README.md").read_text()
    assert not write_card(load(BUNDLED), tmp_path, "python -m training", facts, TABLE)


@pytest.mark.parametrize("name", ["countdown", "countdown-large"])
def test_a_model_card_says_what_training_counted(name: str) -> None:
    folder = BUNDLED.with_name(name)
    card = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    facts = json.loads((folder / "training.json").read_text())
    model = load(folder)
    assert f"A Llama of {parameter_count(model) / 1e6:.1f} million parameters ({model.config.layers} layers, " in card
    assert f"width {model.config.d}, {model.config.heads} heads, context {model.config.context:,} tokens" in card
    assert f"{facts['steps']:,} steps of about {round(facts['tokens'] / facts['steps'], -2):,.0f} tokens" in card
    assert f"{facts['tokens'] / 1e6:.1f} million tokens" in card
    assert re.search(rf"\b(in|,) {facts['seconds'] / 60:.0f} minutes", card)
