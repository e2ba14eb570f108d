"""What makes a machine run: the only package with a clock and a loop. It decides nothing about how a run goes."""
