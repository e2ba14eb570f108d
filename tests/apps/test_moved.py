"""Old command lines are rewritten into present ones, with a warning."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.apps import moved
from plait.apps.main import build, check_words
from plait.core.renamed import REMOVED_IN
from plait.runtime.client.config import Config

Plait = Callable[..., Any]
LINES = {
    "names planners": "plugins planners",
    "try mine.csv --rows 5": "eval --quick mine.csv --limit 5",
    "eval compare a.jsonl b.jsonl --plot p.png": "eval a.jsonl b.jsonl --plot p.png",
    "eval countdown --count 9 --answers o.jsonl": "eval countdown --limit 9 --out o.jsonl",
    "eval countdown --count=9": "eval countdown --limit=9",
    "eval plain --problems q.jsonl --text question": "eval q.jsonl --task plain --text question",
    "eval plain:equal=number --problems=q.csv": "eval q.csv --task plain:equal=number",
    "batch i.jsonl --out o.jsonl --engine ray-data": "batch i.jsonl --out o.jsonl --actors 1",
    "batch i.jsonl --out o.jsonl --engine ray-data --actors 4": "batch i.jsonl --out o.jsonl --actors 4",
    "batch i.jsonl --out o.jsonl --engine here": "batch i.jsonl --out o.jsonl",
    "demo --puzzles 2": "demo --limit 2",
    "new planner mine --in folder": "new planner mine --out folder",
    "plan q --mermaid": "plan q --format=mermaid",
    "plan --plan-text p.txt --dot": "plan --plan p.txt --format=dot",
    "doctor versions --json": "doctor --quick --json",
    "doctor --versions": "doctor --quick",
    "plugins planner --options": "plugins planner --verbose",
    "run q --explain": "run q --verbose",
    "trace abcd": "runs view --format=chrome abcd",
    "ctl show abcd": "runs show abcd",
    "ctl list --json": "runs list --live --json",
    "tune q": "simulate tune q",
    "simulate tune q --seeds 2 --goal p50": "simulate tune q --search goal=p50,seeds=2",
    "learn rollouts p.jsonl --out o.jsonl --branches 2 --own f.py:own": "learn rollouts p.jsonl --out o.jsonl "
    "--collect branches=2,own=f.py:own",
    "job submit --working-dir d --address=u -- run x --python y": "job submit --cluster address=u,working_dir=d "
    "-- run x --python y",
    "job manifest --image i:1 --cluster workers=0 -- run x": "job manifest --cluster workers=0,image=i:1 -- run x",
    "model convert m.gguf --name mine": "model get m.gguf --name mine",
    "job submit --id a -- run x": "job submit --name a -- run x",
    "job manifest --workers 2 --gpus 1 -- run x --gpus 4": "job manifest --cluster workers=2,gpus=1 -- run x --gpus 4",
    "runs top --once --json": "runs list --live --json",
    "runs top": "runs list --live --follow",
    "runs top --every 3": "runs list --live --follow",
    "runs watch abcd --json": "runs show --follow abcd --json",
    "runs questions": "runs answer",
    "runs prune abcd child-1 --reason slow": "runs cancel abcd child-1 --reason slow",
    "runs set slots 4 --pid 77 --json": "runs set slots 4 77 --json",
    "runs limit abcd tokens 500 --json": "runs set tokens 500 abcd --json",
    "runs view j.sqlite --run abcd": "runs view abcd --from j.sqlite",
    "learn takeover plain --out o.json": "learn effort --planner takeover plain --out o.json",
    "learn diff d.json 0 1": "learn versions d.json 0 1",
    "learn undo d.json": "learn versions --undo d.json",
    "simulate tune q --replicas 1 --replicas 4 --slots 8 --rate 2": "simulate tune q --cluster 'engines=[1,4],slots=8' "
    "--load rate=2",
    "learn prompts d.json --problems p --by gepa --runs 9": "learn prompts d.json --problems p --by gepa:runs=9",
    "learn prompts d.json --problems p --rounds 2": "learn prompts d.json --problems p --by combee:rounds=2",
    "run q --stream": "run q --verbose",
    "runs trace abcd --content": "runs view --format=chrome abcd --texts",
    "runs export --out o.jsonl --cheapest 2 --verified": "runs export --out o.jsonl --select verified=true,cheapest=2",
    "runs resume abcd --anyway": "runs resume abcd --force",
    "simulate q --engines 4 --slots 8 --runs 9": "simulate q --cluster engines=4,slots=8 --load runs=9",
}
"""Old command lines, and what they are now."""


@pytest.mark.parametrize(("old", "new"), LINES.items())
def test_an_old_line_is_rewritten_with_a_warning(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert moved.current_words(shlex.split(old)) == shlex.split(new)
    said = capsys.readouterr().err
    assert f"will be removed in plait {REMOVED_IN}" in said and f"`plait {new}`" in said
    assert moved.current_words(shlex.split(new)) == shlex.split(new)
    assert capsys.readouterr().err == "", "a present line has no warning"


@pytest.mark.parametrize("line", LINES.values())
def test_what_it_is_rewritten_into_is_a_command(line: str) -> None:
    words = shlex.split(line)
    if words[0] != "job":
        check_words(words)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--engines", "4"], ["--set", "engines=4"]),
        (["--cache=on", "-v"], ["--set", "cache=on", "-v"]),
        (["--adapter", "a=x", "--adapter", "b=y"], ["--set", "adapters=a=x", "--set", "adapters=b=y"]),
        (["--otel"], ["--set", "telemetry=true"]),
        (["--no-otel"], ["--set", "telemetry=false"]),
        (["--budget", "cost=1,width=2"], ["--set", "budget=cost=1,width=2"]),
        (["--on-unknown", "retry"], ["--set", "on_uncertain_side_effect=retry"]),
        (["--dialect", "apr"], ["--planner", "threads:dialect=apr"]),
        (["--planner", "threads:n=2", "--dialect=apr"], ["--planner", "threads:n=2,dialect=apr"]),
        (["--dialect", "apr", "--planner", "threads"], ["--planner", "threads:dialect=apr"]),
        (["--gpus", "1", "--", "--engines", "4"], ["--set", "gpus=1", "--", "--engines", "4"]),
    ],
)
def test_an_old_flag_of_a_setting_is_set(old: list[str], new: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert moved.current_flags(old, {"--planner", "--set"}) == new
    assert "deprecated" in capsys.readouterr().err
    assert moved.current_flags(new, {"--planner", "--set"}) == new
    assert capsys.readouterr().err == ""


def test_a_commands_own_flag_stays() -> None:
    assert moved.current_flags(["--cache", "9"], {"--cache"}) == ["--cache", "9"]


def test_old_flags_are_settings_that_exist() -> None:
    names = {setting.partition("=")[0] for setting in moved.SETTINGS.values()}
    assert names <= set(Config.model_fields)


def test_every_old_command_leads_to_a_present_one() -> None:
    group = build()
    for new in moved.COMMANDS.values():
        first, *rest = new.split()
        assert first in group.commands, new
        inner: Any = group.commands[first]
        if rest and not rest[0].startswith("-") and hasattr(inner, "commands"):
            assert rest[0] in inner.commands, new


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("engines=0", "greater than or equal to 1"),
        ("egines=2", "there is no setting 'egines'"),
        ("engines", "has no value: write NAME=VALUE"),
        ("prices={", "is not JSON"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(given: str, says: str, plait: Plait, script: Any) -> None:
    done = plait("run", "q", "--script", script("x"), "--set", given)
    assert done.code == 2 and says in done.err, done.err


def test_a_setting_goes_before_the_file(plait: Plait, script: Any) -> None:
    Path("plait.toml").write_text("tokens = 1\n[budget]\nwidth = 9\n")
    words = ("run", "q", "--script", script("one two three"), "--planner", "sample:n=3", "--json")
    assert plait(*words).json["status"] != "done"
    done = plait(*words, "--set", "tokens=50", "--set", 'budget={"total_tokens": 900}')
    assert done.json["status"] == "done", done.err
    done = plait("run", "q", "--script", script("x"), "--set", "adapters=a=x", "--set", "adapters=b=y")
    assert "adapters are loaded by engines" in done.err, "several values are a list"
