"""Steps that decode and prefill, worked out on paper, and beside vLLM's own scheduler."""

from __future__ import annotations

from random import Random

import pytest

from plait.core.events import Job
from plait.core.ops import Join, ModelCall
from plait.core.plan import Plan, Step
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait_research.simulation.simulator import GiveUp, Host, Throttle, simulate
from tests.machine.invariants import check_invariants

ENGINE = Host("a", slots=4, decode_rate=10.0, prefill_rate=1_000.0, step_tokens=200, reports=0, text=1)
"""A step of decoding takes .1 s, as computing 100 tokens; a step has 200 tokens."""


def think(name: str, *needs: str, prompt: int, tokens: int) -> Step:
    return Step(name=name, op=ModelCall(prompt="x" * prompt, sampling=Sampling(max_tokens=tokens)), needs=needs)


def both(*needs: str) -> Step:
    return Step(name="both", op=Join(), needs=needs)


def ends(*steps: Step, host: Host = ENGINE, **options) -> dict[str, float]:
    plan = Plan(steps=steps, output=steps[-1].name)
    report = simulate(plan, hosts=[host], check=check_invariants, **options)
    return {span.step.removeprefix("sim:"): round(span.end, 6) for span in report.spans}


def test_the_step_that_reads_the_end_of_a_prompt_writes_the_first_token() -> None:
    # 200, 200 and 50 tokens are read: .2 + .2 + .1 s; nine more tokens: .9 s.
    assert ends(think("one", prompt=450, tokens=10)) == {"one": pytest.approx(1.4)}


def test_a_sequence_writes_while_a_prompt_is_read() -> None:
    # Together 60 tokens: .1 s, and each has a token. `long` waits for `short`, 4 more steps; then `first` takes one
    # token of each step and `long` 199, 199 and 2: .2 + .2 + .1 s. The engine that blocks lets `first` wait meanwhile.
    steps = (
        think("first", prompt=30, tokens=8),
        think("short", prompt=30, tokens=5),
        think("long", "short", prompt=400, tokens=1),
        think("end", "first", "long", prompt=1, tokens=1),
    )
    found = ends(*steps)
    assert found["short"] == pytest.approx(0.5)
    assert found["long"] == found["first"] == pytest.approx(1.0)
    blocking = Host("a", slots=4, decode_rate=10.0, prefill_rate=1_000.0, reports=0, text=1, blocking=True)
    assert ends(*steps, host=blocking)["first"] > found["first"]


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    # 150 and 50 tokens: .2 s; then one decoded token and the other 99: .1 s.
    found = ends(
        think("a", prompt=150, tokens=2), think("b", prompt=149, tokens=1), think("c", "a", "b", prompt=1, tokens=1)
    )
    assert found["a"] == found["b"] == pytest.approx(0.3)


def test_decoding_alone_goes_at_its_own_rate() -> None:
    context = Host("a", decode_rate=10.0, prefill_rate=1e9, step_tokens=8_192, context=0.001, reports=0, text=1)
    # .1 s and .001 s for each token of context, on average 105; the first token comes with the prompt.
    assert ends(think("one", prompt=100, tokens=11), host=context)["one"] == pytest.approx(2.25, abs=0.02)


def test_a_slow_host_reads_and_writes_slower() -> None:
    found = ends(think("one", prompt=450, tokens=10), faults=[Throttle(0.0, "a", 0.5)])
    assert found == {"one": pytest.approx(2.8)}


def test_what_is_given_up_while_it_is_read_leaves_the_engine() -> None:
    steps = (think("one", prompt=2_000, tokens=50), think("two", prompt=1_000, tokens=50), both("one", "two"))
    report = simulate(Plan(steps=steps, output="both"), hosts=[ENGINE], faults=[GiveUp(0.5)], check=check_invariants)
    assert (report.status, report.usage.cancelled) == ("cancelled", 0)
    assert report.makespan == pytest.approx(0.502)


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(2))
def test_it_ends_when_vllm_ends(seed: int) -> None:
    """Prompts of unequal length that arrive together, beside vLLM's scheduler with the same times of steps."""
    import asyncio

    from experiments._tools.virtual_vllm import Engine, host_of_steps, run_virtual
    from plait.runtime.client.config import Config

    rng = Random(seed)
    sizes = [(rng.randint(1, 9_000), rng.randint(1, 150)) for _ in range(16)]

    async def measured() -> list[float]:
        engine = Engine(64, model=Config.load().model)
        stepping = asyncio.create_task(engine.run())
        clock = asyncio.get_running_loop().time

        async def one(number: int, prompt: int, tokens: int) -> float:
            await engine.generate([1_000 * number + 7] * prompt, [5] * tokens)
            return clock()

        done = await asyncio.gather(*(one(number, *size) for number, size in enumerate(sizes)))
        stepping.cancel()
        return list(done)

    def outcome(job: Job, _: Random) -> Result:
        return Result(value="", usage=Usage(completion=sizes[int(job.step.rpartition("s")[2])][1]))

    calls = [
        ModelCall(prompt=chr(300 + n) * prompt, sampling=Sampling(max_tokens=tokens))
        for n, (prompt, tokens) in enumerate(sizes)
    ]
    steps = [Step(name=f"s{number}", op=op) for number, op in enumerate(calls)]
    plan = Plan(steps=(*steps, both(*(step.name for step in steps))), output="both")
    report = simulate(plan, hosts=[host_of_steps(64)], outcome=outcome, policies=())
    mine = {int(span.step.rpartition("s")[2]): span.end for span in report.spans}
    assert [mine[number] for number in range(len(sizes))] == pytest.approx(run_virtual(measured), rel=0.02)
