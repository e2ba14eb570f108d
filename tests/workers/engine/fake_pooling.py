"""Speaks as the process of a pooling engine does. What it does with a text stands in the text."""

from __future__ import annotations

import json
import os
import sys


def say(**told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


options = json.loads(sys.argv[1])
if options["model"] == "no-model":
    say(broken="there is no model at no-model: give a folder")
    sys.exit()
say(ready=True)
for line in sys.stdin:
    order = json.loads(line)
    text = order["text"]
    if text == "die":
        os._exit(9)
    if text == "never":
        continue
    if text == "long":
        say(id=order["id"], error="too long")
    else:
        say(id=order["id"], data=[float(len(text))], tokens=len(text), cached=1)
