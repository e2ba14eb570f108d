"""Completions in the format of vLLM's server, of outputs of vLLM itself: token ids and log-probabilities."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]
Fields = Mapping[str, Any]
_LEAST = -9999.0
"""OpenAI's placeholder for a missing log-probability."""


def write_completion(fields: Fields, outputs: Sequence[Any], decode: Decode) -> dict[str, Any]:
    """Return the answer to a request: a choice for each sequence of each prompt's `RequestOutput`. `decode`: returns
    the text of token ids."""
    choices = [_choice(fields, output, piece, decode) for output in outputs for piece in output.outputs]
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    written = sum(len(piece.token_ids) for output in outputs for piece in output.outputs)
    return {
        "id": f"cmpl-{outputs[0].request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": fields.get("model"),
        "choices": [{"index": place, **choice} for place, choice in enumerate(choices)],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def _choice(fields: Fields, output: Any, piece: Any, decode: Decode) -> dict[str, Any]:
    ids, text, rows = list(piece.token_ids), piece.text, piece.logprobs or []
    shown, prompt = fields.get("return_token_ids"), output.prompt_token_ids
    choice = {
        "finish_reason": piece.finish_reason,
        "stop_reason": piece.stop_reason,
        "token_ids": ids if shown else None,
        "prompt_token_ids": prompt if shown else None,
        "prompt_logprobs": output.prompt_logprobs and [*map(_row, output.prompt_logprobs)],
    }
    if fields.get("echo"):
        kept = 0 if fields.get("max_tokens") == 0 else len(ids)
        text = ("" if shown else decode(prompt)) + (text if kept else "")
        ids, rows = [*prompt, *ids[:kept]], [*(output.prompt_logprobs or ()), *rows[:kept]]
    return {**choice, "text": text, "logprobs": _lists(fields, ids, rows, decode)}


def _row(row: Any) -> dict[int, dict[str, Any]] | None:
    """Return the tokens at a place of a prompt; the first place has none."""
    return row and {id_: {"logprob": max(_LEAST, score.logprob), "rank": score.rank,
                          "decoded_token": score.decoded_token} for id_, score in row.items()}  # fmt: skip


def _lists(fields: Fields, ids: Sequence[int], rows: Sequence[Any], decode: Decode) -> dict[str, Any] | None:
    """Return tokens as completions have them, with log-probabilities in nats."""
    if (most := fields.get("logprobs")) is None:
        return None
    as_ids = fields.get("return_tokens_as_token_ids")

    def text_of(id_: int, score: Any) -> str:
        text = f"token_id:{id_}" if as_ids else score and score.decoded_token
        return decode([id_]) if text is None else text

    pairs = [(id_, row and row[id_]) for id_, row in zip(ids, rows, strict=True)]
    tokens = [text_of(*pair) for pair in pairs]
    return {
        "tokens": tokens,
        "token_logprobs": [score and max(_LEAST, score.logprob) for _, score in pairs],
        "top_logprobs": [
            row and {text_of(*pair): max(_LEAST, pair[1].logprob) for pair in itertools.islice(row.items(), most + 1)}
            for row in rows
        ],
        "text_offset": [*itertools.accumulate(map(len, tokens), initial=0)][:-1],
    }
