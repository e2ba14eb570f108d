"""A name that is not public is no attribute of the package."""

from __future__ import annotations

from typing import Any

import pytest

import plait
import plait.core


@pytest.mark.parametrize("module", [plait, plait.core], ids=lambda module: module.__name__)
def test_a_name_that_is_not_public_is_no_attribute(module: Any) -> None:
    with pytest.raises(AttributeError, match="Thinker"):
        _ = module.Thinker
