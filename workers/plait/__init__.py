"""Marks this root as a part of `plait` for static tools, which merge packages only if each part has an `__init__.py`.

The package's own one is in the root `orchestrator`, which has to come first on the path; this one is in no wheel.
"""

raise ImportError("the root `orchestrator` has to come before this one on the path: see scripts/checkout.py")
