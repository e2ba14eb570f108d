"""The loop: events to the machine, its actions to the workers and planners."""
