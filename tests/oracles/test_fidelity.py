"""What plugins say of their fidelity: every published method says it, and every oracle that is named is there."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from plait.apps.commands.plugins import fidelities, not_built, plugins as names
from plait.runtime.plugins.loader import Plugins
from tests.oracles.harness import FOLDER, oracles

KINDS = ("planner", "policy", "merge", "search", "scorer", "environment")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_that_names_a_paper_says_how_near_it_is(kind: str) -> None:
    plugins = Plugins()
    said = {row["name"]: row for row in fidelities(plugins, kind)}
    for name in plugins.listed(kind):  # type: ignore[arg-type]
        doc = inspect.getdoc(plugins.class_of(kind, name)) or ""  # type: ignore[arg-type]
        assert name in said or "arXiv" not in doc, (
            f"the docstring of {name} cites a paper and its class has no `fidelity`"
        )
        assert name not in said or said[name]["paper"] in doc, f"{name}: the docstring does not cite its paper"
    assert all(row["differs"] or row["fidelity"] != "variant" for row in said.values())


def test_the_oracles_that_are_named_are_there_and_all_are_named() -> None:
    plugins = Plugins()
    named = {oracle for kind in KINDS for row in fidelities(plugins, kind) for oracle in row["oracles"]}
    there = {path.stem for path in FOLDER.glob("*.jsonl")}
    assert named <= there
    assert there - named == {"verl-grpo", "trl-grpo", "trl-logprobs", "trl-records", "verl-records"}, (
        "these are not of plugins but of the forms of records"
    )


def test_an_exact_method_is_held_through_what_a_user_names() -> None:
    plugins, facts = Plugins(), oracles()
    rows = [row for kind in KINDS for row in fidelities(plugins, kind)]
    exact = {
        row["name"]: {facts[each].through for each in row["oracles"]} for row in rows if row["fidelity"] == "exact"
    }
    assert exact.keys() == {"adaptive-consistency", "esc", "deepconf"}
    assert all("policy" in through for through in exact.values()), exact
    assert all(each.through in ("", "command", *KINDS) for each in facts.values())
    assert not any(row["oracles"] for row in rows if row["fidelity"] in ("formula", "idea"))


def test_names_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    names(kind=None, verbose=False, as_json=True)
    method = json.loads(capsys.readouterr().out)["policies"]["esc"]["method"]
    assert method == {"fidelity": "exact", "differs": "", "oracles": ["esc"], "paper": "2401.10480"}
    names(kind="policies", verbose=True, as_json=False)
    assert re.search(r"exact +esc\b", capsys.readouterr().out)


def test_papers_that_are_not_built_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    names(kind=None, verbose=True, as_json=False)
    shown = capsys.readouterr().out
    for row in not_built():
        assert re.fullmatch(r"\d{4}\.\d{5}", row["paper"])
        assert f"arXiv {row['paper']}  {row['name']}: {row['instead']}" in shown
    assert {"OptoPrime (Trace)", "Duo-LLM", "Complex-Edit", "MultiCodeIF", "Self-MoA"} <= {
        row["name"] for row in not_built()
    }
