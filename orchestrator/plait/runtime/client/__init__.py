"""The SDK: clients, settings, handles of runs, answers."""
