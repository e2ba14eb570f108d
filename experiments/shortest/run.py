"""Is a model cheaper after training on its own shortest verified threads?

The commands are those of `python -m training.shortest`: `problems`, `train`, `evaluate`.
"""

from training.shortest import main

__all__ = ["main"]
