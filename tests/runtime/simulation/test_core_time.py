"""The clock of the benchmarks of calibration: seconds of a core at its full speed that others did not have."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from experiments._tools.core_time import CoreTime


def test_a_slow_second_and_one_that_others_had_count_less() -> None:
    loops = [1e-4] * 100 + [2e-4] * 100 + [1e-4] * 100
    seen = [(i / 100, loop, max(0.0, (i - 200) / 100) / 4) for i, loop in enumerate(loops)]
    clock = CoreTime(seen, full=1e-4)
    for begin, seconds in ((0.2, 0.5), (1.2, 0.25), (2.3, 0.375)):
        assert clock(begin + 0.5) - clock(begin) == pytest.approx(seconds, rel=0.05)
    assert CoreTime([each[:2] for each in seen], full=1e-4)(2.8) == pytest.approx(2.3, rel=0.05), "older records"
