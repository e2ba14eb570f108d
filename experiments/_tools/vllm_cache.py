"""vLLM's own cache manager, without an engine."""

from __future__ import annotations

from typing import Any

__all__ = ["ANSWER", "BLOCK", "TOGETHER", "Cache"]

BLOCK, ANSWER, TOGETHER = 32, 16, 6


class Cache:
    """vLLM's cache manager with a fixed number of blocks."""

    def __init__(self, blocks: int) -> None:
        import msgspec
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self._manager = KVCacheManager(config, 4096, BLOCK, BLOCK, enable_kv_cache_events=True)
        self._request: Any = Request
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._params = SamplingParams(max_tokens=ANSWER)
        self._encode = msgspec.msgpack.Encoder().encode
        self._number = 0
        self.tokens = (blocks - 1) * BLOCK

    def begin(self, ids: list[int]) -> tuple[Any, int]:
        """Take a prompt in; return it, and how many tokens of it were cached."""
        self._number += 1
        request = self._request(f"{self._number}", ids, self._params, None, block_hasher=self._hasher)
        found, cached, *_ = self._manager.get_computed_blocks(request)
        taken = self._manager.allocate_slots(request, len(ids) - cached, cached, found)
        assert taken is not None, "the cache is too small for what runs together"
        request.num_computed_tokens = len(ids)
        return request, cached

    def end(self, request: Any, answer: list[int]) -> None:
        """Generate an answer, and let the request go."""
        for each in answer:
            request.append_output_token_ids(each)
            assert self._manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        self._manager.free(request)

    def events(self) -> bytes | None:
        """Return the changes in wire format."""
        from vllm.distributed.kv_events import KVEventBatch

        events: Any = self._manager.take_events()
        return self._encode(KVEventBatch(ts=float(self._number), events=events)) if events else None
