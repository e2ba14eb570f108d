"""What the machine learns of a worker's speed."""

from __future__ import annotations

import pytest

from plait.machine.run_statistics import DecodeSpeed, EndedSteps, template_keys
from tests.machine.kit import think


def test_the_time_of_a_token_is_a_line_in_the_attempts_beside_it() -> None:
    speed = DecodeSpeed()
    assert speed.seconds_per_token(1) is None
    speed.add(1.0, 1.0, 4)
    assert speed.seconds_per_token(1) is None, "so few tokens say more of the prompt"
    for _ in range(20):
        for beside in (2.0, 30.0):
            speed.add(beside, (0.01 + 0.001 * beside) * 100, 100)
    assert speed.seconds_per_token(2) == pytest.approx(0.012, rel=0.03)
    assert speed.seconds_per_token(30) == pytest.approx(0.04, rel=0.03)
    assert speed.seconds_per_token(16) == pytest.approx(0.026, rel=0.03)


@pytest.mark.parametrize(("known", "reserved"), [(0, 31), (200, 1), (20, 11)])
def test_before_any_end_a_share_of_the_limit_is_reserved_less_what_is_there(known: int, reserved: int) -> None:
    """`most` is what is left: a thousand tokens in all, of which some are there."""
    keys = template_keys(think("a", tokens=1000), "sample")
    assert EndedSteps().reserved(keys, 1000 - known, known) == reserved
