"""`plait runs trace`: a run read back from its journal, and the formats it can be written in."""
