"""plait-router in verl: in the file of `rollout.router_config_path`, `router_class: router_in_verl.VerlLoadBalancer`.

The class has the methods of `verl.workers.rollout.router.RequestLoadBalancer` (verl 0.9.1). The other keys of the file
are options of `plait_router.Router`. It needs plait-router alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plait_router import Router


class VerlLoadBalancer:
    """A trajectory is a session; prompts of the same beginning go to the same server, unless it is overloaded."""

    def __init__(self, servers: Mapping[str, Any], router_kwargs: Mapping[str, Any] | None = None) -> None:
        options = {name: value for name, value in (router_kwargs or {}).items() if name != "router_class"}
        self._servers, self._router = dict(servers), Router(servers, **options)

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    def require_release_fields(self) -> list[str]:
        return []

    def acquire_server(self, request_id: str, prompt_ids: Sequence[int] = ()) -> tuple[str, Any]:
        try:
            name = self._router.begin(prompt_ids, session=request_id)
        except LookupError:  # the words by which verl waits and tries again
            raise RuntimeError("No available servers in load balancer") from None
        return name, self._servers[name]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._router.end(server_id)

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        self._servers.update(servers)
        for name in servers:
            self._router.add(name)

    def remove_servers(self, server_ids: Iterable[str]) -> None:
        for name in self._servers.keys() & server_ids:
            self._router.remove(name)
            del self._servers[name]

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget sessions and caches: verl calls this when the weights change."""
        return {"cleared_entries": self._router.forget_contexts(), "server_loads": dict(self._router.running)}

    def get_all_servers(self) -> list[str]:
        return list(self._servers)

    def get_inflight_count(self, server_id: str) -> int:
        return self._router.running.get(server_id, 0)

    def get_total_inflight(self) -> int:
        return sum(self._router.running.values())

    def get_status(self) -> dict[str, Any]:
        loads = dict(self._router.running)
        return {"servers": loads, "total_inflight": sum(loads.values()), "active_servers": len(loads)}


if __name__ == "__main__":
    balancer = VerlLoadBalancer({"a": "handle a", "b": "handle b"}, {"slots": 16})
    prompts = {"first": list(range(500)), "second": list(range(500, 1000))}
    for prompt, ids in prompts.items():
        print(prompt, "on", *sorted({balancer.acquire_server(f"{prompt}-{i}", ids)[0] for i in range(4)}))
    print(balancer.get_status())

# prints "first on a"
# prints "second on b"
# prints "'total_inflight': 8"
