"""Asks a planner whether a model's tokenizer and chat template fit it, before the model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.interfaces import Planner

_QUESTION = "What is 6 times 7?"


def preflight(planner: Planner, model: str) -> tuple[str, ...] | None:
    """Return a planner's warnings about a model, or `None` if it has no check or the model is not on this machine."""
    ask: Callable[..., tuple[str, ...]] | None = getattr(planner, "preflight", None)
    folder = Path(model).expanduser()
    file = folder / "tokenizer.json"
    if ask is None or not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no class of its own
        return (f"{file} cannot be read: {error}",)

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return ask(encode, _opening(folder))


def _opening(folder: Path) -> str | None:
    """Return a question as the model's chat template renders it; empty without a template, `None` if it cannot be."""
    try:
        settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        own = folder / "chat_template.jinja"
        template = own.read_text(encoding="utf-8") if own.is_file() else settings.get("chat_template") or ""
        if not isinstance(template, str) or not template:
            return "" if template == "" else None
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        tokens = {name: value for name, value in settings.items() if name.endswith("_token") and isinstance(value, str)}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        messages = [{"role": "user", "content": _QUESTION}]
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except Exception:  # a template is a program: whatever is wrong with it is not ours to say
        return None
