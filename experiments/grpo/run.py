"""Do records of rollouts train? GRPO on five-number Countdown by threads.

The commands are those of `python -m training.grpo`: `start`, `train`, `evaluate`.
"""

from training.grpo.__main__ import main

__all__ = ["main"]
