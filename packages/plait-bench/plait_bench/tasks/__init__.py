"""Tasks with known answers."""
