"""Other frameworks over plait serve."""
