"""`plait runs view`: a run as a page with its pictures, or in other people's formats."""
