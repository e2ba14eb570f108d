"""Old names work for one minor version, with a warning that says what to write."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plait
import plait.core
import plait.planning
from plait.core.errors import FieldError
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan
from plait.core.planning import pass_through
from plait.core.renamed import current, tables
from plait.core.request import Request
from plait.planners.votes.sample import Adaptive
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins
from plait_server.settings import Tenant

CLASSES, WORDS = tables().classes, tables().words
PUBLIC = [(module, old, new) for module in (plait, plait.core)
          for old, new in CLASSES.items() if new in module.__all__]  # fmt: skip


@pytest.mark.parametrize(("module", "old", "new"), PUBLIC, ids=[f"{m.__name__}.{old}" for m, old, _ in PUBLIC])
def test_an_old_class_is_the_new_one(module: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{module.__name__}\.{old} is deprecated.*{module.__name__}\.{new}"):
        assert getattr(module, old) is getattr(module, new)


def test_every_old_class_has_a_new_one() -> None:
    assert {new for _, _, new in PUBLIC} == set(CLASSES.values())
    assert not {old for old in CLASSES if old in plait.__all__ + plait.core.__all__}


def test_a_name_that_never_was_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Thinker"):
        _ = plait.Thinker  # pyright: ignore[reportAttributeAccessIssue]


MADE: dict[str, tuple[Callable[[], Any], str, object]] = {
    "an option in Python": (lambda: Adaptive(most=7), "max_branches", 7),  # type: ignore[call-arg]
    "an option by name": (lambda: Plugins().planner(Plugin.of("adaptive:most=7")), "max_branches", 7),
    "one of two meanings": (lambda: Plugins().planner(Plugin.of("react:shown=7")), "max_tools", 7),
    "the other meaning": (lambda: Plugins().planner(Plugin.of("debate:shown=7")), "max_prompt_items", 7),
    "a setting": (lambda: Config(whole=9), "stream_above_tokens", 9),
    "a field of a request": (lambda: Request.of({"text": "q", "share": "s"}), "fairness_group", "s"),
    "a request's, in Python": (lambda: Request(text="q", weight=2.0), "fairness_weight", 2.0),  # type: ignore[call-arg]
    "a request that is changed": (lambda: Request(text="q").updated({"bound": 5}), "default_token_limit", 5),
    "a join's": (lambda: Join(tolerate="any-end"), "on_failure", "any-end"),  # type: ignore[call-arg]
    "a tenant's": (lambda: Tenant.model_validate({"name": "a", "weight": 3.0}), "fairness_weight", 3.0),
    "a parameter": (lambda: pass_through("a", "b", tolerate=True).op, "on_failure", "any-end"),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("how", MADE)
def test_an_old_word_sets_the_new_one(how: str) -> None:
    make, new, value = MADE[how]
    with pytest.warns(DeprecationWarning, match="deprecated"):
        made = make()
    assert getattr(made, new) == value


def test_settings_of_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plait.toml"
    file.write_text('on-unknown = "ask"\n')
    monkeypatch.setenv("PLAIT_BOUND", "77")
    with pytest.warns(DeprecationWarning, match="on_uncertain_side_effect|default_token_limit"):
        config = Config.load(file)
    assert (config.on_uncertain_side_effect, config.default_token_limit) == ("ask", 77)


def test_recorded_plans_and_requests_are_read_in_silence() -> None:
    step = {"name": "j", "op": {"kind": "join", "tolerate": "any-end"}}
    request = {"text": "q", "share": "s", "weight": 2.0, "bound": 9}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op = Plan.model_validate_json(json.dumps({"steps": [step], "output": "j"})).steps[0].op
        read = Request.model_validate(request)
    assert isinstance(op, Join) and op.on_failure == "any-end"
    assert (read.fairness_group, read.fairness_weight, read.default_token_limit) == ("s", 2.0, 9)


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(FieldError, match="share"):
        Request(text="q", share="a", fairness_group="b")  # type: ignore[call-arg]


def test_a_word_that_is_still_there_keeps_its_meaning() -> None:
    assert current({"by": 1, "most": 2}, {"by"}, "x") == {"by": 1, "most": 2}
    assert all(word not in news for word, news in WORDS.items())
