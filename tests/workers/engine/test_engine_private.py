"""Another release of vLLM: names that are not where they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plait.core import Sampling
from plait.core.errors import ConfigError
from plait.workers._shared import resources
from plait.workers._shared.batch_streams import Reporter
from plait.workers._shared.resources import identity
from plait.workers.engine import Engine
from plait.workers.engine.core_process import SPACES, RequestProgress, bound_spaces, prefill_field, seen
from plait.workers.engine.engine_loader import arguments
from plait.workers.engine.options import EngineOptions
from plait.workers.engine.requests import EngineRequest
from plait.workers.engine.vllm import Core

FIELDS = ("request_id", "new_token_ids", "new_logprobs", "prefill_stats")


@pytest.mark.parametrize(
    ("fields", "logprobs", "found"),
    [
        (FIELDS, ("logprobs",), "prefill_stats"),
        (FIELDS[:3], ("logprobs",), ""),
        (FIELDS[:2], ("logprobs",), None),
        (FIELDS[1:], ("logprobs",), None),
        (FIELDS, ("values",), None),
        ((), (), None),
    ],
)
def test_names_that_were_moved_are_noticed_at_the_start(
    fields: tuple[str, ...], logprobs: tuple[str, ...], found: str | None
) -> None:
    output, lists = SimpleNamespace(__struct_fields__=fields), SimpleNamespace(_fields=logprobs)
    assert prefill_field(output, lists) == found


def test_a_renamed_state_does_not_break_the_engines_thread(caplog: pytest.LogCaptureFixture) -> None:
    core: Any = Core.__new__(Core)
    core._states, core.peeks = {"inner": SimpleNamespace(detokenizer=SimpleNamespace())}, True
    request = EngineRequest("1", Reporter(print), [1], Sampling(), False, inner="inner")
    assert core._seen(request) is None
    assert core.peeks is False and core._seen(request) is None
    assert len([each for each in caplog.records if "report every step" in each.getMessage()]) == 1


@pytest.mark.parametrize("bare", [True, False])
def test_ids_that_go_through_a_pipe_go_in_no_report_that_may_overtake_them(bare: bool) -> None:
    core: Any = Core.__new__(Core)
    core._states, core.peeks, core.counts = {"inner": None}, True, {"steps": 256}
    core._seen = lambda _: RequestProgress([1, 2], "ab", 0)
    order = EngineRequest("1", Reporter(print), [1], Sampling(), False, inner="inner", bare=bare, tells=True)
    core.running, news = {"1": order}, []
    core._report_silent(news)
    assert [item.ids for _, item in news] == ([] if bare else [(1, 2)])


def test_a_state_is_read_where_it_is() -> None:
    detokenizer = SimpleNamespace(output_token_ids=[1, 2], output_text="ab")
    said = seen(SimpleNamespace(detokenizer=detokenizer, num_cached_tokens=3))
    assert said == ([1, 2], "ab", 3) and seen(None) is None


# --- options ---


def test_each_option_has_a_description() -> None:
    assert all(field.description for field in EngineOptions.model_fields.values())
    assert Engine("a/model", slots=3, lora={"one": "/x"}).options == EngineOptions(
        model="a/model", slots=3, lora={"one": "/x"}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"checkpoint": -1}, "option 'checkpoint' should be greater than or equal to 0"),
        ({"slot": 3}, "there is no option 'slot'; did you mean 'slots'"),
        ({"cpu_list": "all"}, "option 'cpu_list'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Engine("a/model", **options)


def test_a_model_that_was_trained_again_is_another_one(tmp_path: Any) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = identity([str(tmp_path), "org/name"])
    assert first == identity([str(tmp_path), "org/name"]) and first.endswith(" org/name")
    weights.write_bytes(b"other")
    assert identity([str(tmp_path), "org/name"]) != first


@pytest.mark.parametrize(
    ("gpu", "asked", "taken"),
    [
        (False, "auto", "float32"),
        (False, "bfloat16", "bfloat16"),
        (True, "auto", "auto"),
    ],
)
def test_a_cpu_without_bfloat16_of_its_own_computes_in_float32(
    gpu: bool, asked: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "float_type", lambda _: "float32")
    assert arguments(EngineOptions(model="m", dtype=asked), "m", None, gpu)["dtype"] == taken


@pytest.mark.parametrize(("gpu", "asked", "loaded"), [(False, None, True), (True, None, False), (True, True, True)])
def test_a_logits_processor_is_loaded_where_it_costs_nothing_or_is_asked_for(
    gpu: bool, asked: bool | None, loaded: bool
) -> None:
    given = arguments(EngineOptions(model="m", arithmetic=asked), "m", None, gpu)
    assert (given["logits_processors"] is not None) is loaded


@pytest.mark.parametrize(("spaces", "taken"), [(0, True), (SPACES, True), (SPACES + 1, False), (400, False)])
def test_json_that_is_enforced_has_few_blanks_in_a_row(spaces: int, taken: bool) -> None:
    """A model of 135 million parameters filled a list with blanks until its tokens were used up."""
    xgrammar = pytest.importorskip("xgrammar")
    tokens = xgrammar.TokenizerInfo([chr(each) for each in range(128)], stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(tokens)
    bound_spaces(compiler)
    bound_spaces(compiler)  # once is enough
    schema = '{"type": "array", "items": {"type": "integer"}}'
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema, any_whitespace=True, separators=None))
    assert matcher.accept_string(f"[{' ' * spaces}1, 2\n]") == taken


@pytest.mark.parametrize("compiler", [None, object(), SimpleNamespace(compile_json_schema=lambda schema: schema)])
def test_a_compiler_without_such_a_bound_stays_as_it_is(compiler: Any) -> None:
    before = getattr(compiler, "compile_json_schema", None)
    bound_spaces(compiler)
    assert getattr(compiler, "compile_json_schema", None) is before
