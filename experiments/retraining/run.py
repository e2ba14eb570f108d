"""Does the committed command make a model as good as the shipped one?

Trains the bundled model again and compares the two. The options are those of `python -m training reproduce`.
"""

import sys

from training.__main__ import main as training

__all__ = ["main"]


def main() -> None:
    """Train, and compare."""
    training(["reproduce", *sys.argv[1:]])
