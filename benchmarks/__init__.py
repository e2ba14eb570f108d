"""Benchmarks: each figure a ratio against a baseline that ran interleaved in the same process, with its spread."""
