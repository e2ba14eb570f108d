"""`plait job`: commands as jobs of a Ray cluster."""
