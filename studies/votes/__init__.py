"""The study of votes."""
