"""A form that vLLM cannot keep the model to: left out where the step can do without, else named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.ops import Sampling, Structured
from plait.core.result import Failure
from plait.workers._shared.streams import Stream
from plait.workers.engine.requests import EngineOutputs, EngineRequest
from plait.workers.engine.vllm import Core


class Rejecting:
    """An engine that takes no request with a form."""

    def __init__(self, rejects: bool) -> None:
        self.rejects = rejects
        self.taken: list[Any] = []

    def add_request(self, key: str, prompt: object, params: Any, **_: object) -> str:
        if self.rejects and params.structured_outputs is not None:
            raise ValueError("no such grammar")
        self.taken.append(params)
        return key


@pytest.mark.parametrize("rejects", [True, False])
@pytest.mark.parametrize("required", [True, False])
def test_a_form_is_left_out_only_where_it_may_be(required: bool, rejects: bool) -> None:
    core: Any = object.__new__(Core)
    core.engine, core.running, core._inner = Rejecting(rejects), {}, {}
    core._tokens_input = lambda ids, **_: ids
    core.counts = {"prompt": 0, "cached": 0}
    core.cached = None
    form = Structured(kind="json", spec={"type": "object"}, required=required)
    params = SimpleNamespace(structured_outputs=form)
    order = EngineRequest("1", Stream(), [1, 2], Sampling(structured=form), False, params=params)
    news: EngineOutputs = []
    core.add(order, news)
    if not rejects:
        core._end(order, news, "error", None)  # vLLM found no token at all that fits
    if required:
        ((_, failure),) = news
        assert isinstance(failure, Failure) and not core.running
    else:
        assert not news and list(core.running) == ["1"]
        assert core.engine.taken[-1].structured_outputs is None and params.structured_outputs is form
