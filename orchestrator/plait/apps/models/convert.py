"""Turns a GGUF file into a model folder that vLLM loads: `config.json`, tokenizer, safetensors, by transformers."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ...core.errors import UsageError

INSTALL = "pip install 'plait[gguf]' torch"


def convert(file: Path, folder: Path) -> None:
    """Write a model folder made of a GGUF file, with weights in bfloat16.

    Raises `UsageError` for a file that is not a GGUF file of a model that transformers knows, and if a library is
    missing.
    """
    try:
        import accelerate  # noqa: F401  # pyright: ignore[reportMissingImports]  # transformers reads by both
        import gguf
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise UsageError(f"reading a GGUF file needs {error.name}: {INSTALL}") from None
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    logging.set_verbosity_error()  # it advises on the speed of a model that is only read
    bars = sys.stderr if sys.stderr.isatty() else io.StringIO()  # in a log they would be hundreds of lines
    try:
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        parsed = gguf.GGUFReader(file)  # once: transformers would parse it for config, tokenizer and weights
        with redirect_stderr(bars), patch.object(gguf, "GGUFReader", lambda _: parsed):
            tokenizer = AutoTokenizer.from_pretrained(**source)
            model = AutoModelForCausalLM.from_pretrained(**source, dtype="bfloat16")
    except Exception as error:  # the library raises whatever it stumbles over
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{file} is not a GGUF file of a model that transformers can read: {reason}") from None
    tokenizer.save_pretrained(folder)
    config: Any = model.config
    weights = model.state_dict()
    del config.quantization_config  # it says GGUF, and the weights are not quantized any more
    if config.tie_word_embeddings:  # one tensor, which the format holds once
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.dtype = [type(model).__name__], model.dtype
    config.save_pretrained(folder)  # last: a folder without it is not a model, so an interrupted conversion is not one
