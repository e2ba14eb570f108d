"""Requests about tokens with the fields of vLLM's server: token ids as prompts, log-probabilities, the tokenizer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from plait.core.chat import read_messages
from plait.core.errors import Rejected
from plait.core.ops import ModelCall
from plait.core.sampling import Sampling

from .._shared.prompt import Prompter

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "bad_words", "stop_token_ids", "allowed_token_ids", "logprobs",
)  # fmt: skip
"""Fields that vLLM's `SamplingParams` has under the same name; the model's own settings may have the first four."""
TOKEN_FIELDS = frozenset((
    *_SAMPLING, "prompt", "max_tokens", "logit_bias", "echo", "prompt_logprobs", "return_token_ids",
    "return_tokens_as_token_ids", "cache_salt", "model",
))  # fmt: skip
"""Fields of the completions that are answered."""


def read_prompts(fields: Mapping[str, Any], prompter: Prompter) -> list[list[int]]:
    """Return the token ids of a request's prompts: of a conversation, or of one or several texts or lists of ids."""
    if "messages" in fields:
        sampling = Sampling(chat_template_kwargs=fields.get("chat_template_kwargs") or {})
        return [prompter.ids(ModelCall(messages=read_messages(fields["messages"]), chat=True, sampling=sampling))]
    given, special = fields.get("prompt", ""), fields.get("add_special_tokens", True)
    prompts = given if isinstance(given, list) and not isinstance(next(iter(given), 0), int) else [given]
    return [prompter.tokenizer.encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else prompt
            for prompt in prompts]  # fmt: skip


def answer_tokenizer(path: str, fields: Mapping[str, Any], prompter: Prompter, max_model_len: int) -> dict[str, Any]:
    """Answer `/tokenize`, `/detokenize` and `/tokenizer_info`."""
    tokenizer = prompter.tokenizer
    if path == "/detokenize":
        return {"prompt": prompter.text(fields.get("tokens", ()))}
    if path == "/tokenizer_info":
        # As vLLM's server answers, and without `name_or_path`, a folder of this machine.
        hidden = [name for name in tokenizer.init_kwargs if name.endswith("_file")] + ["name_or_path"]
        settings = {name: value for name, value in tokenizer.init_kwargs.items() if name not in hidden}
        settings |= {"tokenizer_class": type(tokenizer).__name__, "chat_template": prompter.template or None}
        return json.loads(json.dumps(settings, default=lambda value: getattr(value, "content", str(value))))
    ids = list(itertools.chain.from_iterable(read_prompts(fields, prompter)))
    strings = tokenizer.convert_ids_to_tokens(ids) if fields.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": strings}


def read_parameters(fields: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's parameters of a completion. `generation`: the model's own settings. Raises `Rejected` for a field
    that is not taken. For a limit of 0, which vLLM does not know, the one token has to be dropped."""
    if unknown := sorted(fields.keys() - TOKEN_FIELDS):
        raise Rejected(f"requests about tokens take no `{unknown[0]}` on an engine in the process: use an upstream")
    given = {name: generation[name] for name in _SAMPLING[:4] if name in generation}
    given |= {name: fields[name] for name in _SAMPLING if fields.get(name) is not None}
    prompt, limit = fields.get("prompt_logprobs"), fields.get("max_tokens")
    given["prompt_logprobs"] = fields.get("logprobs") if prompt is None and fields.get("echo") else prompt
    if bias := fields.get("logit_bias"):
        given["logit_bias"] = {int(token): value for token, value in bias.items()}
    return {**given, "max_tokens": 16 if limit is None else max(1, limit)}
