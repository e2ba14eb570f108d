"""`plait batch`: every row of a file."""
