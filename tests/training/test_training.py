"""The loop: resumed equals uninterrupted, the loss falls, the schedule, Muon, batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.fx.experimental._config

from training.batches import Stream, pool_batches
from training.model import ModelConfig
from training.optim import learning_rate, orthogonalise
from training.train import TrainConfig, resume, run, save, start, train_step
from training.vocab import PAD

CPU = torch.device("cpu")
TINY = TrainConfig(
    steps=20, batch_tokens=300, accumulate=2, pool=24, save_every=10, warmup=5,
    model=ModelConfig(d=32, layers=2, heads=2, ff=48),
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_resumed_run_equals_uninterrupted_one(tmp_path: Path) -> None:
    whole = run(TINY, tmp_path / "whole", CPU, quiet=True)
    stopped = start(TINY, CPU)
    stream = Stream(TINY.seed, TINY.batch_tokens, pool=TINY.pool)
    for _ in range(11):  # stopped in the middle of a pool
        train_step(stopped, TINY, stopped.model.loss, [next(stream) for _ in range(TINY.accumulate)], CPU)
    stopped.position = stream.position
    save(stopped, TINY, tmp_path / "halves")
    resumed = run(TINY, tmp_path / "halves", CPU, quiet=True)
    assert (resumed.step, resumed.tokens) == (whole.step, whole.tokens) == (20, whole.tokens)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_step_runs_wholly_on_the_device_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device `meta`, which computes nothing but refuses to mix with the CPU, as a GPU does."""
    meta, item = torch.device("meta"), torch.Tensor.item
    monkeypatch.setattr(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True)
    monkeypatch.setattr(torch.Tensor, "item", lambda self: 1.0 if self.is_meta else item(self))
    state = start(TINY, meta)
    for group in state.optimizers[1].param_groups:
        group.update(fused=False, foreach=False)  # of AdamW there is no fused form for this device
    stream = Stream(TINY.seed, TINY.batch_tokens, pool=TINY.pool)
    train_step(state, TINY, state.model.loss, [next(stream), next(stream)], meta)
    momenta = [tensor for held in state.optimizers[0].state.values() for tensor in held.values()]
    assert {tensor.device.type for tensor in (*state.model.parameters(), *state.model.buffers(), *momenta)} == {"meta"}
    with pytest.raises(RuntimeError, match="device"):
        train_step(state, TINY, state.model.loss, [next(stream)], CPU)


def test_loss_falls_and_is_written(tmp_path: Path) -> None:
    run(replace(TINY, steps=100, matrix_rate=0.05, other_rate=0.01), tmp_path, CPU, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [50, 100]
    assert rows[1]["loss"] < rows[0]["loss"]


def test_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    path = save(start(TINY, CPU), TINY, tmp_path)
    with pytest.raises(ValueError, match="another size"):
        resume(replace(TINY, model=ModelConfig()), path, CPU)


def test_schedule_warms_up_stays_and_decays() -> None:
    rates = [learning_rate(step, 1000, 100, 0.25) for step in range(1000)]
    assert rates[0] == 0.01 and rates[99] == 1.0
    assert set(rates[99:750]) == {1.0}
    assert rates[750:] == sorted(rates[750:], reverse=True) and rates[-1] == pytest.approx(0.02)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48)])
def test_orthogonalise_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert float(values.min()) > 0.3 and float(values.max()) < 1.4


def test_batches_depend_on_seed_and_number_only() -> None:
    first, again, other = (
        pool_batches(1, 0, 500, 40),
        pool_batches(1, 0, 500, 40),
        pool_batches(2, 0, 500, 40),
    )
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].ids, other[0].ids)
    for batch in first:
        assert batch.ids.shape == batch.weights.shape
        assert batch.tokens == int((batch.ids != PAD).sum())
        assert not batch.weights[batch.ids == PAD].any()


def test_stream_goes_on_from_its_position() -> None:
    stream = Stream(1, 300, pool=12)
    batches = [next(stream) for _ in range(20)]
    later = Stream(1, 300, pool=12)
    for _ in range(7):
        next(later)
    resumed = Stream(1, 300, later.position, pool=12)
    for batch in batches[7:]:
        assert torch.equal(next(resumed).ids, batch.ids)
