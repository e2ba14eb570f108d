"""Old names work for one minor version, with a warning that says what to write."""

from __future__ import annotations

from typing import Any

import pytest

import plait
import plait.core
from plait.core.renamed import renamed_classes

CLASSES = renamed_classes()
PUBLIC = [(module, old, new) for module in (plait, plait.core)
          for old, new in CLASSES.items() if new in module.__all__]  # fmt: skip


@pytest.mark.parametrize(("module", "old", "new"), PUBLIC, ids=[f"{m.__name__}.{old}" for m, old, _ in PUBLIC])
def test_an_old_class_is_the_new_one(module: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{module.__name__}\.{old} is deprecated.*{module.__name__}\.{new}"):
        assert getattr(module, old) is getattr(module, new)


def test_every_old_class_has_a_new_one() -> None:
    assert {new for _, _, new in PUBLIC} == set(CLASSES.values())
    assert not {old for old in CLASSES if old in plait.__all__ + plait.core.__all__}


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Thinker"):
        _ = plait.Thinker  # pyright: ignore[reportAttributeAccessIssue]
