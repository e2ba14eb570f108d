"""The process of a pooling engine: vLLM with a model that tells numbers in the place of words.

    python -m plait_research.tools.pooling_process '{"model": "/models/reward"}'

Each line on stdin is an order as JSON, each line on stdout what became of one. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from typing import Any, TextIO

from plait.core.errors import EngineError
from plait.workers.engine.core_process import first_line
from plait.workers.engine.engine_loader import broken, load, prepare
from plait.workers.engine.options import EngineOptions

Order = dict[str, Any]
"""`id`, `task` (`classify` or `token_classify`), `text`; `pair` (a second text) or `messages` or token `ids` in the
text's place; `activation`: false for numbers as they leave the head."""


class Pooler:
    """vLLM's engine and the orders that are in it."""

    def __init__(self, spec: EngineOptions) -> None:
        """Load the model. Raises `EngineError`, or whatever vLLM raises."""
        self._vllm, self._engine = load(
            prepare(spec) | {"runner": "pooling", "max_logprobs": None, "logits_processors": None}
        )
        self._input = self._vllm.inputs.tokens_input
        self._tokenizer: Any = self._engine.get_tokenizer()
        self._config: Any = self._engine.vllm_config.model_config
        self.running: set[str] = set()
        told: Any = getattr(self._engine, "get_supported_tasks", None)
        self._tasks: tuple[str, ...] = () if told is None else tuple(told())
        if "classify" not in self._tasks and "token_classify" not in self._tasks:
            raise EngineError(
                f"{spec.model} has no head of classes or rewards (it can: {', '.join(self._tasks) or 'nothing'}): give "
                "a reward model, such as one of the architecture LlamaForSequenceClassification"
            )

    def add(self, order: Order) -> None:
        """Give an order to vLLM. Raises `EngineError` for one that cannot be done, or whatever vLLM raises."""
        task = order["task"]
        if task not in self._tasks:
            raise EngineError(f"this model cannot {task}: it can {', '.join(self._tasks)}")
        ids, more = self._ids(order)
        params = self._vllm.PoolingParams(task=task, use_activation=order.get("activation"), **more)
        self._engine.add_request(str(order["id"]), self._input(ids), params)
        self.running.add(str(order["id"]))

    def _ids(self, order: Order) -> tuple[list[int], Order]:
        """Return the token ids of an order's text, and what else the parameters need."""
        if (ids := order.get("ids")) is not None:
            return [int(id_) for id_ in ids], {}
        if (messages := order.get("messages")) is not None:
            encoded = self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
            return list(encoded["input_ids"]), {}
        pair = order.get("pair")
        if pair is None:
            return list(self._tokenizer(order["text"])["input_ids"]), {}
        if not getattr(self._config, "use_sep_token", True):
            return list(self._tokenizer(order["text"] + pair)["input_ids"]), {}
        both = self._tokenizer(text=order["text"], text_pair=pair)
        kinds = both.get("token_type_ids")
        if not kinds:
            return list(both["input_ids"]), {}
        # vLLM needs the position at which the second text begins.
        at = kinds.index(1) if 1 in kinds else len(kinds)
        return list(both["input_ids"]), {"extra_kwargs": {"compressed_token_type_ids": at}}

    def step(self) -> list[Order]:
        """Run one step of vLLM; return its outputs."""
        told: list[Order] = []
        for output in self._engine.step():
            if not output.finished:
                continue
            self.running.discard(output.request_id)
            trouble: Any = getattr(output, "error", None)
            if trouble is not None:
                told.append({"id": output.request_id, "error": f"the engine failed on this text: {trouble}"})
                continue
            data = output.outputs.data.float().tolist()
            tokens, cached = len(output.prompt_token_ids), getattr(output, "num_cached_tokens", 0) or 0
            told.append({"id": output.request_id, "data": data, "tokens": tokens, "cached": cached})
        return told


def main() -> None:
    """Load the model of the first argument, then do what comes in."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    spec = EngineOptions.model_validate_json(sys.argv[1])
    orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    try:
        pooler = Pooler(spec)
    except BaseException as error:
        _tell(out, {"broken": str(broken(error, spec.model))})
        return
    _tell(out, {"ready": True})
    while True:
        while not pooler.running or not orders.empty():
            line = orders.get()
            if line is None:
                return
            _begin(pooler, line, out)
        for told in pooler.step():
            _tell(out, told)


def _begin(pooler: Pooler, line: str, out: TextIO) -> None:
    order: Order = json.loads(line)
    try:
        pooler.add(order)
    except Exception as error:  # vLLM's own classes change; nothing has been scheduled yet, so the engine is sound
        reason = str(error) if isinstance(error, EngineError) else f"the engine rejected the text: {first_line(error)}"
        _tell(out, {"id": order["id"], "error": reason})


def _read(orders: queue.SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        orders.put(line)
    orders.put(None)


def _tell(out: TextIO, told: Order) -> None:
    with contextlib.suppress(BrokenPipeError):
        out.write(json.dumps(told) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
