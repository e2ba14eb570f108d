"""Stop rule `sprt`: a sequential probability ratio test of whether the first answer beats the second."""

from __future__ import annotations

import math

from pydantic import Field, ValidationInfo, field_validator

from plait.core.declarations import Fidelity

from .._stopping import Poll, StopRule

__all__ = ["SPRT"]


class SPRT(StopRule):
    """Wald's sequential probability ratio test, as ConSol uses it (arXiv 2503.17587).

    Among the a votes for the first answer and the b votes for the second, the share of the first is 1/2 (no winner) or
    `share`. The vote ends when a ln(2 share) + b ln(2 - 2 share) reaches ln((1 - beta) / alpha).

    Differs from the authors' code (`consol`): that no answer wins is never concluded, as the full vote then still has a
    verdict. Branches count in the order in which they end. `share` is ours; with it 6 votes to none end the vote, or 8
    to 1. Their released settings, `share=0.5001,beta=0.949976`, come to a lead of three votes, and so does their
    mixture test (a prior Beta(10^6, 10^6) cut at 1/2).
    """

    fidelity = Fidelity("variant", "that no answer wins is never concluded", paper="2503.17587")

    share: float = Field(default=0.9, gt=0.5, lt=1.0, description="Share of the first answer, of the two, if it wins.")
    alpha: float = Field(default=0.05, gt=0.0, lt=0.5, description="Chance of a false winner.")
    beta: float = Field(
        default=0.05, gt=0.0, lt=1.0, description="Chance of missing one; alpha and beta together are less than 1."
    )

    @field_validator("beta")
    @classmethod
    def _test(cls, beta: float, info: ValidationInfo) -> float:
        alpha = info.data.get("alpha", 0.0)
        if alpha + beta >= 1.0:
            raise ValueError(f"{beta} and alpha {alpha} come to 1 or more, and test nothing: make one of them smaller")
        return beta

    def enough(self, poll: Poll) -> str | None:
        """Return the test's figure, once it is high enough."""
        first, second = poll.lead()
        ratio = first * math.log(2 * self.share) + second * math.log(2 - 2 * self.share)
        least = math.log((1 - self.beta) / self.alpha)
        return f"{first} to {second} votes, log-likelihood ratio {ratio:.4g}" if ratio >= least else None
