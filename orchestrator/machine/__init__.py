"""The machine: events in, actions out. Private: the runtime uses `Machine` and the read-only views."""
