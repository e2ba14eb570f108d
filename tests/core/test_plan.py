"""What a plan's parts take."""

from __future__ import annotations

import pytest

from plait import ModelCall, Ref
from plait.core.errors import FieldError
from plait.core.ops import Text


def test_a_prompt_takes_strings_among_other_pieces() -> None:
    pieces = (Text(text="How warm is "), Ref(step="city"), Text(text="?"))
    assert ModelCall(prompt=("How warm is ", Ref(step="city"), "?")).prompt == pieces
    assert ModelCall.model_validate({"prompt": ["a", {"kind": "ref", "step": "b"}]}).prompt == (
        Text(text="a"),
        Ref(step="b"),
    )
    assert ModelCall(prompt="a").prompt == (Text(text="a"),)


def test_a_wrong_field_is_refused_in_words() -> None:
    with pytest.raises(FieldError, match=r"ModelCall: `promt` is not known here; did you mean 'prompt'\?"):
        ModelCall(promt="a")  # pyright: ignore[reportCallIssue]
    with pytest.raises(FieldError, match=r"`prompt.* \(got 3\)"):
        ModelCall(prompt=(3,))  # pyright: ignore[reportArgumentType]
