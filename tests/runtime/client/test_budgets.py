"""Budgets as a user sets them: in the SDK, in settings and on the command line; what they say when they cut; cost."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from plait import Budget, Join, ModelCall, Orchestrator, Plan, Sampling, Step
from plait.apps import main
from plait.core.errors import ConfigError, RunFailed, UsageError
from plait.core.events import Submitted, WorkerUp
from plait.core.result import Price
from plait.runtime.client import pricing
from plait.runtime.client.config import Config
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from tests.machine.invariants import check_invariants

PRICES = {"default": Price(input=2.0, output=8.0)}
TEXT = "word " * 16 + "answer: 4"


def branches(count: int, prompt: str = "2 + 2?", tokens: int = 512) -> Plan:
    op = ModelCall(prompt=prompt, sampling=Sampling(max_tokens=tokens))
    steps = [Step(name=f"b{i}", op=op) for i in range(count)]
    return Plan(
        steps=(*steps, Step(name="j", op=Join(on_failure="best-effort"), needs=tuple(s.name for s in steps))),
        output="j",
    )


Make = Callable[..., Orchestrator]


@pytest.fixture
def make() -> Make:
    def build(text: str = TEXT, rate: float | None = None, **settings: object) -> Orchestrator:
        given: dict[str, object] = {"journal": "off", **settings}
        return Orchestrator(workers=[Scripted([Reply(text=text, tokens_per_second=rate)])], **given)  # type: ignore[arg-type]

    return build


def test_32_branches_of_a_long_prompt_are_held_to_the_tokens_that_they_read(make: Make) -> None:
    prompt = " ".join(["word"] * 20_000)
    with make() as plait:
        for budget in (Budget(prompt_tokens=16_384), Budget(total_tokens=16_384)):
            answer = plait.run(plan=branches(32, prompt), budget=budget)
            assert answer.status == "failed" and answer.usage.prompt == 0
            assert answer.failure is not None and "a prompt of 20000 tokens" in answer.failure.message
        answer = plait.run(plan=branches(32, prompt), budget=Budget(prompt_tokens=50_000))
        assert (answer.status, answer.usage.prompt) == ("partial", 40_000)


def test_a_partial_answer_and_an_exception_say_the_limit_and_what_was_used(make: Make) -> None:
    with make() as plait:
        answer = plait.run(plan=branches(8), budget=Budget(tokens=60, strict=True))
        assert answer.status == "partial" and answer.total_tokens == 60
        assert answer.failure is not None and "raise `tokens`" in answer.failure.message
        assert answer.failure.usage.completion == 60 and "raise `tokens`" in answer.explain()
        assert answer.unwrap() == answer.value, "a partial answer is one"
        with pytest.raises(RunFailed) as raised:
            plait.run(plan=branches(2), budget=Budget(prompt_tokens=1)).unwrap()
        assert raised.value.failure.usage.completion == 0


def test_a_journal_of_a_counted_run_replays_and_a_partial_end_is_in_it(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "runs.plait"
    with make(journal=file, rate=2000.0, prices=PRICES) as plait:
        answer = plait.run(plan=branches(8), budget=Budget(total_tokens=90, cost=1.0))
    assert answer.status == "partial" and answer.usage.cost > 0
    report = replay(file, Plugins(), check=check_invariants)
    assert report.divergence is None
    assert report.finished[0].failure is not None and report.finished[0].usage.cost == answer.usage.cost
    (submitted,) = [each for each in Journal(file).events() if isinstance(each, Submitted)]
    assert submitted.request.budget == Budget(total_tokens=90, cost=1.0)
    (up,) = [each for each in Journal(file).events() if isinstance(each, WorkerUp) and "think" in each.serves]
    assert up.prices == {"": PRICES["default"]} and up.reports == 16 and up.counts_tokens


# -- cost --------------------------------------------------------------------------------------------------------------


def test_a_cost_is_counted_by_the_prices_of_the_settings_and_limits_a_run(make: Make) -> None:
    with make(prices=PRICES) as plait:
        whole = plait.run(plan=branches(8))
        cost = (whole.usage.prompt * 2.0 + whole.usage.completion * 8.0) / 1e6
        assert whole.usage.cost == pytest.approx(cost) and whole.summary()["usage"]["cost"] == whole.usage.cost
        assert f"cost {whole.usage.cost:.6g}" in whole.explain()
        cut = plait.run(plan=branches(8), budget=Budget(cost=cost / 3, strict=True))
        assert cut.status == "partial" and 0 < cut.usage.cost <= cost / 3 + 1e-12


@pytest.mark.parametrize("where", ["run", "plan", "step"])
def test_a_limit_of_cost_without_a_price_is_refused_before_anything_starts(make: Make, where: str) -> None:
    plan = branches(2)
    if where == "plan":
        plan = plan.model_copy(update={"budget": Budget(cost=1)})
    elif where == "step":
        plan = plan.model_copy(
            update={"steps": (plan.steps[0].model_copy(update={"budget": Budget(cost=1)}), *plan.steps[1:])}
        )
    with make() as plait, pytest.raises(UsageError, match=r"no worker has a price.*\[prices.default\]"):
        plait.run(plan=plan, budget=Budget(cost=1) if where == "run" else None)


def test_prices_by_time_count_what_a_slot_costs(make: Make) -> None:
    with make(prices={"scripted": Price(hour=3600.0)}, rate=100.0) as plait:
        answer = plait.run("2 + 2?")
    assert 0.1 < answer.usage.cost < 20


def test_hosted_models_have_the_prices_of_their_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        def __init__(self, input_tokens: int = 0, output_tokens: int = 0, cache_read_tokens: int = 0) -> None:
            self.read, self.written, self.cached = input_tokens, output_tokens, cache_read_tokens

    def calc_price(usage: Usage, model_ref: str, provider_api_url: str) -> object:
        if model_ref != "big" or "api.example" not in provider_api_url:
            raise LookupError(model_ref)
        total = (usage.read - usage.cached) * 2e-6 + usage.cached * 1e-6 + usage.written * 9e-6
        return types.SimpleNamespace(total_price=total)

    module = types.SimpleNamespace(Usage=Usage, calc_price=calc_price)
    monkeypatch.setitem(sys.modules, "genai_prices", module)  # type: ignore[arg-type]
    pricing._published.cache_clear()
    try:
        config = Config(worker="http", base_url="https://api.example/v1", model="big")
        assert pricing.rates(config)[""] == Price(input=2.0, cached=1.0, output=9.0)
        pricing.demand(Budget(cost=1), None, None, config)
        with pytest.raises(UsageError, match="no worker has a price"):
            pricing.demand(Budget(cost=1), None, None, config.model_copy(update={"model": "other"}))
        near = Config(worker="http", base_url="http://localhost:8000/v1", model="big")
        assert pricing.table(near, [Scripted([Reply(text="x")])]) == {}
    finally:
        pricing._published.cache_clear()


# -- settings and the command line -------------------------------------------------------------------------------------


def test_settings_say_budget_and_prices(tmp_path: Path, make: Make) -> None:
    file = tmp_path / "plait.toml"
    file.write_text('[budget]\ntotal_tokens = 50\nstrict = true\n[prices."my model"]\noutput = 4.0\n')
    config = Config.load(file=file)
    assert config.budget == Budget(total_tokens=50, strict=True)
    assert config.prices == {"my model": Price(output=4.0)}
    with make(budget="tokens=40,strict=true") as plait:
        assert plait.run(plan=branches(4)).total_tokens == 40
        assert plait.run(plan=branches(4), budget=Budget(tokens=20)).total_tokens == 20
    file.write_text("[budget]\nspeed = 4\n")
    with pytest.raises(ConfigError, match="speed"):
        Config.load(file=file)


def test_the_command_line_takes_any_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": TEXT}]}))
    words = ["run", "2 + 2?", "--script", str(script), "--journal", "off", "--planner", "sample:n=4"]
    main.run([*words, "--set", "budget=total_tokens=40,strict=true", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "partial" and "raise `total_tokens`" in said["error"]
    assert said["usage"]["prompt"] + said["usage"]["completion"] <= 40
    assert main.run([*words, "--set", "budget=speed=4"]) != 0
    assert "`speed` is not known here" in capsys.readouterr().err
    assert main.run([*words, "--set", "budget=cost=1"]) != 0
    assert "no worker has a price" in capsys.readouterr().err
