"""Reinforcement learning on rollout records: GRPO for five-number Countdown by threads, in plain torch."""
