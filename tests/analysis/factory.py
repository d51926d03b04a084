"""Builds run directories for tests out of the record classes, never out of hand-written JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.load import load
from analysis.table import build
from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.ledger import Ended, Event, Reserved, Submitted, render_event
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention, ModelShape
from sweep.core.grids.grid import Grid, expand
from sweep.core.grids.series import SeriesKind, SeriesSpec
from sweep.core.records.attempt_record import AttemptFile, render_error
from sweep.core.records.layout import (
    LEDGER_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    STEPS_FILE,
    SWEEP_FILE,
    attempt_dir,
    rank_error,
    restart_dir,
)
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from analysis.rows import Row
    from analysis.table import Table
    from sweep.core.attempts.attempt import RankError
    from sweep.core.cells.axis import AxisValue

TINY = ModelShape(name="tiny", n_layers=2, hidden=64, n_heads=4, n_kv_heads=4, ffn_hidden=128, vocab_size=256)
SMALL = ModelShape(name="small", n_layers=4, hidden=64, n_heads=4, n_kv_heads=4, ffn_hidden=128, vocab_size=256)
H100 = Device(name="h100", type="cuda", match=("H100",), peak_tflops={"bf16": 989.0, "fp32": 67.0})
CPU = Device(name="cpu", type="cpu")
STARTED = 1_700_000_000.0


def submission_name(key: AttemptKey) -> str:
    """The submission of an attempt that goes out alone."""
    return f"s-{key}".replace("/", "-")


class RunDir:
    """A run directory under construction.

    Attributes:
        path: Where it is.
        sweep: What it is for; :meth:`save` writes it.
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: SeriesKind = SeriesKind.WEAK,
        axes: Mapping[str, Sequence[AxisValue]] | None = None,
        baseline: Mapping[str, AxisValue] | None = None,
        repeats: int = 1,
        devices: Sequence[Device] = (H100, CPU),
        series: Mapping[str, Any] | None = None,
        exclude: Sequence[str] = (),
        zips: Sequence[Mapping[str, tuple[AxisValue, ...]]] = (),
        grid: str = "demo",
    ) -> None:
        self.path = path
        batch_kind = BatchKind.GLOBAL_BATCH if kind is SeriesKind.STRONG else BatchKind.SEQUENCES_PER_GPU
        values: dict[str, Sequence[AxisValue]] = {
            "nodes": (1, 2, 4),
            "gpus_per_node": (1,),
            "device": ("h100",),
            "model": ("tiny",),
            "seq_len": (128,),
            batch_kind: (8,) if kind is SeriesKind.STRONG else (2,),
        }
        values.update(axes or {})
        for group in zips:
            for name in group:
                values.pop(name, None)
        expansion = expand(
            Grid(
                name=grid,
                batch_kind=batch_kind,
                axes={name: tuple(found) for name, found in values.items()},
                models={"tiny": TINY, "small": SMALL},
                exclude=tuple(exclude),
                zips=tuple(zips),
            )
        )
        self.sweep = SweepFile(
            grid=grid,
            cluster="local",
            scale="laptop",
            batch_kind=batch_kind,
            repeats=repeats,
            series=SeriesSpec(kind=kind, baseline={"nodes": 1} if baseline is None else baseline, **(series or {})),
            flop_convention=FlopConvention.PALM_FULL,
            devices={device.name: device for device in devices},
            cells=expansion.cells,
            points=expansion.points,
            rejections=expansion.rejections,
        )
        self.events: list[Event] = []
        self.save()

    def save(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / SWEEP_FILE).write_text(self.sweep.render())
        (self.path / LEDGER_FILE).write_text("".join(render_event(event) + "\n" for event in self.events))

    def change(self, **changes: Any) -> None:
        self.sweep = replace(self.sweep, **changes)
        self.save()

    def cell_id(self, **axes: AxisValue) -> str:
        """The id of the only point with these axis values."""
        (found,) = {
            point.cell_id
            for point in self.sweep.points
            if all(point.axes[name] == value for name, value in axes.items())
        }
        return found

    def key(self, *, repeat: int = 1, attempt: int = 1, **axes: AxisValue) -> AttemptKey:
        """The key of an attempt at the only cell with these axis values."""
        return AttemptKey(cell_id=self.cell_id(**axes), repeat=repeat, attempt=attempt)

    def folder(self, key: AttemptKey, restart: int = 0) -> Path:
        path = self.path / restart_dir(attempt_dir(key), restart)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def submit(self, key: AttemptKey, *, job: str | None = "17") -> None:
        """Ledger lines of an attempt that is in flight."""
        name = submission_name(key)
        gpus = self.sweep.cells[key.cell_id].gpus
        self.events.append(Reserved(time=STARTED, submission=name, tasks=(key,), gpu_hours=1.0, gpus=gpus))
        if job is not None:
            self.events.append(Submitted(time=STARTED, submission=name, jobs=(job,)))
        self.save()

    def end(self, key: AttemptKey, outcome: Outcome, *, reason: str = "", gpu_seconds: float | None = 3600.0) -> None:
        """Ledger lines of an attempt that is over."""
        self.submit(key)
        self.events.append(Ended(time=STARTED + 60, key=key, outcome=outcome, reason=reason, gpu_seconds=gpu_seconds))
        self.save()

    def measure(
        self,
        step_times_s: Sequence[float],
        *,
        repeat: int = 1,
        attempt: int = 1,
        restart: int = 0,
        in_ledger: bool = True,
        axes: Mapping[str, AxisValue] | None = None,
        warmup: Sequence[float] = (9.0,),
        **changes: Any,
    ) -> Path:
        """A finished attempt of the cell with these axis values; its folder."""
        key = AttemptKey(cell_id=self.cell_id(**(axes or {})), repeat=repeat, attempt=attempt)
        folder = self.folder(key, restart)
        result = make_result(key, self.sweep.cells[key.cell_id], step_times_s, restart=restart, **changes)
        (folder / RESULT_FILE).write_text(result.render())
        (folder / STEPS_FILE).write_text(render_steps(self.sweep.cells[key.cell_id], step_times_s, warmup))
        if in_ledger:
            self.end(key, Outcome.SUCCEEDED)
        return folder

    def launch(self, key: AttemptKey, *, restart: int = 0, **changes: Any) -> None:
        values: dict[str, Any] = {"job_id": "17", "hosts": ("a",), "pid": 1, "started_at": STARTED} | changes
        launch = AttemptFile(key=key, restart=restart, **values)
        (self.folder(key, restart) / "attempt.json").write_text(launch.render())

    def progress(self, key: AttemptKey, *, step: int, steps: int) -> None:
        progress = Progress(step=step, steps=steps, time=STARTED, tokens_per_s=None)
        (self.folder(key) / PROGRESS_FILE).write_text(progress.render())

    def error(self, key: AttemptKey, error: RankError) -> None:
        (self.folder(key) / rank_error(error.rank or 0)).write_text(render_error(error))


def make_result(key: AttemptKey, cell: Cell, step_times_s: Sequence[float], **changes: Any) -> Result:
    """A result whose window is these steps from edge to edge."""
    fields = {"torch": "2.9", "device_name": "NVIDIA H100 80GB HBM3"}
    values: dict[str, Any] = {
        "restart": 0,
        "started_at": STARTED,
        "ended_at": STARTED + 60,
        "world_size": cell.gpus,
        "hosts": ("a",),
        "device_type": "cuda",
        "device_name": "NVIDIA H100 80GB HBM3",
        "n_params": cell.model.n_params,
        "steps": len(step_times_s) + 1,
        "warmup_steps": 1,
        "window_steps": len(step_times_s),
        "window_tokens": len(step_times_s) * cell.tokens_per_step,
        "window_time_s": sum(step_times_s),
        "window_energy_j": None,
        "power_source": "",
        "peak_memory_bytes": 2**31,
        "peak_reserved_bytes": None,
        "throttled": False,
        "throttle_reasons": (),
        "oversubscribed": False,
        "final_loss": 5.0,
        "fingerprint": "f1",
        "fingerprint_fields": fields,
    }
    return Result(key=key, **(values | changes))


def render_steps(cell: Cell, step_times_s: Sequence[float], warmup: Sequence[float] = (9.0,)) -> str:
    steps = [
        Step(
            step=number,
            step_time_s=time_s,
            tokens=cell.tokens_per_step,
            loss=5.0,
            grad_norm=None,
            is_warmup=number < len(warmup),
        )
        for number, time_s in enumerate([*warmup, *step_times_s])
    ]
    return "".join(step.render() for step in steps)


def table_of(run: RunDir, **options: bool) -> Table:
    """The table that analysis makes of it."""
    return build(load(run.path), **options)


def row_of(table: Table, **axes: AxisValue) -> Row:
    """The only row with these axis values."""
    (found,) = [row for row in table.rows if all(row.axes[name] == value for name, value in axes.items())]
    return found
