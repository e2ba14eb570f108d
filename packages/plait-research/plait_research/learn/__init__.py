"""Learning from runs: strategies, numbers and prompt texts, each change accepted by a test only."""
