"""`CallConfig`: a user's word about one kind of call is laid over the planner's default; templates name known
fields."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import ValidationError

from plait.core.call_config import CallConfig, Uses
from plait.core.errors import FieldError
from plait.core.interfaces import Planner
from plait.core.ops import Plugin, Ref, Text
from plait.core.sampling import Generation


class Plans(Planner):
    plan: Annotated[CallConfig, Uses("question", "tools")] = CallConfig(max_tokens=1024, temperature=0.5, stop=("END",))
    rounds: int = 2


def test_an_option_changes_what_it_names_and_keeps_the_planners_defaults():
    assert Plans(plan=CallConfig(max_tokens=4000)).plan == CallConfig(max_tokens=4000, temperature=0.5, stop=("END",))
    assert Plans.model_validate({"plan": {"stop": []}}).plan.stop == ()
    assert Plans().plan.max_tokens == 1024


def test_a_planner_as_an_object_is_the_same_plugin_again():
    options = Plugin.of(Plans(plan=CallConfig(max_tokens=4000))).options
    assert Plans.model_validate(options) == Plans(plan=CallConfig(max_tokens=4000))


def test_a_template_may_name_only_the_fields_that_there_are():
    with pytest.raises(FieldError, match=r"plan.template names \{tool\}, and there is no such field .*question, tools"):
        Plans(plan=CallConfig(template="{tool} {question}"))
    assert Plans(plan=CallConfig(template='{"a": 1} {question}')).plan.text("", question="?") == '{"a": 1} ?'


def test_references_stand_where_the_template_names_them():
    parts = CallConfig(template="A {drafts} B {question}").parts("", drafts=(Ref(step="d"),), question="{drafts}")
    assert parts == (Text(text="A "), Ref(step="d"), Text(text=" B {drafts}"))


def test_values_out_of_range_are_refused():
    for wrong in ({"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"thinking": "maybe"}, {"tokens": 3}):
        with pytest.raises(ValidationError):
            Plans.model_validate({"plan": wrong})


def test_what_is_left_open_is_another_ones_to_say():
    given = CallConfig(temperature=0.0).over(Generation(temperature=1.0, max_tokens=9, stop=("x",)))
    assert (given.temperature, given.max_tokens, given.stop) == (0.0, 9, ("x",))


@pytest.mark.parametrize("fields", [{"top_p": 1.5}, {"top_p": 0.0}, {"min_p": 1.5}, {"temperature": -1.0}])
def test_what_no_sampler_can_do_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        CallConfig.model_validate(fields)
    assert CallConfig(top_p=1.0, min_p=1.0, temperature=0.0).top_p == 1.0
