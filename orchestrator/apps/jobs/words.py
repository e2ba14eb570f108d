"""The words of a command that is to run as a job."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import UsageError
from ..main import check_words

__all__ = ["job_words"]


def job_words(given: Sequence[str], verb: str, example: str) -> list[str]:
    """Return the words of a command that can be a job; `verb` and `example` are what messages tell to do.

    Raises `UsageError` where there are no words, where the command asks for a terminal or for jobs itself, and where
    plait would refuse it.
    """
    words = list(given)
    if not words:
        raise UsageError(f"there is no command to {verb}: {example}")
    if words[0] in ("job", "repl"):
        raise UsageError(f"`plait {words[0]}` is no job: {verb} run, eval or batch")
    check_words(words)
    return words
