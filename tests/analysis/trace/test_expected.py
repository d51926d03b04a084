"""The reference traces, with the values that others computed of them; they lie beside the checkout."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from analysis.trace.__main__ import main
from analysis.trace.join import join
from analysis.trace.reduce import reduce_trace

TRACES = Path(__file__).parents[4] / "shared" / "traces"
OWN_SCOPES = ("all_exact", "cpu_gloo")
TEXT = ("file", "scope", "source")
RANKS_OF_DLRM = 8

HAS_TRACES = (TRACES / "expected.csv").is_file()

pytestmark = pytest.mark.skipif(not HAS_TRACES, reason="no reference traces beside the checkout")


def expected() -> list[dict[str, str]]:
    if not HAS_TRACES:
        return []
    with (TRACES / "expected.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["scope"] in OWN_SCOPES]


@pytest.mark.parametrize("row", expected(), ids=lambda row: row["file"])
def test_every_reference_value_is_met_to_the_nanosecond(
    row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(TRACES / row["file"]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["scope"]) == (row["file"], row["scope"])
    for key, text in row.items():
        if key == "overlap_pct":  # given to three decimals, of which the last is one too many for one file
            assert found[key] == pytest.approx(float(text), abs=1e-3)
        elif key not in TEXT:
            assert found[key] == (float(text) if text else None), key


@pytest.mark.parametrize("row", expected(), ids=lambda row: row["file"])
def test_the_parts_of_every_step_add_up(row: dict[str, str]) -> None:
    profile = reduce_trace(TRACES / row["file"])
    assert profile.steps
    for times in (profile.whole, *profile.steps):
        assert times.span_ns == times.compute_ns + times.exposed_ns + times.copy_alone_ns + times.idle_ns
        assert times.span_ns > 0
    for at, name in enumerate(("compute_sum_ns", "comm_sum_ns")):
        of_steps = sum(getattr(times, name) for times in profile.steps)
        assert of_steps <= getattr(profile.whole, name), at


def test_nearly_all_communication_of_the_eight_ranks_is_waiting_for_rank_7() -> None:
    joined = join(reduce_trace(TRACES / f"dlrm8_v100_us_rank{rank}.json.gz") for rank in range(RANKS_OF_DLRM))
    (step,) = joined.steps
    assert {item.transfer_ns for item in step.ranks} == {217_000}
    load_ns = [item.times.comm_sum_ns for item in step.ranks]
    assert (min(load_ns), max(load_ns)) == (load_ns[7], load_ns[1]) == (1_746_000, 11_336_000)
    assert step.slowest_rank == 7


def test_steps_take_as_long_on_the_gpu_as_on_the_cpu_that_runs_ahead_of_it() -> None:
    steps = reduce_trace(TRACES / "a2a16_a100_us_rank0.json.gz").steps
    assert len(steps) == 5
    for times in steps[:-1]:
        assert times.profiled_ns is not None
        assert times.span_ns == pytest.approx(times.profiled_ns, rel=0.04)


def test_collectives_are_named_though_each_kernel_is_a_send_and_receive_or_generic() -> None:
    sends = reduce_trace(TRACES / "a2a16_a100_us_rank0.json.gz").steps[1].collective_ns
    named = {name for name, value in sends.items() if value}
    assert named == {"all_gather", "all_reduce", "all_to_all", "reduce_scatter"}
    generic = reduce_trace(TRACES / "ddp8_mi300x_rccl_rank0.json.gz")
    assert {name for name, value in generic.steps[0].collective_ns.items() if value} == {"all_reduce", "broadcast"}
    assert sum(generic.unknown.values()) == 5  # of the step before the trace, without a launch


def test_gloos_reduce_scatter_is_named_though_it_is_seen_as_an_all_reduce() -> None:
    profile = reduce_trace(TRACES / "cpu_gloo_fsdp2_rank0.json.gz")
    assert {str(kind) for kind in profile.kernels.collective} == {"all_gather", "reduce_scatter"}
    assert set(profile.kernels.dimension) == {"dp"}
