from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.trace.groups import Dimension
from analysis.trace.record import RankProfile
from analysis.trace.reduce import reduce_trace
from tests.analysis.trace.synthetic import (
    GEMM,
    MEMCPY,
    NCCL_ALL_GATHER,
    NCCL_ALL_REDUCE,
    NCCL_SEND_RECV,
    POINTWISE,
    RCCL_GENERIC,
    Trace,
)

US = 1000


def reduced(trace: Trace, folder: Path, **degrees: int) -> RankProfile:
    return reduce_trace(trace.write(folder), degrees or None)


def test_communication_is_exposed_where_no_compute_runs(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 10)
    trace.kernel(GEMM, 100, 140, launch=1)
    trace.kernel(NCCL_ALL_REDUCE, 120.5, 170, launch=2, stream=1)
    trace.kernel(NCCL_ALL_REDUCE, 160, 180.25, launch=3, stream=2)
    trace.kernel(MEMCPY, 175, 190, launch=4, cat="gpu_memcpy")
    trace.kernel(POINTWISE, 200, 210, launch=5)
    profile = reduced(trace, tmp_path)
    totals, (step,) = profile.totals, profile.steps
    assert (totals.n_comm, totals.n_compute, totals.n_memory) == (2, 2, 1)
    assert totals.comm_sum_ns == step.comm_sum_ns == 69_750
    assert totals.comm_merged_ns == step.comm_ns == 59_750
    assert totals.overlap_ns == step.overlapped_ns == 19_500
    assert totals.exposed_comm_ns == step.exposed_ns == 40_250
    assert totals.exposed_vs_any_ns == 35_000
    assert (step.compute_ns, step.copy_ns, step.copy_alone_ns) == (50 * US, 15 * US, 9_750)
    assert (step.span_ns, step.idle_ns) == (110 * US, 10 * US)


def test_a_kernel_belongs_to_the_step_that_launched_it_however_late_it_runs(tmp_path: Path) -> None:
    trace = Trace().step(7, 0, 10).step(8, 12, 20)
    trace.kernel(GEMM, 100, 150, launch=3)
    trace.kernel(GEMM, 150, 170, launch=11)  # between two steps: still of the first
    trace.kernel(GEMM, 180, 200, launch=15)
    trace.kernel(POINTWISE, 210, 220, launch=25)  # after the last step: of none
    first, second = reduced(trace, tmp_path).steps
    assert (first.step, first.compute_sum_ns, first.span_ns) == (7, 70 * US, 70 * US)
    assert (second.step, second.compute_sum_ns, second.span_ns, second.idle_ns) == (8, 20 * US, 30 * US, 10 * US)
    assert (first.profiled_ns, second.profiled_ns) == (10 * US, 8 * US)


def test_kernels_of_earlier_steps_at_the_head_of_the_trace_count_for_no_step(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 10)
    trace.head(GEMM, 1, 50).head(RCCL_GENERIC, 20, 60)
    trace.kernel(NCCL_ALL_REDUCE, 40, 90, launch=2, stream=1)
    trace.kernel(GEMM, 60, 80, launch=3)
    profile = reduced(trace, tmp_path)
    (step,) = profile.steps
    assert profile.n_unlinked == 2
    assert step.compute_sum_ns == 20 * US
    assert step.span_ns == 30 * US  # from the end of the head's last kernel
    assert profile.whole.compute_sum_ns == 69 * US
    assert profile.unknown == {RCCL_GENERIC: 1}
    assert "2 GPU records have no launch" in profile.notes[0]


def test_a_copy_for_the_next_batch_does_not_move_the_edge_between_steps(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 10).step(2, 10, 20)
    trace.kernel(GEMM, 100, 150, launch=3)
    trace.kernel(MEMCPY, 110, 300, launch=4, cat="gpu_memcpy", stream=9)
    trace.kernel(GEMM, 160, 200, launch=13)
    first, second = reduced(trace, tmp_path).steps
    assert (first.span_ns, second.span_ns) == (50 * US, 50 * US)


def test_the_collective_of_an_rccl_kernel_comes_from_the_calls_around_its_launch(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("nccl:all_reduce", 10, 20)
    trace.kernel(RCCL_GENERIC, 100, 110, launch=15)
    trace.annotation("nccl:broadcast", 10, 20, tid=999)
    trace.kernel(RCCL_GENERIC, 120, 130, launch=15, thread=999)
    stated: dict[str, Any] = {"Collective name": "_allgather_base"}
    trace.op("record_param_comms", 30, 40, **stated)
    trace.kernel(RCCL_GENERIC, 140, 150, launch=35)
    trace.kernel(RCCL_GENERIC, 160, 170, launch=50)
    trace.annotation("nccl:_reduce_scatter_base", 60, 70)
    trace.kernel(NCCL_SEND_RECV, 180, 190, launch=65)
    profile = reduced(trace, tmp_path)
    assert profile.kernels.collective == ("all_reduce", "broadcast", "all_gather", "unknown", "reduce_scatter")
    assert profile.unknown == {RCCL_GENERIC: 1}
    assert profile.steps[0].collective_ns["unknown"] == 10 * US


def test_a_call_that_has_ended_does_not_describe_a_launch_and_one_around_it_does(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("nccl:broadcast", 5, 50).annotation("nccl:all_reduce", 10, 20)
    trace.kernel(RCCL_GENERIC, 100, 110, launch=30).kernel(RCCL_GENERIC, 120, 130, launch=15)
    trace.kernel(RCCL_GENERIC, 140, 150, launch=60)
    assert reduced(trace, tmp_path).kernels.collective == ("broadcast", "all_reduce", "unknown")


def group(name: str, description: str, ranks: list[int], **more: Any) -> dict[str, Any]:
    return {
        "Process Group Name": name,
        "Process Group Description": description,
        "Process Group Ranks": str(ranks),
        "Group size": len(ranks),
        "Collective name": "allreduce",
        **more,
    }


@pytest.mark.parametrize(
    ("description", "ranks", "degrees", "dimension"),
    [
        ("mesh_tp", [0, 1], {}, Dimension.TP),
        ("mesh_dp_shard_cp", [0, 2], {}, Dimension.DP),
        ("mesh_shard", [0, 2], {}, Dimension.DP),
        ("mesh_pp", [0, 4], {}, Dimension.PP),
        ("mesh_distinct", [0, 4], {}, Dimension.OTHER),
        ("default_pg", [0, 1], {}, Dimension.UNKNOWN),
        ("default_pg", [0, 1, 2, 3], {"dp_shard": 4}, Dimension.DP),
        ("default_pg", [0, 1], {"tp": 2, "dp_shard": 4}, Dimension.TP),
        ("undefined", [0, 2, 4, 6], {"tp": 2, "dp_shard": 4}, Dimension.DP),
        ("undefined", [0, 2], {"tp": 2, "cp": 2, "dp_shard": 2}, Dimension.CP),
        ("undefined", [0, 4], {"tp": 2, "cp": 2, "pp": 2}, Dimension.PP),
        ("default_pg", [0, 1, 2, 3], {"tp": 2, "dp_shard": 2}, Dimension.OTHER),
    ],
)
def test_a_kernel_belongs_to_the_mesh_dimension_of_its_group(
    tmp_path: Path, description: str, ranks: list[int], degrees: dict[str, int], dimension: Dimension
) -> None:
    trace = Trace().step(1, 0, 10).kernel(NCCL_ALL_REDUCE, 50, 60, launch=1, **group("3", description, ranks))
    profile = reduced(trace, tmp_path, **degrees)
    assert profile.kernels.dimension == (dimension,)
    assert profile.steps[0].dimension_ns == {dimension: 10 * US}
    assert profile.groups[0].ranks == tuple(ranks)


def test_fsdps_collectives_on_the_default_group_are_dp_by_the_annotation_around_them(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("FSDP::all_gather (layers.0)", 10, 30)
    trace.kernel(NCCL_ALL_GATHER, 100, 120, launch=20, **group("0", "default_pg", [0, 1]))
    trace.kernel(NCCL_ALL_GATHER, 130, 140, launch=40, **group("0", "default_pg", [0, 1]))
    step = reduced(trace, tmp_path).steps[0]
    assert step.dimension_ns == {"dp": 20 * US, "unknown": 10 * US}


def test_the_trainers_own_annotation_names_a_group_that_the_trace_does_not(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("sweep::reduce_scatter dim=cp group=5 ranks=0,2,4 seq=12 bytes=4096", 10, 30)
    trace.kernel(NCCL_SEND_RECV, 100, 120, launch=20, **group("0", "default_pg", [0, 1]))
    kernels = reduced(trace, tmp_path).kernels
    assert (kernels.collective, kernels.dimension) == (("reduce_scatter",), ("cp",))
    assert (kernels.sequence, kernels.n_bytes) == ((12,), (4096,))


def test_the_mesh_may_stand_in_the_trace(tmp_path: Path) -> None:
    trace = Trace(scaling_sweep={"mesh": {"tp": 2, "dp_shard": 2}}).step(1, 0, 10)
    trace.kernel(NCCL_ALL_REDUCE, 50, 60, launch=1, **group("9", "undefined", [1, 3]))
    assert reduced(trace, tmp_path).kernels.dimension == ("dp",)


def test_a_kernel_keeps_its_group_sequence_bytes_and_interval(tmp_path: Path) -> None:
    stated = group("3", "mesh_tp", [0, 1], Seq=41, dtype="BFloat16")
    trace = Trace().step(1, 0, 10)
    trace.kernel(GEMM, 40, 45, launch=1)
    trace.kernel(NCCL_ALL_GATHER, 50.5, 60, launch=2, **stated | {"In msg nelems": 8, "Out msg nelems": 16})
    kernels = reduced(trace, tmp_path).kernels
    assert (kernels.step, kernels.start_ns, kernels.duration_ns) == ((1,), (10_500,), (9_500,))
    assert (kernels.group, kernels.sequence, kernels.n_bytes) == ((0,), (41,), (32,))


def test_a_list_of_ranks_that_the_profiler_cut_short_is_taken_from_its_stride_or_its_config(tmp_path: Path) -> None:
    cut = group("3", "mesh_tp", [0] * 4) | {"Process Group Ranks": "[0, 2, ..., 6]"}
    config = {"rank": 0, "world_size": 8, "pg_config": [{"pg_name": "3", "pg_desc": "x", "ranks": [1, 3, 5, 7]}]}
    by_stride = Trace().kernel(NCCL_ALL_REDUCE, 1, 2, **cut | {"Global rank start": 0, "Global rank stride": 2})
    by_config = Trace(distributedInfo=config).kernel(NCCL_ALL_REDUCE, 1, 2, **cut)
    unknown = Trace().kernel(NCCL_ALL_REDUCE, 1, 2, **cut)
    found = [reduced(trace, tmp_path).groups[0].ranks for trace in (by_stride, by_config, unknown)]
    assert found == [(0, 2, 4, 6), (1, 3, 5, 7), ()]


def test_symmetric_memory_kernels_and_peer_copies_are_communication_but_not_by_the_reference_rule(
    tmp_path: Path,
) -> None:
    trace = Trace().step(1, 0, 10)
    trace.kernel("void (anonymous namespace)::two_shot_all_reduce_kernel<float>(float**)", 50, 60, launch=1)
    trace.kernel("Memcpy PtoP (Device -> Device)", 70, 75, launch=2, cat="gpu_memcpy")
    profile = reduced(trace, tmp_path)
    assert (profile.totals.n_comm, profile.totals.n_compute, profile.totals.n_memory) == (0, 1, 1)
    assert profile.steps[0].comm_sum_ns == 15 * US
    assert profile.steps[0].collective_ns == {"all_reduce": 10 * US, "unknown": 5 * US}
    assert profile.unknown == {"Memcpy PtoP (Device -> Device)": 1}


def test_kernels_that_an_optimiser_or_a_copy_of_fsdp_launches_have_their_class(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("Optimizer.step#AdamW.step", 10, 20)
    trace.kernel(POINTWISE, 100, 110, launch=15)
    trace.kernel(MEMCPY, 110, 112, launch=15, cat="gpu_memcpy")
    trace.op("fsdp::all_gather_copy_in", 30, 40)
    trace.kernel(POINTWISE, 120, 127, launch=35)
    trace.kernel(MEMCPY, 130, 133, launch=36, cat="gpu_memcpy")
    trace.annotation("FSDP::all_gather_copy_out (layers.0)", 50, 60)
    trace.kernel(POINTWISE, 140, 144, launch=55)
    trace.kernel(POINTWISE, 150, 151, launch=70)
    step = reduced(trace, tmp_path).steps[0]
    assert step.class_ns == {"optimizer": 10 * US, "copy": 2 * US, "shard_copy": 14 * US, "pointwise": 1 * US}
    assert (step.compute_ns, step.copy_ns) == (11 * US, 16 * US)


def test_a_pipelines_bubble_is_the_time_in_which_nothing_or_only_its_sends_and_receives_run(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.kernel(NCCL_SEND_RECV, 100, 130, launch=1, **group("4", "mesh_pp", [0, 1]) | {"Collective name": "recv"})
    trace.kernel(GEMM, 120, 150, launch=2)
    trace.kernel(NCCL_ALL_REDUCE, 160, 180, launch=3, **group("5", "mesh_tp", [0, 2]))
    step = reduced(trace, tmp_path).steps[0]
    assert step.bubble_ns == 30 * US
    assert step.exposed_by_dimension_ns == {"pp": 20 * US, "tp": 20 * US}


@pytest.mark.parametrize("cat", ["cuda_sync", "gpu_user_annotation", "cpu_op", "overhead"])
def test_events_of_other_categories_are_no_work_even_with_a_stream(tmp_path: Path, cat: str) -> None:
    trace = Trace().step(1, 0, 10).kernel(GEMM, 50, 60, launch=1)
    trace.kernel("anything", 0, 1000, cat=cat, stream=7)
    assert reduced(trace, tmp_path).totals.span_ns == 10 * US


def test_a_trace_without_steps_has_numbers_of_the_whole(tmp_path: Path) -> None:
    profile = reduced(Trace().kernel(GEMM, 50, 60, launch=1), tmp_path)
    assert profile.steps == ()
    assert profile.whole.compute_ns == 10 * US
    assert "no ProfilerStep" in profile.notes[0]
