"""A word that is misspelt is refused with the one that was meant, wherever a word is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps.repl.registry import COMMANDS

Plait = Callable[..., Any]
SCRIPT = "--script s.json"
FILES = {
    "s.json": json.dumps({"replies": [{"text": "yes"}]}),
    "field.json": json.dumps({"replies": [{"txt": "yes"}]}),
    "tools.py": 'from plait import tool\n\n@tool\ndef area(n: int) -> int:\n    """Square."""\n    return n * n\n',
    "my_own.py": "from plait import Flow\n\nclass Twice(Flow):\n    async def run(self, ctx, q):\n        return q\n",
    "rows.jsonl": '{"question": "a", "answer": "b", "planer": "single"}\n',
    "rows.csv": "question,answer\na,b\n",
    "key.toml": 'planer = "single"\n',
    "value.toml": 'log_level = "debgu"\n',
    "table.toml": "[serve]\nprot = 1\n",
    "tenant.toml": '[[serve.tenants]]\nname = "ann"\nkyes = []\n',
    "name.toml": '[[serve.tenants]]\nnmae = "ann"\n',
    "limit.toml": "[budget]\ntokns = 1\n",
    "price.toml": "[prices.default]\ninputt = 1\n",
}


def step(name: str = "one", **op: Any) -> dict[str, Any]:
    return {"name": name, "op": {"kind": "think", "prompt": "x", **op}}


CALL = {"kind": "call", "tool": "area", "args": {"n": 1}}
PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "need": ({"steps": [step(), {**step("two"), "needs": ["onne"]}], "output": "two"}, "one"),
    "output": ({"steps": [step()], "output": "onne"}, "one"),
    "kind": ({"steps": [step(kind="thnk")], "output": "one"}, "think"),
    "field": ({"steps": [step(promt="x")], "output": "one"}, "prompt"),
    "tool": ({"steps": [{"name": "one", "op": {**CALL, "tool": "aera"}}], "output": "one"}, "area"),
}
LINES = {
    # command lines
    "rnu x": "run", "runs shwo": "show", "learn efort": "effort",
    "doctor --quik": "--quick", "model dwon": "down", "job submit -- evl x": "eval", "new planer x": "planner",
    "run q --plannr single": "--planner", f"run q --set thinking=onn {SCRIPT}": "on", "plugins planer": "planner",
    "runs list --status don": "done", "runs export --format txt": "text", "runs view --format jsn": "json",
    "runs export --out x --select by=critcal": "critical", "model get smolm2": "smollm2",
    f"batch rows.jsonl --out o.jsonl --order prefx {SCRIPT}": "prefix",
    f"learn rollouts rows.jsonl --out o.jsonl --collect reward=verifed {SCRIPT}": "verified",
    # plugins, their options and their values
    f"run q --planner smaple {SCRIPT}": "sample", f"run q --policy consensu {SCRIPT}": "consensus",
    f"run q --planner sample --merge best-off {SCRIPT}": "best-of", f"run q --task countdwn {SCRIPT}": "countdown",
    "run q --worker scriptd": "scripted", "run q --model countdwon --worker engine": "countdown",
    f"run q --planner threads:dialect=threadweavr {SCRIPT}": "threadweaver",
    f"run q --planner tree:search=beem {SCRIPT}": "beam", f"run q --planner tree:scorer=judg {SCRIPT}": "judge",
    f"run q --planner sample:meger=best-of {SCRIPT}": "merge",
    f"plan q --planner sample:merge=majorit {SCRIPT}": "majority",
    f"run q --planner sample:answer.tempreture=0.5 {SCRIPT}": "temperature",
    f"run q --planner sample:style=derect {SCRIPT}": "direct", f"run q --planner sample:early=ture {SCRIPT}": "true",
    f"run q --planner sample:answer.thinking=onn {SCRIPT}": "on", f"run q --task plain:equal=nubmer {SCRIPT}": "number",
    f"run q --planner sample:merge=alike:groupd=x {SCRIPT}": "grouped",
    f"eval code --environment cod:sandbox=process {SCRIPT}": "code",
    f"eval code --environment code:sandbx=process {SCRIPT}": "sandbox",
    # settings
    f"run q --set budget=tokns=5 {SCRIPT}": "tokens", f"run q --config key.toml {SCRIPT}": "planner",
    f"run q --config value.toml {SCRIPT}": "debug", f"serve --config table.toml {SCRIPT}": "port",
    f"serve --config tenant.toml {SCRIPT}": "keys",
    f"serve --config name.toml {SCRIPT}": "name", f"run q --config limit.toml {SCRIPT}": "tokens",
    f"run q --config price.toml {SCRIPT}": "input",
    # files, and names and columns in them
    "run q --script ss.json": "s.json", "run q --script field.json": "text",
    f"run q --tools tols.py {SCRIPT}": "tools.py",
    f"run q --planner my_onw.py:Twice {SCRIPT}": "my_own.py", f"run q --planner my_own.py:Twcie {SCRIPT}": "Twice",
    f"run q --config kee.toml {SCRIPT}": "key.toml", f"eval row.jsonl --quick {SCRIPT}": "rows.jsonl",
    f"batch row.jsonl --out o.jsonl {SCRIPT}": "rows.jsonl", f"eval row.csv --task plain {SCRIPT}": "rows.csv",
    f"eval row.jsonl {SCRIPT}": "rows.jsonl", f"eval rows.csv --quick --text qestion {SCRIPT}": "question",
    f"batch rows.jsonl --out o.jsonl --text qestion {SCRIPT}": "question",
    f"batch rows.csv --out o.jsonl --text qestion {SCRIPT}": "question",
    f"batch rows.jsonl --out o.jsonl --text question {SCRIPT}": "planner",
    f"eval rows.jsonl --task plain --text qestion {SCRIPT}": "question",
    f"eval rows.jsonl --task plain --text question --want anwser {SCRIPT}": "answer",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_says_what_was_meant(line: str, plait: Plait) -> None:
    done = plait(*line.split())
    told = " ".join(done.err.split())
    assert done.code in (1, 2) or "warning" in told
    _, asked, meant = told.lower().partition("did you mean ")
    assert asked and f"'{LINES[line].lower()}'" in meant, told


@pytest.mark.parametrize("place", PLANS)
def test_a_plan_says_what_was_meant(place: str, plait: Plait) -> None:
    plan, meant = PLANS[place]
    Path("plan.json").write_text(json.dumps(plan))
    done = plait("run", "--plan", "plan.json", "--tools", "tools.py", "--script", "s.json")
    assert done.code and f"did you mean '{meant}'" in done.err, done.err


def test_a_variable_says_what_was_meant(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_PLANER", "single")
    assert "did you mean PLAIT_PLANNER?" in plait("run", "q", "--script", "s.json").err


TALK = {
    "/plannr single": "planner", "/talk onn": "on", "/planner smaple": "sample", "/policy -consensu": "consensus",
    "/budget tokns=4": "tokens", "/model base_ul=x": "base_url", "/why thikn": "think", "/merge majorit": "majority",
}  # fmt: skip


@pytest.mark.parametrize("line", TALK)
def test_the_repl_says_what_was_meant(line: str, process: Any) -> None:
    running = process("repl", "--script", "s.json", "--policy", "consensus", stdin=-1)
    out, err = running.communicate(f"Why?\n{line}\n/quit\n", timeout=120)
    assert f"did you mean '{TALK[line]}'" in out + err, out + err


def test_every_command_of_the_repl_that_takes_a_name_is_tried() -> None:
    named = {
        name for name, entry in COMMANDS.items() if entry.takes in ("planner", "policy", "merge", "model", "budget")
    }
    assert named <= {line[1:].split()[0].replace("plannr", "planner") for line in TALK}
