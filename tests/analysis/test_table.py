"""Columns and the figures in them: memory, power, MFU, flags, profiles, predictions and repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sweep.core.cells.axes import ALL_AXES
from sweep.core.cells.cell import Cell, Precision, cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention, flops_per_token
from sweep.core.grids.series import SeriesKind
from tests.analysis.factory import TINY, RunDir, row_of, table_of

if TYPE_CHECKING:
    from pathlib import Path

# Written out as the design lists them: renaming a column breaks the readers of every table made so far.
DESIGN = """series, cell, status, reason, source, model, n_params, gpu, nodes, gpus, dp_replicate, dp_shard, tp, pp, cp,
schedule, virtual_stages, micro_batch, grad_accum, global_batch, batch_rule, sequences_per_gpu, seq_len, precision,
compile, activation_checkpointing, reshard_after_forward, async_tp, repeats, baseline, step_time_s, step_time_s_ci_low,
step_time_s_ci_high, tokens_per_s, tokens_per_s_per_gpu, speedup, efficiency, efficiency_ci_low, efficiency_ci_high,
tflops_per_gpu, mfu, flop_convention, peak_tflops, compute_s, comm_s, comm_merged_s, exposed_comm_s, idle_s,
profiled_step_time_s, peak_memory_gib, power_w_per_gpu, tokens_per_j, gpu_hours, throttled, oversubscribed,
predicted_step_time_s, prediction_error, fingerprint, attempt""".replace("\n", " ").split(", ")


def test_the_columns_are_those_of_the_design(tmp_path: Path) -> None:
    assert list(table_of(RunDir(tmp_path)).columns) == [name.strip() for name in DESIGN]


def test_a_varied_axis_that_has_no_column_gets_one_in_front(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path, axes={"nodes": (1,), "device": ("h100", "cpu"), "trainer.lr": (0.1, 0.2), "gpus_per_node": (1, 2)}
    )
    table = table_of(run)
    assert table.columns[:4] == ("gpus_per_node", "device", "trainer.lr", "series")
    row = row_of(table, device="cpu", gpus_per_node=2, **{"trainer.lr": 0.2})
    assert [row[name] for name in table.columns[:3]] == [2, "cpu", 0.2]
    assert row["gpu"] is None


def test_a_setting_of_the_trainer_may_have_a_column_in_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_column = {**ALL_AXES, "trainer.steps": ALL_AXES["trainer.steps"]._replace(column=len(DESIGN))}
    monkeypatch.setattr("analysis.rows.ALL_AXES", with_column)
    run = RunDir(tmp_path, axes={"nodes": (1,), "trainer.steps": (70, 80)})
    assert [row["trainer.steps"] for row in table_of(run).rows] == [70, 80]
    monkeypatch.setattr("analysis.rows.ALL_AXES", {"trainer.seed": ALL_AXES["trainer.seed"]._replace(column=0)})
    assert [row["trainer.seed"] for row in table_of(run).rows] == [1234, 1234], "also where the grid does not name it"


def test_degrees_batches_and_settings_are_the_cells(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        axes={"nodes": (2,), "gpus_per_node": (4,), "sequences_per_gpu": (4,), "micro_batch": (2,)},
    )
    row = table_of(run).rows[0]
    assert {name: row[name] for name in DESIGN[DESIGN.index("model") : DESIGN.index("repeats")] if name != "gpu"} == {
        "model": "tiny",
        "n_params": TINY.n_params,
        "nodes": 2,
        "gpus": 8,
        "dp_replicate": 1,
        "dp_shard": 8,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "schedule": None,
        "virtual_stages": 1,
        "micro_batch": 2,
        "grad_accum": 2,
        "global_batch": 32,
        "batch_rule": "sequences_per_gpu",
        "sequences_per_gpu": 4,
        "seq_len": 128,
        "precision": "bf16",
        "compile": False,
        "activation_checkpointing": "none",
        "reshard_after_forward": False,
        "async_tp": False,
    }


@pytest.mark.parametrize("convention", FlopConvention)
def test_mfu_is_the_named_conventions_flops_over_the_known_peak(tmp_path: Path, convention: FlopConvention) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.change(flop_convention=convention)
    run.measure([0.1] * 20)
    row = table_of(run).rows[0]
    tflops = flops_per_token(TINY, 128, convention) * 2560 / 1e12
    assert row["flop_convention"] == convention
    assert row.number("tflops_per_gpu") == pytest.approx(tflops)
    assert row["peak_tflops"] == 989.0
    assert row.number("mfu") == pytest.approx(tflops / 989.0)


NO_MFU = {
    "another device than the profile's": {"device_name": "NVIDIA A100-SXM4-80GB"},
    "another type of device": {"device_type": "cpu"},
}


@pytest.mark.parametrize("changes", NO_MFU.values(), ids=NO_MFU.keys())
def test_a_device_that_is_not_of_the_cells_kind_has_no_mfu_and_is_noted(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 20, **changes)
    table = table_of(run)
    row = table.rows[0]
    assert (row["mfu"], row["peak_tflops"]) == (None, None)
    assert row["tflops_per_gpu"] is not None
    assert any("a reported device that is not of the kind" in note for note in table.notes)


def test_one_repeat_on_another_device_leaves_the_mfu_blank(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=2)
    run.measure([0.1] * 20)
    run.measure([0.1] * 20, repeat=2, device_name="NVIDIA A100-SXM4-80GB")
    row = table_of(run).rows[0]
    assert row["mfu"] is None
    assert row["gpu"] == "NVIDIA H100 80GB HBM3;NVIDIA A100-SXM4-80GB"


def test_a_profile_that_any_device_matches_gives_no_mfu(tmp_path: Path) -> None:
    generic = Device(name="h100", type="cuda", peak_tflops={"bf16": 989.0})
    run = RunDir(tmp_path, axes={"nodes": (1,)}, devices=(generic,))
    run.measure([0.1] * 20, device_name="NVIDIA T4")
    assert table_of(run).rows[0]["mfu"] is None


def test_a_cpu_has_no_mfu_and_is_no_mismatch(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,), "device": ("cpu",)})
    run.measure([0.1] * 20, device_type="cpu", device_name="EPYC")
    table = table_of(run)
    assert (table.rows[0]["mfu"], table.rows[0]["gpu"]) == (None, "EPYC")
    assert not any("not of the kind" in note for note in table.notes)


def test_a_device_without_a_profile_gives_no_mfu(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, devices=())
    run.measure([0.1] * 20)
    assert table_of(run).rows[0]["mfu"] is None


def test_float8_is_never_compared_with_a_16_bit_peak(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    (old,) = run.sweep.cells.values()
    cell: Cell = replace(old, precision=Precision.FLOAT8)
    run.change(cells={cell_id(cell): cell}, points=(replace(run.sweep.points[0], cell_id=cell_id(cell)),))
    run.measure([0.1] * 20)
    row = table_of(run).rows[0]
    assert (row["status"], row["precision"], row["mfu"], row["peak_tflops"]) == ("measured", "float8", None, None)


def test_power_and_tokens_per_joule_use_the_windows_whose_energy_is_known(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (2,)}, repeats=3)
    run.measure([0.1] * 20, window_energy_j=2000.0)
    run.measure([0.2] * 20, repeat=2)
    run.measure([0.3] * 20, repeat=3, window_energy_j=4000.0)
    row = table_of(run).rows[0]
    assert row.number("power_w_per_gpu") == pytest.approx(6000 / (2 + 6) / 2)
    assert row.number("tokens_per_j") == pytest.approx(2 * 20 * 512 / 6000)


def test_unknown_energy_memory_and_throttling_are_blank(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 20, peak_memory_bytes=None, throttled=None)
    row = table_of(run).rows[0]
    names = ("power_w_per_gpu", "tokens_per_j", "peak_memory_gib", "throttled")
    assert [row[name] for name in names] == [None] * 4


def test_counters_that_read_nothing_are_unknown(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 20, peak_memory_bytes=0, window_energy_j=0.0)
    row = table_of(run).rows[0]
    assert [row[name] for name in ("power_w_per_gpu", "tokens_per_j", "peak_memory_gib")] == [None] * 3


def test_the_worst_of_the_repeats_is_shown_for_memory_throttling_and_oversubscription(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=3)
    run.measure([0.1] * 20)
    run.measure([0.1] * 20, repeat=2, peak_memory_bytes=3 * 2**30, throttled=True, oversubscribed=True)
    run.measure([0.1] * 20, repeat=3, peak_memory_bytes=None, throttled=None)
    table = table_of(run)
    row = table.rows[0]
    assert (row["peak_memory_gib"], row["throttled"], row["oversubscribed"]) == (3.0, True, True)
    assert any(note.startswith("1 of 1 measured points oversubscribed: more ranks") for note in table.notes)
    assert any(note.startswith("1 of 1 measured points throttled") for note in table.notes)


def test_repeats_are_pooled_and_their_windows_added(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=3)
    run.measure([0.1] * 20)
    run.measure([0.2] * 20, repeat=2)
    run.measure([0.3] * 20, repeat=3)
    row = table_of(run).rows[0]
    assert (row["repeats"], row["step_time_s"], row["reason"]) == (3, 0.2, "")
    assert row.number("tokens_per_s") == pytest.approx(60 * 256 / 12)
    assert str(row["attempt"]).count(";") == 2
    assert row["step_time_s_ci_low"] == pytest.approx(0.1)
    assert row["step_time_s_ci_high"] == pytest.approx(0.3)


def test_throughput_is_over_the_window_from_edge_to_edge_not_over_the_steps(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 20, window_time_s=2.5)
    assert table_of(run).rows[0].number("tokens_per_s") == pytest.approx(20 * 256 / 2.5)


def test_a_cell_without_all_its_repeats_says_which_are_missing(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=2)
    run.measure([0.1] * 20)
    table = table_of(run)
    assert table.rows[0]["status"] == "measured"
    assert table.rows[0]["reason"] == "1 of 2 repeats measured; not run yet"
    assert "1 of 1 measured points without every repeat that was asked for (see their reasons)" in table.notes


def test_too_few_steps_have_no_interval_and_are_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 7)
    table = table_of(run)
    row = table.rows[0]
    assert (row["step_time_s"], row["step_time_s_ci_low"], row["efficiency_ci_low"]) == (0.1, None, None)
    assert row.rate_ci is None
    assert "1 of 1 measured points without an interval: too few steps" in table.notes


def test_a_profile_fills_its_columns_and_values_that_are_no_numbers_are_blank(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=3)
    profile = {"compute_s": 0.05, "comm_s": 0.04, "comm_merged_s": 0.03, "exposed_comm_s": 0.02, "idle_s": True}
    run.measure([0.1] * 20, extra={"profile": profile})
    run.measure([0.1] * 20, repeat=2, extra={"profile": {"compute_s": 0.07, "comm_s": "?"}})
    run.measure([0.1] * 20, repeat=3, extra={"profile": 4})
    row = table_of(run).rows[0]
    names = ("compute_s", "comm_s", "comm_merged_s", "exposed_comm_s", "idle_s", "profiled_step_time_s")
    assert [row[name] for name in names] == [pytest.approx(0.06), 0.04, 0.03, 0.02, None, None]


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2)})
    run.change(predictions={run.cell_id(nodes=1): 0.12, run.cell_id(nodes=2): 0.15})
    run.measure([0.1] * 20, axes={"nodes": 1})
    table = table_of(run)
    first, second = (row_of(table, nodes=nodes) for nodes in (1, 2))
    assert first.number("prediction_error") == pytest.approx(0.2)
    assert (second["predicted_step_time_s"], second["prediction_error"]) == (0.15, None)


def test_rows_are_ordered_by_series_then_gpus_rejections_included(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG, axes={"nodes": (16, 4, 1), "model": ("tiny", "small")})
    table = table_of(run)
    assert [(row["model"], row["gpus"]) for row in table.rows] == [
        (model, gpus) for model in ("tiny", "small") for gpus in (1, 4, 16)
    ]


def test_two_points_that_are_one_cell_are_two_rows_and_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "dp_shard": ("auto", 1)})
    run.measure([0.1] * 20, axes={"nodes": 1})
    table = table_of(run)
    assert [row["status"] for row in table.rows if row["gpus"] == 1] == ["measured", "measured"]
    assert "1 cells stand for more than one grid point each" in table.notes


def test_provenance_names_sources_devices_fingerprints_and_the_newest_result(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert table_of(run).provenance.newest == ""
    run.measure([0.1] * 20, axes={"nodes": 1}, ended_at=1_700_000_000.0)
    run.measure([0.1] * 20, axes={"nodes": 2}, ended_at=1_700_003_600.0)
    origin = table_of(run).provenance
    assert origin.newest == "2023-11-14 23:13 UTC"
    assert (origin.sources, origin.devices) == (("measured",), ("NVIDIA H100 80GB HBM3",))
    assert list(origin.fingerprints) == ["f1"]
