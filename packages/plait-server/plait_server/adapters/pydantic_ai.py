"""plait as a model of pydantic-ai (`pip install 'pydantic-ai-slim[openai]'`).

with local_server(base_url="http://localhost:8000/v1") as url:
    agent = Agent(PlaitModel("sample:n=8", url))
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ..bodies import PREFIX


class PlaitModel(OpenAIChatModel):
    """A model whose answers a planner makes.

    Args:
        planner: as in `--planner`, with policies after a plus: `sample:n=8+consensus`.
        url: of a plait server, `http://…/v1`: `plait serve`, or `local_server`.
        model: which of the server's models answers; by default any.
        api_key: of a tenant, where the server has tenants.
    """

    def __init__(self, planner: str, url: str, model: str = "", api_key: str = "none") -> None:
        name = f"{PREFIX}{planner}" + (f"@{model}" if model else "")
        super().__init__(name, provider=OpenAIProvider(base_url=url, api_key=api_key))
