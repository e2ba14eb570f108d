"""`/tokenizer_info` of an engine in the process: a tokenizer's settings, without places of this machine."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer

from plait.runtime.client.models import folder_of
from plait.workers.engine.token_requests import answer_tokenizer


def test_the_settings_of_a_tokenizer_name_no_folder_of_this_machine() -> None:
    folder = str(folder_of("countdown"))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompter: Any = SimpleNamespace(tokenizer=tokenizer, template="")
    settings = answer_tokenizer("/tokenizer_info", {}, prompter, 512)
    assert settings["tokenizer_class"] == type(tokenizer).__name__ and "eos_token" in settings
    assert folder not in json.dumps(settings)
