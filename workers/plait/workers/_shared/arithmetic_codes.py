"""Arithmetic sampling: how a request says the code of its line, and the code itself, from which tokens are taken."""

from __future__ import annotations

import hashlib

CODE = "arithmetic_code"
"""Where a request to vLLM says its code (`Sampling.arithmetic`), among the extra arguments."""
PROCESSOR = "plait.workers.engine.arithmetic:Arithmetic"
"""The logits processor that samples by codes, as vLLM's import path."""
BITS = 53
"""Of a code: whole numbers up to 2^53 are exact as doubles, in which thresholds are computed."""
_FRESH = 16
_LEAST = 1 << (BITS - _FRESH)


class ArithmeticCode:
    """A whole number `value`, uniform in 0 … `range` - 1, as in an arithmetic decoder.

    Of the thresholds floor(F(v) * range) of a distribution F the one that holds `value` names the token. What the token
    left undecided is the code of the next one: `value` and `range` less the threshold below. When less than 37 bits are
    left, 16 fresh ones follow, from a hash of `key`, position and number, so a token's probability is off by 2^-37 at
    most.
    """

    def __init__(self, start: float, key: int | float = 0, position: int = 0) -> None:
        """`start`: the code as a fraction in [0, 1), cut to 48 bits. `position`: that of the next token."""
        self.key, self.position = key, position
        known = BITS - 5  # a fraction that was put together of others has zeros in its last bits
        self.value = int(start * (1 << known)) << 5 | self._fresh(position, 0, 5)
        self.range = 1 << BITS
        self._next: tuple[int, int] | None = None

    def at(self, position: int) -> ArithmeticCode:
        """Return the code of the token at a position: this one, or the one after it once `take` has split it. At any
        other position, as after a preemption, it is a new one, made of `key` and position."""
        if position == self.position + 1 and self._next is not None:
            (self.value, self.range), self._next = self._next, None
            self.position = position
        elif position != self.position:
            return ArithmeticCode(self._fresh(position, -1, 48) / (1 << 48), self.key, position)
        return self

    def take(self, low: int, high: int) -> None:
        """Note the thresholds below and above the value: what is left of the code then follows. May be said again of
        one position, as for a token that was drawn and not kept."""
        value, size, number = self.value - low, high - low, 0
        while size < _LEAST:
            number += 1
            value = value << _FRESH | self._fresh(self.position, number, _FRESH)
            size <<= _FRESH
        self._next = (value, size)

    def _fresh(self, position: int, number: int, bits: int) -> int:
        text = f"{self.key}/{position}/{number}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> (64 - bits)


def is_code(value: object) -> bool:
    """Whether a value is the code of a line."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
