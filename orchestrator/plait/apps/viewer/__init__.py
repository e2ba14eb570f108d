"""`plait runs view`: one HTML file with the pictures of a run."""
