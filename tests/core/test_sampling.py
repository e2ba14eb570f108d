"""Sampling parameters: the order of their sources, for every field, and what is written down of them."""

from __future__ import annotations

import json
from typing import Any, cast, get_type_hints

import pytest
from hypothesis import given, strategies as st

from plait.core.call_config import CallConfig
from plait.core.errors import FieldError
from plait.core.ops import ModelCall
from plait.core.planning import SamplingOptions
from plait.core.sampling import ANSWER_FIELDS, Generation, Sampling, answer_fields, resolve, set_fields

SOURCES = ("call", "request", "settings", "planner", "model")
"""In the order of precedence."""
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 99),
    "thinking": st.sampled_from(["on", "off"]),
    "thinking_tokens": st.integers(0, 99),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(0, 99),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "2"]), st.floats(-100, 100), min_size=1),
    "stop": st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True).map(tuple),
    "logprobs": st.sampled_from([-1, 1, 5]),
    "top_logprobs": st.integers(0, 20),
    "reasoning_effort": st.sampled_from(["low", "high"]),
    "chat_template_kwargs": st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), min_size=1),
    "extra_body": st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), min_size=1),
}
ADDED = ("stop", "chat_template_kwargs", "extra_body")
"""Fields of a request that are added to the call's own."""
LAYERS = st.fixed_dictionaries(
    {},
    optional={source: st.fixed_dictionaries({}, optional=VALUES).map(lambda f: Generation(**f)) for source in SOURCES},
)


def test_every_field_has_values_here() -> None:
    assert VALUES.keys() == Generation.model_fields.keys()


@given(LAYERS)
def test_the_first_source_that_sets_a_field_decides(layers: dict[str, Generation]) -> None:
    resolved = resolve(layers.get("call", {}), **{name: layers[name] for name in SOURCES[1:] if name in layers})
    for name in Generation.model_fields:
        values = [fields[name] for source in SOURCES if name in (fields := set_fields(layers.get(source, {})))]
        if not values:
            assert name not in resolved
        elif name not in ADDED:
            assert resolved[name] == values[0]
    made = Sampling(**resolved)
    assert {name: getattr(made, name) for name in resolved} == resolved


@given(LAYERS)
def test_a_request_adds_to_the_stop_texts_and_the_mappings_of_a_call(layers: dict[str, Generation]) -> None:
    call, request = layers.get("call", Generation()), layers.get("request", Generation())
    made = call.model_copy(update=resolve(call, request=request))
    assert made.stop == tuple(dict.fromkeys((*call.stop, *request.stop)))
    assert made.extra_body == {**request.extra_body, **call.extra_body}
    assert made.chat_template_kwargs == {**request.chat_template_kwargs, **call.chat_template_kwargs}


@given(LAYERS)
def test_resolution_in_stages_is_resolution_at_once(layers: dict[str, Generation]) -> None:
    call, rest = layers.get("call", {}), {name: layers[name] for name in SOURCES[1:] if name in layers}
    staged: Any = call
    for name, source in rest.items():
        staged = resolve(staged, **{name: source})
    assert set_fields(staged) == resolve(call, **rest)


@given(LAYERS)
def test_a_mapping_sets_what_it_names_and_null_is_a_value(layers: dict[str, Generation]) -> None:
    rest: Any = {name: layers[name] for name in SOURCES[1:] if name in layers}
    assert resolve({"temperature": None}, **rest)["temperature"] is None, "an option `null` asks for the model's own"
    assert resolve(CallConfig(temperature=None), planner={"temperature": 0.5})["temperature"] == 0.5


@given(LAYERS)
def test_the_fields_of_the_answer_are_a_part(layers: dict[str, Generation]) -> None:
    request = layers.get("request", Generation())
    assert answer_fields(request) == {k: v for k, v in set_fields(request).items() if k in ANSWER_FIELDS}


def test_options_of_a_call_are_the_fields_of_its_sampling() -> None:
    options = {name for name in get_type_hints(SamplingOptions) if name != "structured"}
    assert options == Sampling.model_fields.keys() - {"structured"}, "`form` is the option for `structured`"


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_call_writes_down_what_is_set_alone(fields: dict[str, Any]) -> None:
    call = ModelCall(prompt="x", sampling=Sampling(**fields))
    written = json.loads(call.model_dump_json())
    assert written["sampling"].keys() == {"max_tokens", *set_fields(call.sampling)}
    assert ModelCall.model_validate(written) == call


def test_a_call_of_an_older_journal_is_read() -> None:
    old = {
        "kind": "think",
        "prompt": [{"kind": "text", "text": "x"}],
        "chat": True,
        "sampling": {
            "max_tokens": 7, "temperature": None, "top_p": None, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0,
            "seed": 3, "stop": [], "stop_ids": [], "keep_stop": False, "logprobs": 0, "window": 0, "structured": None,
        },
        "thinking": "off",
        "thinking_tokens": 5,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": 1},
        "extra_body": {"b": 2},
    }  # fmt: skip
    sampling = ModelCall.model_validate(old).sampling
    assert (sampling.max_tokens, sampling.seed, sampling.others) == (7, 3, ())
    assert (sampling.thinking, sampling.thinking_tokens, sampling.reasoning_effort) == ("off", 5, "low")
    assert (sampling.chat_template_kwargs, sampling.extra_body) == ({"a": 1}, {"b": 2})
    with pytest.raises(FieldError, match="thinking_tokens"):
        cast("Any", ModelCall)(prompt="x", thinking_tokens=-1)
