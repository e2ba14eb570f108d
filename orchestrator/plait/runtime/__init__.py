"""The runtime of a machine: the only package with a clock and a loop. The machine makes all decisions about a run."""
