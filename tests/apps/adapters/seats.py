"""What the tests of live rollouts share: a tokenizer, and a server of token ids in a trainer's protocol.

The model's text depends on its prompt's ids alone, and it writes every character as a token of its own, where the
tokenizer has pairs: whoever decodes and encodes its text again is found out.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{%- for message in messages %}{% if message.role in ('user', 'assistant') %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
FIELDS = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "num_turns", "reward_score")
"""What is compared of an output of verl's loops."""
SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
SPECIAL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
PAIRS = (("h", "e"), ("i", "s"), ("t", "h"), ("a", "n"), ("1", "2"), ("ĊĊ"[0], "<"), ("o", "l"))


def build_tokenizer() -> Any:
    """Return a byte-level tokenizer with a few pairs, control tokens and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *("".join(pair) for pair in PAIRS)]
    inner = Tokenizer(models.BPE(vocab={name: place for place, name in enumerate(names)}, merges=list(PAIRS)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[SPECIAL[1]],
    )
    made.chat_template = TEMPLATE
    return made


class FakeServers:
    """A server manager of verl: `generate` returns token ids.

    `calls`: turns of a conversation that call the tool `lookup` (the number is in the prompt's text). `versions`: the
    weights' versions of successive calls. `hang`: never answer. `fault`: raise.
    """

    def __init__(self, tokenizer: Any, calls: int = 0, output: Any = SimpleNamespace) -> None:
        self.tokenizer, self.calls, self.output = tokenizer, calls, output
        self.asked: list[dict[str, Any]] = []
        self.versions: list[tuple[int, int]] | None = None
        self.fault: Exception | None = None
        self.hang = False
        self.cancelled = 0

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        self.asked.append({"id": request_id, "prompt": list(prompt_ids), "params": dict(sampling_params), **more})
        if self.fault is not None:
            raise self.fault
        try:
            await asyncio.sleep(3600 if self.hang else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        ids = self.write(prompt_ids, sampling_params.get("seed", 0))[: sampling_params.get("max_tokens", 10_000)]
        steps = (
            {}
            if self.versions is None
            else dict(zip(("min_global_steps", "max_global_steps"), self.versions.pop(0), strict=True))
        )
        return self.output(
            token_ids=ids, log_probs=logprobs_of(ids, len(prompt_ids)) if sampling_params.get("logprobs") else None,
            num_preempted=0, extra_fields=steps, stop_reason="completed", routed_experts=None,
        )  # fmt: skip

    def write(self, prompt: Sequence[int], seed: int) -> list[int]:
        text = self.tokenizer.decode(list(prompt), skip_special_tokens=False)
        number = int.from_bytes(hashlib.sha256(json.dumps([list(prompt), seed]).encode()).digest()[:2], "big")
        turns = text.count("<tool_response>")
        said = f"the answer is {number} then he is old"
        if turns < self.calls:
            calls = "\n".join(
                f'<tool_call>\n{{"name": "lookup", "arguments": {{"key": "{number}{each}"}}}}\n</tool_call>'
                for each in range(1 + number % 2)
            )
            said = f"this is {number}\n{calls}" if number % 3 else calls
        ids = [self.tokenizer.convert_tokens_to_ids(letter) for letter in byte_letters(self.tokenizer, said)]
        return [*ids, self.tokenizer.eos_token_id]


def byte_letters(tokenizer: Any, text: str) -> list[str]:
    """Return the names of a text's bytes, one token each."""
    words = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [letter for word, _ in words for letter in word]


def logprobs_of(ids: Sequence[int], before: int) -> list[float]:
    """Return the log-probabilities that the server gives to ids after a prompt of this length."""
    return [-((before + place * 7 + each) % 97) / 50 for place, each in enumerate(ids)]


def asked_of(case: int) -> tuple[dict[str, str], int]:
    """Return the question of a case, and its limit of response tokens; every fourth answer is cut."""
    question = {"role": "user", "content": f"what is he asking, and is the sky blue {case}?"}
    return question, 2000 if case % 4 else 60 + case


def turns_of(case: int) -> int:
    """Return how many turns of a case call tools."""
    return 1 + case % 3


LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a key up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "The key"}},
            "required": ["key"],
        },
    },
}


def looked_up(key: str) -> str:
    """The tool that the model calls."""
    return f"{key[::-1]} is the value\nof {key}"
