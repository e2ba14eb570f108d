"""`plait runs view`: a run as a page with diagrams, or in the formats of other tools."""
