"""What is read of a program's output: its own words among ours change nothing."""

from __future__ import annotations

import pytest

from plait.core.programs import read_outputs


@pytest.fixture
def mark() -> str:
    """What stands before a cell, as `harness` writes it for the key `key`."""
    import plait.core.programs as programs

    return f"{programs._MARK}key "


def test_a_line_that_only_begins_like_a_result_is_passed_over(mark: str) -> None:
    lines = [f'{mark}["value", 1]', f"{mark}[", f"{mark}3", f'words {mark}["error", "no"]']
    assert read_outputs({"stdout": "\n".join(lines)}, 3, "key") == [("value", 1), ("error", "no"), ("none", None)]


def test_a_program_that_cannot_be_read_is_broken_for_all_inputs(mark: str) -> None:
    assert read_outputs({"stdout": f'{mark}["broken", "SyntaxError"]'}, 2, "key") == [("broken", "SyntaxError")] * 2
    assert read_outputs(None, 1, "key") == [("none", None)]
