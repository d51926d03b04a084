from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.axis import AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention
from sweep.core.encoding.record import RecordError
from sweep.core.grids.grid import Grid, Rejection, expand
from sweep.core.grids.series import Envelope, SeriesKind, SeriesSpec, key_axes
from sweep.core.records.sweep_file import PinError, SweepFile, extended
from sweep.core.settings.policy import Policy
from tests.fakes import TINY

PATIENT = Policy(
    canary=False,
    bad_node_after=1,
    bad_node_expiry_h=2.0,
    outcomes={**OUTCOME_RULES, Outcome.NODE_FAIL: replace(OUTCOME_RULES[Outcome.NODE_FAIL], max_retries=0)},
)
WEAK = SeriesSpec(kind=SeriesKind.WEAK, baseline={"nodes": 1})


def sweep_file(*, exclude: Sequence[str] = (), series: SeriesSpec = WEAK, **axes: object) -> SweepFile:
    """The file of a small grid; ``trainer__lr`` stands for ``trainer.lr``."""
    given = {name.replace("__", "."): value if isinstance(value, tuple) else (value,) for name, value in axes.items()}
    whole: dict[str, tuple[AxisValue, ...]] = {
        "nodes": (1, 2),
        "gpus_per_node": (2,),
        "device": ("cpu",),
        "model": ("tiny",),
        "seq_len": (32,),
        "sequences_per_gpu": (2,),
        **given,
    }
    grid = Grid(
        name="weak", batch_kind=BatchKind.SEQUENCES_PER_GPU, axes=whole, models={"tiny": TINY}, exclude=tuple(exclude)
    )
    found = expand(grid)
    return SweepFile(
        grid="weak",
        cluster="local",
        scale="laptop",
        batch_kind=grid.batch_kind,
        repeats=1,
        series=series,
        flop_convention=FlopConvention.PALM_FULL,
        devices={"cpu": Device(name="cpu", type="cpu", match=("EPYC",), peak_tflops={"fp32": 1.5}, memory_gib=8.0)},
        cells=found.cells,
        points=found.points,
        rejections=found.rejections,
        predictions={next(iter(found.cells)): 0.25},
    )


def column(content: SweepFile, *names: str) -> list[tuple[AxisValue, ...]]:
    return [tuple(point.axes[name] for name in names) for point in content.points]


# --- the file


@pytest.mark.parametrize(
    "content",
    [
        sweep_file(),
        sweep_file(exclude=["nodes == 2"], micro_batch=(None, 2), trainer__lr=(1e-3, 1e-4)),
        sweep_file(series=SeriesSpec(kind=SeriesKind.STRONG, envelope=Envelope.BEST, by=("model",))),
        replace(sweep_file(), predictions={}),
        replace(sweep_file(), policy=replace(PATIENT, budget_gpu_hours=12.5), own_name="frontier"),
    ],
    ids=["plain", "rejections", "series", "no predictions", "policy"],
)
def test_a_sweep_survives_its_file(content: SweepFile) -> None:
    assert SweepFile.parse(content.render()) == content


def test_files_from_before_there_was_a_budget_or_a_policy_in_them_are_read() -> None:
    data = json.loads(sweep_file().render())
    for name in ("policy", "own_name"):
        del data[name]
    assert SweepFile.parse(json.dumps(data)) == sweep_file()
    budget = SweepFile.parse(json.dumps({**data, "budget_gpu_hours": 2.5})).policy.budget_gpu_hours
    assert budget == 2.5


def test_of_a_policy_that_another_version_wrote_what_is_known_is_read() -> None:
    data = json.loads(replace(sweep_file(), policy=PATIENT).render())
    data["policy"]["of_tomorrow"] = 1
    del data["policy"]["pause_after"], data["policy"]["outcomes"]["LOST"]
    assert SweepFile.parse(json.dumps(data)).policy == PATIENT
    data["policy"]["canary"] = "maybe"
    with pytest.raises(RecordError, match=r"policy\.canary"):
        SweepFile.parse(json.dumps(data))


def test_each_cell_point_and_rejection_is_one_line() -> None:
    content = sweep_file(nodes=(1, 2, 4), exclude=["nodes == 4"])
    lines = content.render().splitlines()
    assert sum('"axes"' in line for line in lines) == 3
    assert sum(any(name in line[:24] for name in content.cells) for line in lines) >= 2


SIZES = {"nodes": 1, "gpus_per_node": 8, "seq_len": 32, "sequences_per_gpu": "1/2"}
WRONG_SIZES: list[dict[str, object]] = [{"nodes": "two"}, {"seq_len": None}, {"sequences_per_gpu": "many"}]
WRONG_SIZES += [{"sequences_per_gpu": 0}, {"sequences_per_gpu": None}]


def test_the_sizes_of_a_rejection_are_read() -> None:
    found = SweepFile.parse(_damaged(rejections=[{"axes": SIZES, "rule": "r", "reason": ""}]))
    assert found.rejections[0].axes == SIZES


def _damaged(**change: object) -> str:
    return json.dumps({**json.loads(sweep_file().render()), **change})


POINT = {"axes": {"nodes": 1}, "cell": "0" * 16}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        _damaged(schema=2),
        _damaged(kind="result"),
        _damaged(grid=5),
        _damaged(repeats="many"),
        _damaged(batch_kind="whatever"),
        _damaged(flop_convention=None),
        _damaged(series=[]),
        _damaged(series={"kind": "sideways", "baseline": {}, "envelope": None, "by": None}),
        _damaged(series={"kind": "weak"}),
        _damaged(devices={"cpu": {"name": "cpu"}}),
        _damaged(devices={"cpu": {"name": "cpu", "type": "abacus"}}),
        _damaged(cells=[]),
        _damaged(cells={"0" * 16: {}}),
        _damaged(points={}),
        _damaged(points=[POINT]),
        _damaged(points=[{"axes": 5, "cell": "x"}]),
        _damaged(points=[{"axes": {"nodes": [1]}, "cell": "x"}]),
        _damaged(rejections=[{"axes": {"nodes": 1}, "rule": "r"}]),
        *(_damaged(rejections=[{"axes": {**SIZES, **wrong}, "rule": "r", "reason": ""}]) for wrong in WRONG_SIZES),
        _damaged(predictions={"c": "soon"}),
    ],
    ids=lambda text: "",
)
def test_a_damaged_sweep_is_refused(text: str) -> None:
    if text == _damaged(points={}):
        text = _damaged(points={"a": 1})
    with pytest.raises(RecordError):
        SweepFile.parse(text)


def test_a_cell_that_was_altered_is_refused() -> None:
    data = json.loads(sweep_file().render())
    next(iter(data["cells"].values()))["seq_len"] = 64
    with pytest.raises(RecordError, match=r"the cell under .* has the id"):
        SweepFile.parse(json.dumps(data))


# --- pins and extension


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": "strong"}, "the run directory holds grid 'weak'; 'strong' was asked for"),
        ({"cluster": "slurm"}, "holds cluster 'local'; 'slurm' was asked for. Give another run_dir"),
        ({"batch_kind": BatchKind.GLOBAL_BATCH}, "holds batch kind"),
    ],
)
def test_a_run_directory_belongs_to_one_grid_on_one_cluster(change: dict[str, object], words: str) -> None:
    old = sweep_file()
    with pytest.raises(PinError, match=words):
        extended(old, replace(old, **change))  # type: ignore[arg-type]  # assembled from keywords


def test_the_same_command_again_changes_nothing() -> None:
    content = sweep_file(exclude=["nodes == 2"])
    assert extended(content, content) == content


def test_more_points_of_the_grid_extend_it() -> None:
    old, new = sweep_file(nodes=(1, 2)), sweep_file(nodes=(2, 4))
    whole = extended(old, new)
    assert column(whole, "nodes") == [(1,), (2,), (4,)]
    assert set(whole.cells) == set(old.cells) | set(new.cells)
    assert whole.predictions == {**old.predictions, **new.predictions}


def test_the_larger_number_of_repeats_is_kept_and_the_newer_way_of_reading() -> None:
    strong = SeriesSpec(kind=SeriesKind.STRONG)
    old, new = replace(sweep_file(), repeats=3), replace(sweep_file(series=strong), repeats=1, scale="paper")
    whole = extended(old, new)
    assert (whole.repeats, whole.series, whole.scale) == (3, strong, "paper")


def test_a_run_that_is_resumed_keeps_the_seed_of_its_order_unless_the_grids_order_is_asked_for() -> None:
    runs = [replace(sweep_file(), order_seed=seed) for seed in (None, 7, 8)]
    kept = {(old.order_seed, new.order_seed): extended(old, new).order_seed for old in runs for new in runs}
    assert kept == {
        (old, new): new if old is None or new is None else old for old in (None, 7, 8) for new in (None, 7, 8)
    }


def test_points_from_before_an_axis_was_varied_had_its_default() -> None:
    old, new = sweep_file(), sweep_file(trainer__lr=(3e-4, 1e-3))
    whole = extended(old, new)
    # The default learning rate is 3e-4: the old points are among the new ones, not beside them.
    assert column(whole, "nodes", "trainer.lr") == [(1, 3e-4), (2, 3e-4), (1, 1e-3), (2, 1e-3)]
    assert key_axes(WEAK, [point.axes for point in whole.points]) == ("trainer.lr",)
    assert {point.cell_id for point in old.points} < {point.cell_id for point in whole.points}


def test_points_that_leave_an_axis_alone_again_have_its_default() -> None:
    whole = extended(sweep_file(trainer__lr=(1e-3,)), sweep_file(nodes=(4,)))
    assert column(whole, "nodes", "trainer.lr") == [(1, 1e-3), (2, 1e-3), (4, 3e-4)]


def test_a_file_from_before_an_axis_existed_is_extended_by_its_default() -> None:
    old = sweep_file()
    points = tuple(
        replace(point, axes={name: value for name, value in point.axes.items() if name != "async_tp"})
        for point in old.points
    )
    whole = extended(replace(old, points=points), sweep_file())
    assert column(whole, "nodes", "async_tp") == [(1, False), (2, False)]


def test_a_combination_that_a_newer_trainer_can_run_is_a_cell_now() -> None:
    new = sweep_file()
    refused = tuple(Rejection(axes=point.axes, rule="trainer_cannot_yet", reason="no") for point in new.points)
    whole = extended(replace(new, points=(), cells={}, rejections=refused), new)
    assert (whole.points, whole.rejections) == (new.points, ())


def test_a_combination_that_turns_out_to_be_impossible_is_a_rejection_now() -> None:
    old = sweep_file()
    refused = tuple(Rejection(axes=point.axes, rule="world_size", reason="no") for point in old.points)
    whole = extended(old, replace(old, points=(), rejections=refused))
    assert (whole.points, whole.rejections) == ((), refused)


def test_a_point_that_was_asked_for_stays_although_a_later_command_leaves_it_out() -> None:
    whole = extended(sweep_file(), sweep_file(exclude=["nodes == 2"]))
    assert column(whole, "nodes") == [(1,), (2,)]
    assert whole.rejections == ()


def test_a_point_that_was_left_out_first_and_is_asked_for_now_is_a_point() -> None:
    whole = extended(sweep_file(exclude=["nodes == 2"]), sweep_file())
    assert column(whole, "nodes") == [(1,), (2,)]
    assert whole.rejections == ()
