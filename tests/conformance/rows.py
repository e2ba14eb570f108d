"""A row of the table: one check of one client, direct and through plait."""

from __future__ import annotations

from typing import NamedTuple

_CUT_IN_A_CALL = (
    "the limit of 32 tokens cuts the answer between a call's arguments and its end. `vllm serve` returns this as text "
    "without streaming, and as a call with streaming (both direct). plait streams, so the client makes the call and "
    "sends another request"
)
MEANT: dict[tuple[str, str], str] = {
    ("openai_agents_sdk", "a_tool_that_is_required"): _CUT_IN_A_CALL,
    ("pydantic_ai_agents", "two_calls_at_once"): _CUT_IN_A_CALL,
    ("openai_node", "ai_object"): (
        "another text. plait also describes the schema in the prompt, so the model writes other values; `vllm serve` "
        "only constrains the decoding"
    ),
}
"""Differences that are meant, by client and check, with the reason."""


class Row(NamedTuple):
    """One check of one client."""

    client: str
    version: str
    check: str
    direct: str
    """What went wrong against the upstream; empty: nothing."""
    through: str
    """The same through `plait serve`."""

    @property
    def broken(self) -> bool:
        """Whether the client gets from the upstream what it does not get through plait."""
        return not self.direct and bool(self.through)

    @property
    def wrong(self) -> bool:
        """Whether it is so without a reason."""
        return self.broken and (self.client, self.check) not in MEANT
