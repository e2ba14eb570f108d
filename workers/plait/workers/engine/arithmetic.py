"""Arithmetic sampling inside vLLM: a logits processor that leaves each line of it one token, that of the line's code.

It runs in the engine of this process, and in a server that loads it:
`vllm serve MODEL --logits-processors plait.workers.engine.arithmetic:Arithmetic`. Only vLLM imports this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # noqa: TID253
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # noqa: TID253

from .._shared.arithmetic_codes import CODE, ArithmeticCode, is_code


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
        """Raise `ValueError` for an invalid code. Clients detect this processor on a server by the error."""
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
    """The state of a request."""

    def __init__(self, params: Any, start: float) -> None:
        self.code = ArithmeticCode(start, start if params.seed is None else params.seed)
        self.top_k, self.top_p = max(0, params.top_k), params.top_p

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Never called: the rows of all lines are looked at together. vLLM tells by it what to bind."""
        raise NotImplementedError


def restricted(row: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return a row of logits, shape (vocabulary,), without the tokens that `top_k` and then `top_p` leave out, as
    vLLM's own sampler leaves them out."""
    if 0 < top_k < row.numel():
        row = row.masked_fill(row < row.topk(top_k).values[-1], float("-inf"))
    if top_p < 1.0:
        ordered, order = row.sort()
        out = ordered.softmax(-1).cumsum(-1) <= 1.0 - top_p
        out[-1] = False
        row = row.masked_fill(torch.zeros_like(out).scatter(0, order, out), float("-inf"))
    return row


def chosen(rows: torch.Tensor, codes: Sequence[ArithmeticCode]) -> torch.Tensor:
    """Return the token of each row, shape (lines,), for logits of shape (lines, vocabulary) in double precision, and
    take it off the codes."""
    sums = rows.softmax(-1).cumsum(-1).cummax(-1).values  # a parallel sum may fall by a rounding error
    sizes = torch.tensor([[float(code.range)] for code in codes], dtype=torch.float64, device=rows.device)
    values = torch.tensor([[float(code.value)] for code in codes], dtype=torch.float64, device=rows.device)
    thresholds = (sums / sums[:, -1:] * sizes).floor()
    tokens = torch.searchsorted(thresholds, values, right=True)
    high = thresholds.gather(1, tokens)
    low = torch.where(tokens > 0, thresholds.gather(1, (tokens - 1).clamp(min=0)), 0.0)
    for code, below, above in zip(codes, low[:, 0].tolist(), high[:, 0].tolist(), strict=True):
        code.take(int(below), int(above))
    return tokens[:, 0]
