"""What a think step may ask of the engine beyond text: signals, forms, stops by id, salts, models, a continuation."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from plait.core import ModelCall, Progress, Result, Text
from plait.core.errors import EngineError
from plait.core.events import Job
from plait.core.result import Failure
from plait.core.sampling import Sampling, StructuredOutput
from plait.workers._shared.resources import cpu_dtype
from plait.workers.engine import Engine
from tests.one_engine import opened

from ..byte_model import build_bytes, build_lora
from .test_engine import attempts, everything, generate, words

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


def asking(
    text: str, *, stream: bool = False, generated: tuple[int, ...] = (), priority: int = 0, **fields: Any
) -> Job:
    """A job with all that a job may say; `model` and `salt` are the step's, the rest is sampling."""
    own = {key: fields.pop(key) for key in ("model", "salt") if key in fields}
    op = ModelCall(prompt=(Text(text=text),), sampling=Sampling(**fields), stream=stream, **own)
    number = next(attempts)
    return Job(attempt=number, run="r", step=f"r:{number}", op=op, generated=generated, priority=priority)


async def end_of(engine: Engine, job: Job) -> Result:
    end = (await everything(engine, job))[-1]
    assert isinstance(end, Result), end
    return end


# --- stops and sampling ---


@pytest.mark.parametrize("keep", [True, False])
async def test_a_stop_id_is_kept_or_not(engine: Engine, keep: bool) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    stop = free.token_ids[12]
    place = free.token_ids.index(stop)
    held = await generate(engine, words(3, 5), max_tokens=40, stop_ids=(stop, 255), keep_stop=keep)
    count = place + keep
    assert (held.finish, held.usage.completion) == ("stop", place + 1)
    assert held.token_ids == free.token_ids[:count] and held.text.split() == free.text.split()[:count]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("done", [0, 5])
async def test_text_is_the_same_whether_the_engine_decodes_it_or_we_at_the_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, done: int, keep: bool
) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    stop = free.token_ids[20]
    asked: dict[str, Any] = {"generated": free.token_ids[:done], "max_tokens": 40, "keep_stop": keep}
    ends: dict[bool, list[Result]] = {}
    for late in (True, False):
        monkeypatch.setattr(engine._core.able, "mutes", late)
        asks = [asking(words(3, 5), **asked), asking(words(3, 5), **asked, stop_ids=(stop,))]
        cut = asking(words(3, 5), **(asked | {"max_tokens": 400}))
        running = asyncio.create_task(end_of(engine, cut))
        ends[late] = [await end_of(engine, each) for each in asks]
        await engine.cancel(cut.attempt)
        aborted = await running
        assert aborted.finish == "cancelled"
        assert aborted.text == engine._core.prompter.after([5], aborted.token_ids)
    for ours, theirs in zip(*ends.values(), strict=True):
        assert (ours.text, ours.token_ids, ours.finish) == (theirs.text, theirs.token_ids, theirs.finish)
    assert [end.finish for end in ends[True]] == ["length", "stop"] and ends[True][0].text == free.text


async def test_min_p_of_one_leaves_the_likeliest_token(engine: Engine) -> None:
    greedy = await generate(engine, words(7, 5), max_tokens=10)
    wild = await generate(engine, words(7, 5), max_tokens=10, temperature=2.0, seed=1)
    tamed = await generate(engine, words(7, 5), max_tokens=10, temperature=2.0, seed=1, min_p=1.0)
    assert tamed.token_ids == greedy.token_ids != wild.token_ids


async def test_those_of_a_lower_number_go_first(engine: Engine) -> None:
    ended: list[int] = []

    async def one(priority: int, tokens: int) -> None:
        await end_of(engine, asking(words(priority, 4), priority=priority, max_tokens=tokens))
        ended.append(priority)

    # one place comes free and the other 15 stay taken: two that begin in one step would end in one, in either order
    full = [asyncio.create_task(one(0, 400 if n else 250)) for n in range(16)]
    while engine.stats()["running"] < 16:
        await asyncio.sleep(0.01)
    late = [asyncio.create_task(one(priority, 4)) for priority in (7, 5, 9, 6, 8, 3, 4)]
    while engine.stats()["waiting"] < 7:
        assert len(ended) == 0
        await asyncio.sleep(0.01)
    await asyncio.gather(*full, *late)
    assert [each for each in ended if each] == [3, 4, 5, 6, 7, 8, 9]


# --- signals ---


async def test_signals_are_those_of_the_models_own_distributions(engine: Engine, tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from ..test_signals import direct

    results = {k: await end_of(engine, asking(words(7, 5), max_tokens=30, logprobs=k, window=8)) for k in (20, -1)}
    ids = [*results[20].prompt_ids, *results[20].token_ids]
    dtype = getattr(torch, cpu_dtype("auto"))  # what the engine computes in
    model = AutoModelForCausalLM.from_pretrained(tiny_model, torch_dtype=dtype)
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)[4:-1].tolist()
    for k, result in results.items():
        assert result.token_ids == results[20].token_ids and result.signals is not None
        expected = direct(rows, k, 8)
        for name, value in expected.model_dump().items():
            ours = getattr(result.signals, name)
            assert ours == (value if value is None else pytest.approx(value, rel=0.01, abs=0.02)), name
        sampled = [row[token] for row, token in zip(rows, result.token_ids, strict=True)]
        assert result.logprob == pytest.approx(sum(sampled) / len(sampled), abs=0.02)


async def test_each_request_is_summarised_by_its_own_k(engine: Engine) -> None:
    asked = [{"logprobs": k, "window": w} for k, w in ((2, 0), (20, 5), (-1, 7), (1, 0), (0, 0), (5, 100))]
    alone = [await end_of(engine, asking(words(n, 5), max_tokens=20, **each)) for n, each in enumerate(asked)]
    together = await asyncio.gather(
        *(end_of(engine, asking(words(n, 5), max_tokens=20, **each)) for n, each in enumerate(asked))
    )
    for one, other, each in zip(alone, together, asked, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.signals is None) == (each["logprobs"] in (0, 1)) and (one.logprob is None) == (not each["logprobs"])
        assert one.logprob == (None if other.logprob is None else pytest.approx(other.logprob, abs=0.02))
        if one.signals is not None and other.signals is not None:
            assert one.signals.model_dump() == pytest.approx(other.signals.model_dump(), abs=0.05)
            assert one.signals.k == each["logprobs"] and one.signals.window == each["window"]


@pytest.mark.parametrize("stream", [True, False])
async def test_groups_are_told_while_it_runs(engine: Engine, stream: bool) -> None:
    *news, end = await everything(engine, asking(words(1, 5), stream=stream, max_tokens=100, logprobs=5, window=16))
    assert isinstance(end, Result) and end.signals is not None
    told = [item for item in news if isinstance(item, Progress) and item.group is not None]
    lows = [item.lowest for item in told if item.lowest is not None]
    assert len(told) == len(lows) >= 10 and lows == sorted(lows, reverse=True)
    assert lows[-1] >= end.signals.lowest and all(item.group >= item.lowest for item in told)  # type: ignore[operator]
    if not stream:
        assert sum(item.tokens for item in told) <= 100 and all(item.tokens >= 2 and not item.text for item in told[1:])
        assert {item.ids for item in told} == {()}


# --- going on from ids ---


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("done", [1, 7, 29])
async def test_a_lost_attempt_is_gone_on_with(engine: Engine, done: int, stream: bool) -> None:
    whole = await generate(engine, words(3, 40), max_tokens=30)
    items = await everything(
        engine, asking(words(3, 40), max_tokens=30, generated=whole.token_ids[:done], stream=stream)
    )
    end = items[-1]
    assert isinstance(end, Result)
    assert (end.value, end.token_ids, end.prompt_ids) == (whole.value, whole.token_ids, whole.prompt_ids)
    assert (end.finish, end.usage.completion, end.usage.prompt) == ("length", 30 - done, 40 + done)
    told = [item for item in items[:-1] if isinstance(item, Progress)]
    assert bool(told) == stream
    if stream:
        assert (
            whole.text.endswith("".join(item.text for item in told))
            and len("".join(i.text for i in told).split()) == 30 - done
        )
        assert tuple(token for item in told for token in item.ids) == whole.token_ids[done:]
        assert sum(item.tokens for item in told) == 30 - done


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("done", [3, 8, 9, 10])
async def test_a_stop_text_across_the_seam_is_found(engine: Engine, done: int, keep: bool) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    stop = " ".join(free.text.split()[7:10])
    held = await generate(engine, words(3, 5), max_tokens=40, stop=(stop,), keep_stop=keep)
    asked: dict[str, Any] = {"max_tokens": 40, "stop": (stop,), "keep_stop": keep, "stream": True}
    begun = await end_of(engine, asking(words(3, 5), max_tokens=done))  # what the lost attempt had
    *news, again = await everything(engine, asking(words(3, 5), generated=begun.token_ids, **asked))
    assert isinstance(again, Result) and again.finish == held.finish == "stop"
    assert (again.text, again.token_ids) == (held.text, held.token_ids)
    before = begun.text if keep else begun.text[: -(len(stop) - 1)]  # and had told of it
    new = "".join(item.text for item in news)
    # What has ended already is told anew, without ids: there is nothing to go on with.
    assert (before + new == again.text) if done < 10 else (new == again.text and not news[0].ids)
    assert engine.stats()["running"] == 0


async def test_text_is_told_once_however_often_it_is_interrupted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._core, "_checkpoint", 1)
    asked: dict[str, Any] = {"max_tokens": 40, "stop": ("w1 w2 w3 w4 w5 w6",), "stream": True}
    whole = await end_of(engine, asking(words(3, 5), **asked))
    ids: tuple[int, ...] = ()
    shown, end = "", None
    while end is None:
        running = engine.run(asking(words(3, 5), generated=ids, **asked))
        async for item in running:
            if isinstance(item, Result):
                end = item
            elif isinstance(item, Progress):
                shown, ids = shown + item.text, ids + item.ids
                if item.ids and len(ids) < 38:
                    break  # it dies here
        await running.aclose()
    assert (end.text, end.token_ids) == (whole.text, whole.token_ids)
    assert shown == whole.text and ids == whole.token_ids


@pytest.mark.parametrize("keep", [True, False])
async def test_what_had_ended_already_is_not_gone_on_with(engine: Engine, keep: bool) -> None:
    free = await generate(engine, words(3, 5), max_tokens=40)
    stop = free.token_ids[12]
    place = free.token_ids.index(stop)
    before = engine.stats()["steps"]
    asked = {"max_tokens": 40, "stop_ids": (stop,), "keep_stop": keep}
    end = await end_of(engine, asking(words(3, 5), generated=free.token_ids[: place + 1], **asked))
    assert (end.finish, end.token_ids, end.usage.completion) == ("stop", free.token_ids[: place + keep], 0)
    assert end.text.split() == free.text.split()[: place + keep]
    end = await end_of(engine, asking(words(3, 5), max_tokens=6, generated=free.token_ids[:6]))
    assert (end.finish, end.token_ids, end.usage.completion) == ("length", free.token_ids[:6], 0)
    assert free.text.startswith(end.text) and engine.stats()["steps"] == before


@pytest.mark.parametrize("stream", [True, False])
async def test_a_checkpoint_tells_the_ids_of_all(engine: Engine, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(engine._core, "_checkpoint", 8)
    jobs = [asking(words(n, 5), stream=stream, max_tokens=60 + n) for n in range(4)]
    for each in await asyncio.gather(*(everything(engine, each) for each in jobs)):
        *news, end = each
        ids = [token for item in news for token in item.ids]
        assert all(len(item.ids) == item.tokens for item in news)
        assert len(ids) >= len(end.token_ids) - 8 and tuple(ids) == end.token_ids[: len(ids)]
        assert stream or (len(news) >= 6 and not any(item.text for item in news))
    whole = await end_of(engine, asking(words(0, 5), max_tokens=60))
    *news, end = await everything(engine, asking(words(0, 5), max_tokens=60, generated=whole.token_ids[:30]))
    assert end.token_ids == whole.token_ids
    ids = [token for item in news for token in item.ids]
    assert len(ids) >= 22 and tuple(ids) == whole.token_ids[30:][: len(ids)]


# --- names, salts, figures ---


async def test_a_prefix_is_shared_with_the_same_salt_only(engine: Engine) -> None:
    prompt = words(60, 100)
    assert (await end_of(engine, asking(prompt, max_tokens=2, salt="one"))).usage.cached == 0
    assert (await end_of(engine, asking(prompt, max_tokens=2, salt="one"))).usage.cached == 96
    assert (await end_of(engine, asking(prompt, max_tokens=2, salt="two"))).usage.cached == 0
    assert (await end_of(engine, asking(prompt, max_tokens=2))).usage.cached == 0


async def test_a_model_it_does_not_have(engine: Engine, tiny_model: Path) -> None:
    assert engine.models == (tiny_model.name,)
    assert (await end_of(engine, asking("w1", max_tokens=2, model=tiny_model.name))).usage.completion == 2
    (end,) = await everything(engine, asking("w1", model="other"))
    assert isinstance(end, Failure) and f"no model 'other' (there are: {tiny_model.name})" in end.message


async def test_its_figures(engine: Engine) -> None:
    assert engine.block == 32 and engine.cache_tokens is not None and engine.cache_tokens >= 16 * 512
    before = engine.stats()
    assert before["kv_blocks"] * 32 == engine.cache_tokens and before["kv_used"] == 0
    prompt = words(90, 70)
    task = asyncio.create_task(end_of(engine, asking(prompt, max_tokens=200)))
    while engine.stats()["generated"] < before["generated"] + 20:
        await asyncio.sleep(0.005)
    assert engine.stats()["kv_used"] >= 3
    await task
    await end_of(engine, asking(prompt, max_tokens=2))
    after = engine.stats()
    grown = {key: after[key] - before[key] for key in after}
    assert (grown["queries"], grown["hits"], grown["prompt"], grown["cached"]) == (140, 64, 140, 64)
    assert (grown["generated"], after["running"], after["waiting"], after["kv_used"]) == (202, 0, 0, 0)
    assert grown["steps"] >= 202


@pytest.mark.filterwarnings("ignore:When constructing TokenizerInfo")  # xgrammar's, of a model without an end
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (StructuredOutput(kind="json", spec="{}"), "a JSON schema"),
        (StructuredOutput(kind="choice", spec=[]), "a list of texts"),
        (StructuredOutput(kind="regex", spec="(unclosed"), "rejected"),
        (StructuredOutput(kind="choice", spec=["w1"]), "has an end token"),  # this model's has none
    ],
)
async def test_a_form_that_makes_no_sense(engine: Engine, form: StructuredOutput, said: str) -> None:
    (end,) = await everything(engine, asking("w1", structured=form))
    assert isinstance(end, Failure) and said in end.message and not end.retryable
    assert (await generate(engine, "w1", max_tokens=2)).usage.completion == 2


async def test_a_vllm_without_an_option_says_so(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    able = engine._core.able  # type: ignore[union-attr]
    monkeypatch.setattr(able, "_fields", able._fields - {"min_p"})
    monkeypatch.setattr(able, "_forms", None)
    for fields, option in (
        ({"min_p": 0.5}, "min_p"),
        ({"structured": StructuredOutput(kind="choice", spec=["w1"])}, "structured_outputs.choice"),
    ):
        (end,) = await everything(engine, asking("w1", **fields))
        assert isinstance(end, Failure) and f"'{option}'" in end.message and "use release 0." in end.message
    assert (await generate(engine, "w1", max_tokens=2)).usage.completion == 2


# --- an engine of its own: bytes, forms, adapters ---


@pytest.mark.own_engine
@pytest.mark.filterwarnings("ignore")  # vLLM would give up a form over a warning that is raised in it
async def test_forms_adapters_and_half_characters(tmp_path: Path) -> None:
    model = build_bytes(tmp_path / "bytes")
    one, two = (build_lora(tmp_path / f"lora-{seed}", seed, rank=4 * seed) for seed in (1, 2))
    bad = build_lora(tmp_path / "bad", 3)
    config = json.loads((bad / "adapter_config.json").read_text())
    (bad / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["nothing_of_this_model"]}))
    (bad / "adapter_model.safetensors").write_bytes(b"not weights")
    for lora, said in (({"x": str(model)}, "adapter_config.json"), ({"bad": str(bad)}, "cannot be loaded")):
        with pytest.raises(EngineError, match=said) as caught:
            async with opened(model, lora=lora):
                pass
        assert "\n" not in str(caught.value)
    async with opened(model, lora={"one": str(one), "two": str(two)}, slots=8) as engine:
        assert engine.models[1:] == ("one", "two"), engine.models
        await _forms(engine)
        await _adapters(engine)
        await _half_characters(engine)


async def _forms(engine: Engine) -> None:
    """A form of each kind is kept, also by a request that goes on."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for kind, spec, right in (
        ("json", schema | {"additionalProperties": False}, lambda text: isinstance(json.loads(text)["n"], int)),
        ("regex", "[ab]{3}-[0-9]{2}", lambda text: re.fullmatch("[ab]{3}-[0-9]{2}", text)),
        ("choice", ["yes", "no"], lambda text: text in ("yes", "no")),
        ("grammar", 'root ::= "x" ("+" "x")? ";"', lambda text: text in ("x;", "x+x;")),
    ):
        for seed in range(3):
            form = StructuredOutput(kind=kind, spec=spec)
            sampling = {"temperature": 0.7, "seed": seed, "max_tokens": 60, "logprobs": 5, "window": 2}
            end = await end_of(engine, asking("go", structured=form, **sampling))
            if end.finish == "stop" or kind != "json":
                assert right(end.text), (kind, end)
            else:  # digits without end: a random model's choice
                assert re.match(r'\{\s*"n"\s*:\s*-?\d', end.text), end.text
            again = await end_of(engine, asking("go", structured=form, generated=end.token_ids[:2], **sampling))
            assert again.text == end.text and again.usage.completion == end.usage.completion


async def _adapters(engine: Engine) -> None:
    """Each answers as itself, also beside the others."""
    base = await end_of(engine, asking("hello", max_tokens=20))
    ones = [await end_of(engine, asking("hello", max_tokens=20, model="one")) for _ in range(2)]
    other = await end_of(engine, asking("hello", max_tokens=20, model="two"))
    assert ones[0].token_ids == ones[1].token_ids
    assert len({base.token_ids, ones[0].token_ids, other.token_ids}) == 3, (base, ones, other)
    mixed = await asyncio.gather(
        *(end_of(engine, asking("hello", max_tokens=20, model=model)) for model in ("one", None, "two"))
    )
    assert [each.token_ids for each in mixed] == [ones[0].token_ids, base.token_ids, other.token_ids]
    (end,) = await everything(engine, asking("hello", model="three"))
    assert "one, two" in end.message, end


async def _half_characters(engine: Engine) -> None:
    """Going on from any place, in the midst of a character too, gives the same text, streamed or not."""
    assert engine._core is not None
    tail = "漢字é€ü".encode()
    past = tuple(engine._core.prompter.tokenizer.encode("漢字é€ü", add_special_tokens=False))
    assert len(past) == len(tail)
    for place in range(1, len(past)):
        many = len(past) + 4
        *news, end = await everything(engine, asking("go ", max_tokens=many, generated=past[:place], stream=True))
        assert end.token_ids[:place] == past[:place]
        sane = tail[:place].decode(errors="ignore")
        told = sane + "".join(item.text for item in news)
        assert told == end.text and "go" not in end.text, (place, end.text, told)
