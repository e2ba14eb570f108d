"""Other people's clients, each against an upstream and against `plait serve` before it.

make conformance                     # in an environment of its own: build/conformance
python -m tests.conformance [--python PYTHON] [--upstream URL] [--only CLIENT …] [--write]
"""
