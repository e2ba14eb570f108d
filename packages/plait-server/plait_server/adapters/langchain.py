"""plait as a chat model of LangChain (`pip install langchain-openai`).

with local_server(base_url="http://localhost:8000/v1") as url:
    PlaitChatModel("sample:n=8", url).invoke("How many r are in strawberry?")
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI

from ..bodies import PREFIX


class PlaitChatModel(ChatOpenAI):
    """A chat model whose answers a planner makes.

    Args:
        planner: as in `--planner`, with policies after a plus: `sample:n=8+consensus`.
        url: of a plait server, `http://…/v1`: `plait serve`, or `local_server`.
        model: which of the server's models answers; by default any.
        options: further fields of `ChatOpenAI`.
    """

    def __init__(self, planner: str, url: str, model: str = "", **options: Any) -> None:
        name = f"{PREFIX}{planner}" + (f"@{model}" if model else "")
        super().__init__(model=name, base_url=url, **{"api_key": "none", **options})
