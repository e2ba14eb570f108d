"""Seeds for the model calls of one run, and codes for its lines of arithmetic sampling."""

from functools import lru_cache

from plait.core.planning import derive, fraction

__all__ = ["derive", "trajectory_code"]


def trajectory_code(seed: int, index: int, n: int) -> float:
    """Return the code of line `index` of `n` (from 1): `Sampling.arithmetic`, in [0, 1).

    The codes are u, u + 1/n, u + 2/n, … modulo 1 with u made of the seed (arXiv 2210.15458, which divides by n + 1 and
    so leaves a gap twice as wide as the others). The lines take them in an order whose every beginning is spread as
    well: of 8 lines 0, 4, 2, 6, 1, 5, 3, 7 eighths. Neighbours say much the same, so in the plain order the first lines
    of a vote that may end early would agree with one another and not with the rest.
    """
    return (fraction(seed, "codes") + _van_der_corput_order(n)[index - 1] / n) % 1.0


@lru_cache(maxsize=64)
def _van_der_corput_order(n: int) -> tuple[int, ...]:
    """Return 0 … n - 1 in the order of van der Corput's sequence, which turns a number's bits round."""
    bits = (n - 1).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(1 << bits))
    return tuple(place for place in turned if place < n)
