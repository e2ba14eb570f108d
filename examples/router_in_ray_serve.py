"""plait-router in Ray Serve: replicas are chosen by the beginnings of prompts, sessions and load.

`RequestRouterConfig(request_router_class="router_in_ray_serve:PrefixRouter")`, or the class itself, as below.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from plait_router import Router


class PrefixRouter(RequestRouter):
    """Each handle has one, which knows its own requests. Options of `Router` are its `request_router_kwargs`."""

    def initialize_state(self, **options: Any) -> None:
        self._router, self._routed = Router(**options), set[str]()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica, then the others in case it is full."""
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        for name in self._router.running.keys() ^ replicas.keys():
            (self._router.add if name in replicas else self._router.remove)(name)
        if pending_request is None or not replicas:
            return [candidate_replicas]
        chosen = self._router.choose(prompt_of(pending_request), pending_request.metadata.session_id)
        return [[replicas.pop(chosen)], [*replicas.values()]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        data = pending_request.metadata
        if replica_id.unique_id in self._router.running:
            self._router.begin(prompt_of(pending_request), data.session_id, engine=replica_id.unique_id)
            self._routed.add(data.internal_request_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        if internal_request_id in self._routed:  # others were refused by a full replica
            self._routed.remove(internal_request_id)
            self._router.end(replica_id.unique_id)


def prompt_of(request: PendingRequest) -> str:
    """Return the text of a request: of its body's `messages` or `prompt`, or of an argument that is a text."""
    body = request.args[0] if request.args else ""
    return str(getattr(body, "messages", None) or getattr(body, "prompt", None) or body)


ROUTING = RequestRouterConfig(request_router_class=PrefixRouter)  # pyright: ignore[reportArgumentType]


@serve.deployment(num_replicas=2, request_router_config=ROUTING)
class Model:
    """In place of an engine."""

    def __call__(self, prompt: str) -> str:
        return serve.get_replica_context().replica_id.unique_id


if __name__ == "__main__":
    handle = serve.run(Model.bind())
    header = "the same long header before every question, in all of its requests; " * 8
    places = {handle.remote(f"{header} {i}?").result() for i in range(8)}
    print(f"8 questions behind one header on {len(places)} replica")
    serve.shutdown()

# prints "8 questions behind one header on 1 replica"
