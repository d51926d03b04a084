from __future__ import annotations

import pytest

from sweep.core.cells.axis import AxisValue
from sweep.core.grids.series import (
    Envelope,
    SeriesKind,
    SeriesSpec,
    is_baseline,
    key_axes,
    key_of,
    label_of,
    varied_axes,
)

WEAK = SeriesSpec(kind=SeriesKind.WEAK)


def points(*rows: dict[str, AxisValue], **same: AxisValue) -> list[dict[str, AxisValue]]:
    return [{"gpus_per_node": 8, "dp_shard": "auto", "tp": 1, **same, **row} for row in rows]


def test_axes_with_more_than_one_value_are_varied_in_the_order_of_tables() -> None:
    found = varied_axes(points({"trainer.lr": 1.0, "model": "a", "nodes": 1}, {"trainer.lr": 2.0, "model": "b"}))
    assert found == ("model", "trainer.lr")
    assert varied_axes([]) == ()


def test_settings_of_the_trainer_come_last_by_name() -> None:
    found = varied_axes(
        [{"trainer.seed": 1, "trainer.lr": 1.0, "cp": 1}, {"trainer.seed": 2, "trainer.lr": 2.0, "cp": 2}]
    )
    assert found == ("cp", "trainer.lr", "trainer.seed")


def test_every_varied_axis_but_the_number_of_gpus_tells_series_apart() -> None:
    found = points({"nodes": 1, "tp": 1, "model": "a"}, {"nodes": 2, "tp": 2, "model": "b"})
    assert key_axes(WEAK, found) == ("model", "tp")
    assert key_axes(SeriesSpec(kind=SeriesKind.STRONG), found) == ("model", "tp")


def test_nodes_of_different_sizes_are_one_series() -> None:
    assert key_axes(WEAK, points({"nodes": 1, "gpus_per_node": 4}, {"nodes": 2, "gpus_per_node": 8})) == ()


def test_a_degree_that_is_auto_follows_from_the_others_and_tells_nothing_apart() -> None:
    assert key_axes(WEAK, points({"dp_shard": "auto"}, {"dp_shard": 4}, {"dp_shard": 8})) == ()
    assert key_axes(WEAK, points({"dp_shard": 4}, {"dp_shard": 8})) == ("dp_shard",)


def test_under_an_envelope_the_layout_is_what_is_chosen() -> None:
    best = SeriesSpec(kind=SeriesKind.STRONG, envelope=Envelope.BEST)
    found = points(
        {"tp": 1, "pp": 1, "schedule": None, "micro_batch": None, "reshard_after_forward": False, "model": "a"},
        {"tp": 2, "pp": 2, "schedule": "1f1b", "micro_batch": 1, "reshard_after_forward": True, "model": "b"},
    )
    assert key_axes(best, found) == ("model",)


def test_series_named_by_hand_are_taken_as_they_are() -> None:
    assert key_axes(SeriesSpec(kind=SeriesKind.WEAK, by=("precision",)), points({"tp": 1}, {"tp": 2})) == ("precision",)


def test_free_points_are_one_series_unless_the_grid_names_axes() -> None:
    assert key_axes(SeriesSpec(kind=SeriesKind.FREE), points({"tp": 1}, {"tp": 2})) == ()
    assert key_axes(SeriesSpec(kind=SeriesKind.FREE, by=("tp",)), points({"tp": 1}, {"tp": 2})) == ("tp",)


def test_a_point_belongs_to_the_series_of_its_values() -> None:
    key = key_of({"model": "llama2_7b", "tp": 2, "nodes": 4}, ("model", "tp"))
    assert key == (("model", "llama2_7b"), ("tp", 2))
    assert key_of({}, ("tp",)) == (("tp", None),)


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ((("model", "llama2_7b"), ("tp", 2)), "model=llama2_7b, tp=2"),
        ((("micro_batch", None),), "micro_batch=none"),
        ((("compile", False),), "compile=False"),
        ((), "all"),
    ],
)
def test_a_series_has_a_label(key: tuple[tuple[str, AxisValue], ...], label: str) -> None:
    assert label_of(key) == label


def test_the_baseline_is_the_point_with_all_its_values() -> None:
    spec = SeriesSpec(kind=SeriesKind.WEAK, baseline={"nodes": 1, "tp": 1})
    assert is_baseline({"nodes": 1, "tp": 1, "model": "x"}, spec)
    assert not is_baseline({"nodes": 1, "tp": 2}, spec)
    assert not is_baseline({"nodes": 1}, spec)


def test_a_grid_without_a_named_baseline_has_none() -> None:
    assert not is_baseline({"nodes": 1}, WEAK)
