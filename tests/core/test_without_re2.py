"""plait where RE2 has no wheel: all works but expressions that are data, which are refused with the remedy."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["re2"] = None
from plait import Orchestrator, Request
from plait.core.json_schema import check_schema
from plait.workers.scripted import Reply, Scripted
with Orchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as orchestrator:
    print(orchestrator.run("2 + 2?", planner="sample:n=3").answer)
    print(orchestrator.run("2 + 2?", output={"type": "integer"}, planner="single").status)
    try:
        orchestrator.run("2 + 2?", task="plain:where=regex,pattern=x+")
    except Exception as error:
        print(type(error).__name__, error)
try:
    check_schema({"type": "string", "pattern": "a+"})
except ValueError as error:
    print(error)
"""


def test_plait_works_without_re2_but_for_expressions_that_are_data() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer, status, task, schema = done.stdout.splitlines()
    assert (answer, status) == ("4", "failed"), "the second answer is no integer"
    for refusal in (task, schema):
        assert "needs RE2: pip install 'plait[regex]'" in refusal
