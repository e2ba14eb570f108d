"""plait in front of Ray Serve LLM on a local cluster of two nodes: what was found, as one line of JSON.

The application of Ray Serve LLM (`build_openai_app`) is Ray's own but for the engine: a server class in its place. Its
replicas are chosen by plait-router, and plait's deployment is its client.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import RequestRouterConfig
from ray.serve.llm import LLMConfig, build_openai_app

from plait_server.ray_serve import DeployArguments, app

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from router_in_ray_serve import PrefixRouter  # pyright: ignore[reportMissingImports]

SMALL: dict[str, Any] = {"object_store_memory": 100 << 20}
ROUTING = RequestRouterConfig(request_router_class=PrefixRouter)  # pyright: ignore[reportArgumentType]


class Server:
    """In place of Ray's `LLMServer` over vLLM: it answers with its replica and its node."""

    def __init__(self, llm_config: LLMConfig) -> None:
        self._config = llm_config

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        return dict(llm_config.deployment_config)

    async def llm_config(self) -> LLMConfig:
        return self._config

    async def check_health(self) -> None:
        """It is."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> Any:
        from ray.serve.llm.openai_api_models import ChatCompletionResponse

        await asyncio.sleep(0.2)
        place = f"{serve.get_replica_context().replica_id.unique_id} {ray.get_runtime_context().get_node_id()}"
        message = {"role": "assistant", "content": place}
        yield ChatCompletionResponse.model_validate({
            "model": request.model, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        })  # fmt: skip


async def main(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=200) as client:

        async def ask(path: str, model: str, text: str) -> str:
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            answer = await client.post(path, json=body)
            return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text

        headers = [f"{letter} header that is the same in all of its questions; " * 12 for letter in "abcd"]
        places = list[list[str]]()
        for header in headers:
            places.append(
                await asyncio.gather(*(ask("/llm/v1/chat/completions", "small", f"{header}{i}?") for i in range(4)))
            )
        plait = [await ask("/v1/chat/completions", "plait/sample:n=4", f"{header}and?") for header in headers]
        return {"places": places, "plait": plait}


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **SMALL})
    cluster.add_node(num_cpus=2, **SMALL)
    cluster.connect()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    config = LLMConfig(
        model_loading_config={"model_id": "small"},  # pyright: ignore[reportArgumentType]
        server_cls=Server,
        deployment_config={
            "num_replicas": 2, "max_ongoing_requests": 64, "ray_actor_options": {"num_cpus": 1},
            "max_replicas_per_node": 1, "request_router_config": ROUTING,
        },
    )  # fmt: skip
    one = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.5}}
    llm = build_openai_app({"llm_configs": [config], "ingress_deployment_config": one})
    serve.run(llm, name="llm", route_prefix="/llm")
    given = DeployArguments(
        upstream=f"http://127.0.0.1:{port}/llm/v1",
        options={"journal": "off", "model": "small"},
        max_replicas=2,
        cpus=0.5,
    )
    serve.run(app(given), name="plait", route_prefix="/")
    sys.stdout.write(json.dumps(asyncio.run(main(f"http://127.0.0.1:{port}"))) + "\n")
    serve.shutdown()
    cluster.shutdown()
