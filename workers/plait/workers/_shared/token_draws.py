"""What a worker says of how it drew the tokens of an answer (`TokenDraws`), from the settings that it really used."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.result import TokenDraws
from plait.core.sampling import Sampling

__all__ = ["token_draws"]


def token_draws(
    sampling: Sampling,
    logprobs: Sequence[float],
    end: tuple[int, float] | None = None,
    processed: bool = False,
    form: str = "",
) -> TokenDraws:
    """Return the record of tokens that were drawn with these settings. `form`: that of calls, which no setting names.

    Log-probabilities above 0, which rounding makes, become 0.
    """
    return TokenDraws(
        logprobs=tuple(min(0.0, logprob) for logprob in logprobs),
        end=None if end is None else (end[0], min(0.0, end[1])),
        processed=processed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        form=form if sampling.structured is None else sampling.structured.kind,
        others=sampling.others,
    )
