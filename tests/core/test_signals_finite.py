"""`Signals` are finite: one NaN among them would decide a vote."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plait.core.errors import FieldError
from plait.core.result import Signals

NAMES = ("confidence", "tail", "bottom", "lowest", "entropy", "certainty")
GIVEN: dict[str, Any] = {"k": 2, **dict.fromkeys(NAMES, 1.0)}


@pytest.mark.parametrize("field", NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(field: str, value: float) -> None:
    assert Signals(**GIVEN).certainty == 1.0
    with pytest.raises(FieldError, match=field):
        Signals(**{**GIVEN, field: value})
