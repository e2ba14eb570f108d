"""The task `code`: which part of a text is the program."""

from __future__ import annotations

import json

import pytest

from plait.tasks.code import Code

DEFINED = "def double(x):\n    return 2 * x"
TASK = Code(text=json.dumps({"prompt": "Double it.", "entry": "double"}))


@pytest.mark.parametrize(
    "text",
    [
        DEFINED,
        f"So:\n```python\n{DEFINED}\n```",
        f"```Python\n{DEFINED}\n```",
        f"```python3\n{DEFINED}\n```",
        f"```py\n{DEFINED}\n```",
        f"```\n{DEFINED}\n```",
        f"```python\n{DEFINED}\n```\nUse it so:\n```python\nprint(double(3))\n```\nwhich prints\n```\n6\n```",
        f"```python\ndef double(x):\n    return x\n```\nno:\n```python\n{DEFINED}\n```",
    ],
)
def test_the_program_is_the_last_block_that_defines_the_function(text: str) -> None:
    assert TASK.extract(text) == DEFINED


@pytest.mark.parametrize("text", ["", "words", "```python\nprint(double(3))\n```", "```python\npython_double = 3\n```"])
def test_a_text_that_does_not_define_it_has_no_program(text: str) -> None:
    assert TASK.extract(text) is None
