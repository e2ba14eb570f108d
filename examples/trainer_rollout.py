"""A rollout on a trainer's own servers: token ids in, token ids out. This server is scripted, its tokens are bytes."""

import asyncio
from typing import Any

from plait_research.rollouts.adapters import verl_fields
from plait_research.rollouts.producer import roll_out
from plait_research.workers.token_client import GeneratedTokens, TokenClient


class Bytes:  # a tokenizer; id 0 ends an answer
    all_special_ids = (0,)
    encode = staticmethod(lambda text, **_: list(text.encode()))
    decode = staticmethod(lambda ids, **_: bytes(ids).decode())


async def generate(step: str, prompt: list[int], sampling: dict[str, Any]) -> GeneratedTokens:
    answer = b"It is 42.\0" if sampling["seed"] % 4 else b"41?\0"
    return GeneratedTokens(list(answer), [-0.5] * len(answer), versions=(3, 3))  # the weights' version


worker = TokenClient(generate, Bytes(), {"temperature": 1.0}, prompt=100, response=50, seeded=True)
request = {"text": "Six by seven?", "planner": "sample:n=3,early=false", "seed": 1}
answer, records = asyncio.run(roll_out(worker, "prompt-1", 0, request))
print(f"{answer.answer}: {len(records)} sequences")
for fields in (verl_fields(record, listed=True) for record in records):
    print(bytes(fields["response_ids"]), sum(fields["response_mask"]), fields["extra_fields"]["max_global_steps"])

# prints "It is 42.: 3 sequences"
# prints "b'41?\\x00' 4 3"
