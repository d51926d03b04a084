"""Speed-up and efficiency, by hand: weak, strong, free, envelopes, missing baselines and what must not be mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.grids.series import Envelope, SeriesKind
from tests.analysis.factory import RunDir, row_of, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_an_interval_wholly_above_ideal_is_noted_but_not_where_configurations_are_compared(
    tmp_path: Path,
) -> None:
    for kind, is_noted in ((SeriesKind.WEAK, True), (SeriesKind.FREE, False)):
        run = RunDir(tmp_path / kind, kind=kind)
        run.measure([0.2] * 20, axes={"nodes": 1})
        run.measure([0.1] * 20, axes={"nodes": 2})
        note = "1 of 2 measured points above 100 % efficiency with their whole interval: was the baseline disturbed?"
        assert (note in table_of(run).notes) == is_noted


def numbers(row: Any, *names: str) -> list[float | None]:
    return [row.number(name) for name in names]


def test_weak_scaling_by_hand(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for nodes, time_s in ((1, 0.1), (2, 0.125), (4, 0.2)):
        run.measure([time_s] * 20, axes={"nodes": nodes})
    table = table_of(run)
    # 2 sequences of 128 tokens a GPU: 256 tokens / 0.1 s; 512 / 0.125; 1024 / 0.2.
    rows = [row_of(table, nodes=nodes) for nodes in (1, 2, 4)]
    assert [row.number("tokens_per_s") for row in rows] == pytest.approx([2560, 4096, 5120])
    assert [row.number("tokens_per_s_per_gpu") for row in rows] == pytest.approx([2560, 2048, 1280])
    assert [row.number("speedup") for row in rows] == pytest.approx([1, 1.6, 2.0])
    assert [row.number("efficiency") for row in rows] == pytest.approx([1, 0.8, 0.5])
    assert [row.number("step_time_s") for row in rows] == [0.1, 0.125, 0.2]
    assert {row["baseline"] for row in rows} == {run.cell_id(nodes=1)}
    assert [row.is_baseline for row in rows] == [True, False, False]
    assert not table.refused


def test_strong_scaling_by_hand_compares_median_steps(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG)
    run.measure([0.8] * 20, axes={"nodes": 1})
    run.measure([0.5] * 20, axes={"nodes": 2})
    # One straggling step: the median stays, tokens/s does not.
    run.measure([0.4] * 19 + [4.0], axes={"nodes": 4})
    table = table_of(run)
    rows = [row_of(table, nodes=nodes) for nodes in (1, 2, 4)]
    assert [row.number("speedup") for row in rows] == pytest.approx([1, 1.6, 2.0])
    assert [row.number("efficiency") for row in rows] == pytest.approx([1, 0.8, 0.5])
    assert rows[2].number("tokens_per_s") == pytest.approx(20 * 8 * 128 / 11.6)


def test_weak_scaling_counts_stragglers(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.1] * 19 + [2.1], axes={"nodes": 2})
    row = row_of(table_of(run), nodes=2)
    assert row.number("efficiency") == pytest.approx(2.0 / 4.0)


def test_free_comparison_by_hand(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.FREE,
        axes={"nodes": (1, 2), "precision": ("bf16", "fp32")},
        baseline={"nodes": 1, "precision": "bf16"},
    )
    for point in run.sweep.points:
        time_s = 0.1 if point.axes["precision"] == "bf16" else 0.4
        run.measure([time_s] * 20, axes=point.axes)
    table = table_of(run)
    slow = row_of(table, nodes=2, precision="fp32")
    assert numbers(slow, "speedup", "efficiency") == pytest.approx([0.5, 0.25])
    assert {row["series"] for row in table.rows} == {"all"}


def test_the_efficiency_interval_covers_the_variation_of_both_cells_and_the_baseline_has_no_width(
    tmp_path: Path,
) -> None:
    wobble = [0.1 + 0.001 * (k * 7 % 5) for k in range(50)]
    run = RunDir(tmp_path)
    run.measure(wobble, axes={"nodes": 1})
    run.measure([0.2] * 50, axes={"nodes": 2})
    run.measure([2 * value for value in reversed(wobble)], axes={"nodes": 4})
    table = table_of(run)
    base, steady, shaky = (row_of(table, nodes=nodes) for nodes in (1, 2, 4))
    assert numbers(base, "efficiency_ci_low", "efficiency_ci_high") == [1, 1]
    widths = []
    for row in (steady, shaky):
        low, efficiency, high = numbers(row, "efficiency_ci_low", "efficiency", "efficiency_ci_high")
        assert low is not None
        assert efficiency is not None
        assert high is not None
        assert low < efficiency < high
        widths.append((high - low) / efficiency)
    assert widths[0] < widths[1]


def test_strong_efficiency_interval_is_around_the_efficiency(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG)
    for nodes in (1, 2):
        run.measure([0.8 / nodes + 0.01 * (k * 7 % 5) for k in range(50)], axes={"nodes": nodes})
    row = row_of(table_of(run), nodes=2)
    low, value, high = numbers(row, "efficiency_ci_low", "efficiency", "efficiency_ci_high")
    assert 0.9 < (low or 0) <= (value or 0) <= (high or 0) < 1.0


def test_each_series_has_its_own_baseline(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "model": ("tiny", "small")})
    for model, first, second in (("tiny", 0.1, 0.2), ("small", 0.3, 0.3)):
        run.measure([first] * 20, axes={"nodes": 1, "model": model})
        run.measure([second] * 20, axes={"nodes": 2, "model": model})
    table = table_of(run)
    assert row_of(table, nodes=2, model="tiny").number("efficiency") == pytest.approx(0.5)
    assert row_of(table, nodes=2, model="small").number("efficiency") == pytest.approx(1.0)
    assert [row["series"] for row in table.rows] == ["model=tiny"] * 2 + ["model=small"] * 2


def test_envelope_compares_only_the_best_layout_at_each_number_of_gpus(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.STRONG,
        axes={"nodes": (1, 2), "reshard_after_forward": (True, False)},
        series={"envelope": Envelope.BEST},
    )
    times = {(1, True): 0.8, (1, False): 0.6, (2, True): 0.4, (2, False): 0.5}
    for (nodes, reshard), time_s in times.items():
        run.measure([time_s] * 20, axes={"nodes": nodes, "reshard_after_forward": reshard})
    table = table_of(run)
    best, other = (row_of(table, nodes=2, reshard_after_forward=value) for value in (True, False))
    assert best["baseline"] == run.cell_id(nodes=1, reshard_after_forward=False)
    assert best.number("speedup") == pytest.approx(1.5)
    assert best.number("efficiency") == pytest.approx(0.75)
    assert other["speedup"] is None
    assert other["status"] == "measured"
    assert other["reason"] == "not the best layout at 2 GPUs"
    assert row_of(table, nodes=1, reshard_after_forward=True)["reason"] == "not the best layout at 1 GPU"
    assert not other.is_chosen


def test_envelope_never_chooses_a_layout_without_step_times(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.STRONG,
        axes={"nodes": (1,), "reshard_after_forward": (True, False)},
        series={"envelope": Envelope.BEST},
    )
    folder = run.measure([0.1] * 20, axes={"reshard_after_forward": True})
    (folder / "steps.jsonl").unlink()
    run.measure([0.2] * 20, axes={"reshard_after_forward": False})
    assert row_of(table_of(run), reshard_after_forward=False).number("speedup") == 1


def test_no_named_baseline_leaves_speedup_blank_and_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path, baseline={})
    run.measure([0.1] * 20, axes={"nodes": 1})
    table = table_of(run)
    assert row_of(table, nodes=1)["speedup"] is None
    assert row_of(table, nodes=1)["baseline"] is None
    assert "series all: no baseline is named, so there is no speed-up or efficiency" in table.notes


def test_a_baseline_outside_the_grid_is_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path, baseline={"nodes": 16})
    run.measure([0.1] * 20, axes={"nodes": 1})
    table = table_of(run)
    assert row_of(table, nodes=1)["efficiency"] is None
    assert any("the baseline (nodes=16) is not in the grid" in note for note in table.notes)


def test_a_baseline_without_a_measurement_is_noted_and_the_rest_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.end(run.key(nodes=1), Outcome.OOM_DEVICE)
    run.measure([0.1] * 20, axes={"nodes": 2})
    table = table_of(run)
    row = row_of(table, nodes=2)
    assert row["speedup"] is None
    assert row.number("tokens_per_s") == pytest.approx(5120)
    assert any("the baseline (nodes=1) was not measured" in note for note in table.notes)


def test_a_baseline_that_two_cells_match_is_no_baseline(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path, kind=SeriesKind.FREE, axes={"nodes": (1,), "precision": ("bf16", "fp32")}, baseline={"nodes": 1}
    )
    for precision in ("bf16", "fp32"):
        run.measure([0.1] * 20, axes={"precision": precision})
    table = table_of(run)
    assert all(row["speedup"] is None for row in table.rows)
    assert any("2 cells meet the baseline (nodes=1); name more axes" in note for note in table.notes)


def test_cells_that_do_other_work_than_the_baseline_are_not_called_weak_or_strong(tmp_path: Path) -> None:
    for kind, word in ((SeriesKind.WEAK, "weak"), (SeriesKind.STRONG, "strong")):
        run = RunDir(
            tmp_path / word,
            kind=kind,
            axes={"nodes": (1, 2), "seq_len": (128, 256)},
            baseline={"nodes": 1, "seq_len": 128},
            series={"by": ()},
        )
        for point in run.sweep.points:
            run.measure([0.1] * 20, axes=point.axes)
        table = table_of(run)
        assert row_of(table, nodes=2, seq_len=128)["speedup"] is not None
        other = row_of(table, nodes=2, seq_len=256)
        assert other["speedup"] is None
        assert str(other["reason"]).startswith(f"not {word} scaling")


def test_without_readable_steps_strong_scaling_is_blank_with_the_reason(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG)
    run.measure([0.8] * 20, axes={"nodes": 1})
    (run.measure([0.4] * 20, axes={"nodes": 2}) / "steps.jsonl").unlink()
    row = row_of(table_of(run), nodes=2)
    assert row["speedup"] is None
    assert "no step time to compare" in str(row["reason"])
    assert row.number("tokens_per_s") == pytest.approx(8 * 128 / 0.4)


def test_a_baseline_without_readable_steps_is_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG)
    (run.measure([0.8] * 20, axes={"nodes": 1}) / "steps.jsonl").unlink()
    run.measure([0.4] * 20, axes={"nodes": 2})
    assert "the baseline has no step time to compare with" in str(row_of(table_of(run), nodes=2)["reason"])


def two_fingerprints(path: Path) -> RunDir:
    run = RunDir(path)
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure(
        [0.2] * 20,
        axes={"nodes": 2},
        fingerprint="f2",
        fingerprint_fields={"torch": "2.10", "device_name": "NVIDIA H100 80GB HBM3"},
    )
    return run


def test_two_fingerprints_in_one_series_are_refused_and_nothing_measured_is_lost(tmp_path: Path) -> None:
    table = table_of(two_fingerprints(tmp_path))
    row = row_of(table, nodes=2)
    assert table.refused
    assert row["speedup"] is None
    assert row["baseline"] is None
    assert row.number("tokens_per_s") == pytest.approx(2560)
    assert row["fingerprint"] == "f2"
    (refusal,) = [warning for warning in table.warnings if "fingerprints" in warning]
    assert "differ in torch (2.9 / 2.10);" in refusal
    assert "device_name" not in refusal
    assert refusal in table.notes


def test_two_fingerprints_are_compared_where_it_is_asked_for_and_noted(tmp_path: Path) -> None:
    table = table_of(two_fingerprints(tmp_path), mix_fingerprints=True)
    assert not table.refused
    assert row_of(table, nodes=2).number("efficiency") == pytest.approx(0.5)
    assert any("compared because it was asked for" in note for note in table.notes)


def test_fingerprints_whose_fields_were_not_recorded_are_refused_too(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, fingerprint_fields={})
    run.measure([0.1] * 20, axes={"nodes": 2}, fingerprint="f2", fingerprint_fields={})
    table = table_of(run)
    assert table.refused
    assert any("fields that were not recorded" in note for note in table.notes)


def test_repeats_of_one_cell_with_two_fingerprints_are_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path, repeats=2)
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.1] * 20, axes={"nodes": 1}, repeat=2, fingerprint="f2")
    table = table_of(run)
    assert table.refused
    assert row_of(table, nodes=1)["fingerprint"] == "f1;f2"


@pytest.mark.parametrize("mix", [False, True])
def test_measured_and_simulated_are_never_compared(tmp_path: Path, mix: bool) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.2] * 20, axes={"nodes": 2}, source="simulated")
    table = table_of(run, mix_fingerprints=mix)
    assert table.refused
    assert [row["source"] for row in table.rows] == ["measured", "simulated", None]
    assert all(row["speedup"] is None for row in table.rows)
    assert any("mixes the sources measured, simulated" in note for note in table.notes)


def test_a_refused_series_does_not_keep_another_from_being_compared(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "model": ("tiny", "small")})
    for model in ("tiny", "small"):
        for nodes in (1, 2):
            fingerprint = "f2" if model == "tiny" and nodes == 2 else "f1"
            run.measure([0.1] * 20, axes={"nodes": nodes, "model": model}, fingerprint=fingerprint)
    table = table_of(run)
    assert table.refused
    assert row_of(table, nodes=2, model="tiny")["speedup"] is None
    assert row_of(table, nodes=2, model="small").number("speedup") == pytest.approx(2)
