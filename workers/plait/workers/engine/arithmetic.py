"""Arithmetic sampling inside vLLM: a logits processor that leaves each line of it one token, that of the line's code.

It runs in the engine of this process, and in a server that loads it:
`vllm serve MODEL --logits-processors plait.workers.engine.arithmetic:Arithmetic`. Only vLLM imports this file.
"""

from __future__ import annotations

from typing import Any

import torch  # noqa: TID253
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # noqa: TID253

from .._shared.arithmetic_codes import CODE, ArithmeticCode, is_code
from .distribution import chosen, restricted

__all__ = ["Arithmetic"]


class Arithmetic(AdapterLogitsProcessor):
    """Arithmetic sampling (Vilnis et al., arXiv 2210.15458).

    A request with `extra_args={"arithmetic_code": u}`, u in [0, 1), gets at each position the token v with
    F(v - 1) <= u < F(v), F being the distribution function over the vocabulary after penalties, temperature, `min_p`,
    `top_k` and `top_p`; what is left of u, scaled to [0, 1), is the code of the next position. If u is uniform, so is
    what is left, and the text is an ordinary sample. Lines whose codes are spread evenly have texts that are spread
    evenly over the model's distribution.

    Differs from the authors' code: codes do not run out of bits (`ArithmeticCode`), and the order of the vocabulary is
    its own. All other requests are left alone.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `ValueError` for a code that is none. A client finds out by it that a server has this processor."""
        given = sampling_params.extra_args or {}
        if CODE in given and not is_code(given[CODE]):
            raise ValueError(f"{CODE} of arithmetic sampling is a number from 0 to below 1, and not {given[CODE]!r}")

    def is_argmax_invariant(self) -> bool:
        """True: it is for requests that sample alone, and comes after temperature and `min_p`."""
        return True

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return the state of a request, `None` for one of ordinary sampling."""
        code = (params.extra_args or {}).get(CODE)
        return None if code is None else _Line(params, float(code))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave each line its token."""
        if not self.req_info:
            return logits
        places: list[int] = []
        lines: list[_Line] = []
        codes: list[ArithmeticCode] = []
        for place, bound in self.req_info.items():
            line: Any = bound.func
            line.code = line.code.at(len(bound.args[-1]))
            places.append(place)
            lines.append(line)
            codes.append(line.code)
        at = torch.tensor(places, device=logits.device)
        rows = logits[at].double()
        if any(line.top_k or line.top_p < 1.0 for line in lines):
            rows = torch.stack([restricted(row, line.top_k, line.top_p) for row, line in zip(rows, lines, strict=True)])
        tokens = chosen(rows, codes)
        kept = logits[at, tokens]
        logits[at] = float("-inf")
        logits[at, tokens] = kept
        return logits


class _Line:
    """What is known of a request."""

    def __init__(self, params: Any, start: float) -> None:
        self.code = ArithmeticCode(start, start if params.seed is None else params.seed)
        self.top_k, self.top_p = max(0, params.top_k), params.top_p

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Never called: the rows of all lines are looked at together. vLLM tells by it what to bind."""
        raise NotImplementedError
