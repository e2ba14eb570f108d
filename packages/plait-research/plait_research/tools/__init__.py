"""Tools that measure texts by a model: import one in a tools file, and give that as `--tools FILE.py`."""
