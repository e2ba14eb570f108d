"""How large plait is. The limits are today's lines: they only fall, and a pull request that needs more removes some.

Goals: 66,000 lines for plait, of these 50,000 without its applications, and 86,000 for all distributions.
"""

from __future__ import annotations

import pytest

from scripts.checkout import ROOTS, SIDE
from tests.test_architecture import ROOT, sources

MAX_PLAIT_LINES = 66_930
MAX_LIBRARY_LINES = 55_580
MAX_ALL_LINES = 97_880
APPLICATIONS = "orchestrator/plait/apps/"


def count_lines(*folders: str) -> dict[str, int]:
    """Return the number of lines of each Python file in folders."""
    return {path: (ROOT / path).read_bytes().count(b"\n") for path in sources(*folders)}


@pytest.mark.parametrize(
    ("what", "lines", "limit"),
    [
        ("plait", sum(count_lines(*ROOTS).values()), MAX_PLAIT_LINES),
        (
            "plait without its applications",
            sum(lines for path, lines in count_lines(*ROOTS).items() if not path.startswith(APPLICATIONS)),
            MAX_LIBRARY_LINES,
        ),
        ("all distributions", sum(count_lines(*ROOTS, *SIDE).values()), MAX_ALL_LINES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_lines_only_fall(what: str, lines: int, limit: int) -> None:
    assert lines <= limit, f"{what} has {lines:,} lines, more than {limit:,}: remove some, or say why in the limit"
