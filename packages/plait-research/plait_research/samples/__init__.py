"""Samples: what models, ours or other people's, once answered, in one form."""
