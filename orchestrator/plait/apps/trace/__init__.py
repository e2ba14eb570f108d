"""A run read back from its journal, and the formats that `plait runs view` writes it in."""
