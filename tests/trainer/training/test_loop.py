"""The loss falls, accumulation changes nothing, nothing in a step waits for the device."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.encoding.plain import plain
from sweep.core.records.layout import PROGRESS_FILE
from sweep.core.records.progress import Progress
from tests.trainer.cells import cell
from tests.trainer.processes import ROOT, torchrun
from trainer.data.batches import Share, SyntheticTokens, stream
from trainer.device import devices
from trainer.device.devices import HostClock
from trainer.failure.error_report import RankProgress
from trainer.process.ranks import Ranks
from trainer.training import session
from trainer.training.loop import Measurements, Trainee, train
from trainer.training.optimizer import ShardedAdamW
from trainer.training.records import ProgressWriter

SMALL = ModelShape(name="small", n_layers=2, hidden=64, n_heads=4, n_kv_heads=2, ffn_hidden=128, vocab_size=512)


def fitted(made: Cell) -> Measurements:
    compute = devices.CpuCompute()
    model = session.build(made, compute, Ranks())
    return session.fit(made, Ranks(), compute, model, session.DeviceMonitor(compute, RankProgress()), None)


@pytest.mark.slow
def test_the_loss_falls() -> None:
    settings: dict[str, Any] = {"steps": 60, "lr": 1e-2, "grad_clip": 1.0}
    losses = fitted(cell(model=SMALL, seq_len=64, trainer=settings)).losses
    assert losses is not None
    assert losses[0] == pytest.approx(6.238, abs=0.2)
    assert losses[-1] < 2.5


def test_an_accumulated_step_is_the_whole_step() -> None:
    whole, accumulated = fitted(cell(micro_batch=8)), fitted(cell(micro_batch=2))
    assert accumulated.losses == pytest.approx(whole.losses, rel=1e-5)
    assert accumulated.grad_norms == pytest.approx(whole.grad_norms, rel=1e-5)


def test_without_clipping_the_norm_is_still_returned() -> None:
    clipped = fitted(cell(trainer={"grad_clip": 0.1}))
    unclipped = fitted(cell(trainer={"grad_clip": 0.0}))
    assert clipped.grad_norms[0] == unclipped.grad_norms[0] > 0.1


@pytest.mark.parametrize("asked", [0.0, 0.25])
def test_gradients_are_scaled_to_the_largest_norm(asked: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([3.0, 0.0, 4.0])
    seen: list[torch.Tensor] = []
    settings = dataclasses.replace(cell().trainer, grad_clip=asked)
    optimizer = ShardedAdamW([weight], settings)
    optimizer._adamw.register_step_post_hook(
        lambda *_: seen.append(weight.grad.clone() if weight.grad is not None else weight)
    )
    norm = optimizer.step()
    assert norm.item() == 5.0
    assert seen[0].norm().item() == pytest.approx(asked or 5.0, rel=1e-4)
    assert weight.grad is None


def test_adamw_moves_weights_as_torchs_own_does_on_the_same_gradient() -> None:
    made = cell()
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    settings = dataclasses.replace(made.trainer, grad_clip=0.0)
    optimizer = ShardedAdamW([ours], settings)
    reference = torch.optim.AdamW(
        [theirs],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    for step in range(3):
        ours.grad = torch.linspace(0, step + 1, 7)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_the_learning_rate_warms_up_to_its_peak_and_stays() -> None:
    settings = dataclasses.replace(cell().trainer, lr=0.4, lr_warmup_steps=4)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = ShardedAdamW([weight], settings)
    rates: list[float] = []
    optimizer._adamw.register_step_post_hook(lambda *_: rates.append(optimizer._adamw.param_groups[0]["lr"]))
    for _ in range(6):
        weight.grad = torch.ones(1)
        optimizer.step()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def forbidden(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("a step must not wait for the device")


def test_no_step_reads_a_value_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(micro_batch=2)
    compute = devices.CpuCompute()
    model = session.build(made, compute, Ranks())
    trainee = Trainee(
        model=model,
        optimizer=ShardedAdamW(model.parameters(), made.trainer),
        device=compute.device,
    )
    rows = SyntheticTokens(seed=1, vocab_size=101, seq_len=32).sequences(range(1), Share(first=0, count=8))[0]
    for name in ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    loss, norm = trainee.step(rows)
    monkeypatch.undo()
    assert loss is not None
    assert loss.item() > 0
    assert norm.item() > 0


@pytest.mark.torchrun
def test_no_step_of_several_ranks_reads_a_value_on_the_host(tmp_path: Path) -> None:
    pipeline = Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B)
    cells = {
        "fsdp": cell(gpus=2, micro_batch=2),
        "ddp": cell(gpus=2, parallelism=Parallelism(dp_replicate=2)),
        "tp": cell(gpus=2, parallelism=Parallelism(tp=2)),
        "pp": cell(gpus=2, parallelism=pipeline, micro_batch=2),
        "cp": cell(gpus=2, parallelism=Parallelism(cp=2)),
        "fp16 fsdp": cell(gpus=2, precision=Precision.FP16),
        "fp16 pp": cell(gpus=2, parallelism=pipeline, micro_batch=2, precision=Precision.FP16),
    }
    given, out = tmp_path / "cells.json", tmp_path / "norms.json"
    given.write_text(json.dumps({name: plain(made) for name, made in cells.items()}))
    done = torchrun(2, str(ROOT / "tests" / "trainer" / "programs" / "no_host_sync.py"), str(given), str(out))
    assert done.returncode == 0, done.stderr[-4000:]
    norms = json.loads(out.read_text())
    assert norms.keys() == cells.keys()
    assert all(norm > 0 for found in norms.values() for norm in found)


class Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.collector: list[bool] = []

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def window_opens(self) -> None:
        self.calls.append("opens")

    def window_closes(self) -> None:
        self.calls.append("closes")

    def window_closed(self, window_time_s: float) -> None:
        self.calls.append("closed")

    def step_begins(self, step: int) -> None:
        self.calls.append(str(step))
        self.collector.append(gc.isenabled())


class Still:
    def step(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(1.0), torch.tensor(2.0)


def test_the_device_is_waited_for_at_the_edges_of_the_window_only() -> None:
    made = cell(trainer={"steps": 4, "warmup_steps": 2})
    recorder = Recorder()
    batches = iter([torch.zeros(1)] * 4)
    train(made, Still(), batches, HostClock(), recorder)  # type: ignore[arg-type]  # stands in for a trainee
    assert recorder.calls == ["0", "1", "synchronize", "opens", "2", "3", "closes", "synchronize", "closed"]


def test_no_garbage_is_collected_in_the_window_and_again_after_it() -> None:
    recorder = Recorder()
    made = cell(trainer={"steps": 4, "warmup_steps": 2})
    train(made, Still(), iter([torch.zeros(1)] * 4), HostClock(), recorder)  # type: ignore[arg-type]  # as above
    assert recorder.collector == [True, True, False, False]
    assert gc.isenabled()


def test_without_warm_up_the_window_is_the_whole_run() -> None:
    measurements = fitted(cell(trainer={"steps": 3, "warmup_steps": 0}))
    assert measurements.window_time_s >= sum(measurements.step_times_s)
    assert len(measurements.step_times_s) == 3


def test_the_window_goes_from_before_its_first_step_to_after_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    # At every look it is a second later.
    time_ = SimpleNamespace(perf_counter=lambda: float(next(looks)), perf_counter_ns=lambda: next(looks) * 10**9)
    monkeypatch.setattr("trainer.device.devices.time", time_)
    monkeypatch.setattr("trainer.training.loop.time", time_)
    measurements = fitted(cell(trainer={"steps": 8, "warmup_steps": 3}))
    assert measurements.step_times_s == pytest.approx([1.0] * 8)
    assert measurements.window_time_s == 11.0


def test_a_steps_tokens_come_from_the_stream_in_order() -> None:
    source, share = SyntheticTokens(seed=1, vocab_size=101, seq_len=8), Share(first=0, count=2)
    assert len(list(stream(source, share, 3, pin=False))) == 3


def test_progress_is_written_from_start_to_end_and_is_always_complete(tmp_path: Path) -> None:
    done = 0
    writer = ProgressWriter(tmp_path, steps=9, tokens_per_step=100, n_done=lambda: done, period_s=0.02)
    with writer:
        first = Progress.parse((tmp_path / PROGRESS_FILE).read_text())
        done = 4
        while Progress.parse((tmp_path / PROGRESS_FILE).read_text()).step != 4:
            pass
        done = 9
    last = Progress.parse((tmp_path / PROGRESS_FILE).read_text())
    assert (first.step, first.tokens_per_s) == (0, None)
    assert (last.step, last.steps) == (9, 9)
    assert last.tokens_per_s is not None
    assert last.tokens_per_s > 0
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS_FILE]


def test_progress_is_printed_now_and_then_and_only_where_there_is_some(tmp_path: Path) -> None:
    done, lines = 0, list[str]()
    writer = ProgressWriter(
        tmp_path, steps=9, tokens_per_step=100, n_done=lambda: done, period_s=0.005, log=lines.append, log_every_s=0.05
    )
    with writer:
        time.sleep(0.1)
        assert not lines
        done = 4
        while not lines:
            time.sleep(0.005)
        time.sleep(0.1)
    assert len(lines) == 1
    assert re.fullmatch(r"step 4 of 9, [\d,]+ tokens/s", lines[0])


def test_progress_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    with ProgressWriter(tmp_path / "gone", steps=1, tokens_per_step=1, n_done=lambda: 0, period_s=0.01):
        pass
    assert list(tmp_path.iterdir()) == []
