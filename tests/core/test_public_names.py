"""Packages offer their public names alone."""

from __future__ import annotations

from typing import Any

import pytest

import plait
import plait.core


@pytest.mark.parametrize("module", [plait, plait.core], ids=lambda module: module.__name__)
def test_another_name_raises_an_attribute_error(module: Any) -> None:
    with pytest.raises(AttributeError, match="Thinker"):
        _ = module.Thinker
