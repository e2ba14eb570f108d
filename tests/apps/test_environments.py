"""`plait eval` of answers that have to be run: programs by hidden cases, commands by the state that they leave."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Plait

CASES = [{"args": [1, 2], "want": 2}, {"args": [5, 3], "want": 5}]
TEXT = json.dumps({"prompt": "The larger.", "entry": "larger", "public": []})


def test_eval_grades_programs_in_the_sandbox(plait: Plait, tmp_path: Path) -> None:
    problems, script = tmp_path / "p.jsonl", tmp_path / "s.json"
    problems.write_text(json.dumps({"text": TEXT, "want": CASES}) + "\n")
    program = "```python\ndef larger(a, b):\n    return a if a > b else b\n```"
    script.write_text(json.dumps({"replies": [{"text": program}]}))
    words = ["eval", str(problems), "--task", "code", "--worker", "scripted", "--script", str(script)]
    done = plait(*words, "--planner", "sample:n=1", "--environment", "code:sandbox=process", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["solved"] == 1


def test_eval_draws_bash_sql_problems(plait: Plait, tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"replies": [{"text": "done"}]}))
    words = ["eval", "bash-sql", "--limit", "2", "--worker", "scripted", "--script", str(script), "--planner", "react"]
    done = plait(*words, "--environment", "bash-sql:sandbox=process", "--json")
    assert done.code == 0, done.err
    assert (json.loads(done.out)["n"], json.loads(done.out)["solved"]) == (2, 0)
