from __future__ import annotations

from pathlib import Path

import pytest

from analysis.trace.reading import columns, stream
from analysis.trace.record import RankProfile
from analysis.trace.reduce import reduce_trace
from tests.analysis.trace.synthetic import MAIN_THREAD, Trace

US = 1000
OTHER_GLOO_THREAD = 201
AUTOGRAD = 101


def reduced(trace: Trace, folder: Path) -> RankProfile:
    return reduce_trace(trace.write(folder))


@pytest.mark.parametrize("devices", [[], [{"id": 0}]])  # torch names the machine's devices, used or not
def test_an_asynchronous_collective_overlaps_with_the_computation_beside_it(
    tmp_path: Path, devices: list[dict[str, int]]
) -> None:
    trace = Trace(deviceProperties=devices).step(1, 0, 100)
    trace.op("c10d::allreduce_", 5, 10)
    trace.gloo("all_reduce", 12, 52)
    trace.op("aten::linear", 20, 45).op("aten::addmm", 21, 44).op("aten::relu", 60, 70)
    profile = reduced(trace, tmp_path)
    totals, (step,) = profile.totals, profile.steps
    assert profile.scope == "cpu_gloo"
    assert (totals.n_gpu_records, totals.n_comm, totals.n_compute) == (0, 1, 3)
    assert (totals.comm_merged_ns, totals.overlap_ns, totals.exposed_comm_ns) == (40 * US, 25 * US, 15 * US)
    assert (totals.busy_ns, totals.memory_merged_ns) == (None, None)
    assert (step.span_ns, step.compute_ns, step.exposed_ns, step.idle_ns) == (100 * US, 35 * US, 15 * US, 50 * US)
    assert step.class_ns == {"comm": 40 * US, "gemm": 25 * US, "pointwise": 10 * US}


def test_copies_on_gloos_threads_and_calls_that_only_start_a_collective_are_no_computation(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.op("aten::copy_", 10, 20).op("c10d::_allgather_base_", 12, 18).op("aten::copy_", 13, 17)
    trace.gloo("all_gather", 20, 40).op("aten::copy_", 30, 39, tid=200)
    profile = reduced(trace, tmp_path)
    totals = profile.totals
    assert totals.compute_merged_ns == profile.steps[0].compute_ns == 4 * US
    assert totals.n_compute == 2
    assert totals.overlap_ns == 0


def test_autograds_engine_spans_waits_and_is_no_computation(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 10, 60, tid=AUTOGRAD)
    trace.op("aten::mm", 10, 15, tid=AUTOGRAD)
    trace.gloo("all_reduce", 20, 50)
    totals = reduced(trace, tmp_path).totals
    assert (totals.compute_merged_ns, totals.overlap_ns) == (5 * US, 0)


def test_gloos_events_get_the_kind_and_the_group_of_the_call_that_started_them(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 200)
    trace.annotation("sweep::all_reduce dim=tp ranks=0,1 seq=3 bytes=64", 5, 12).op("c10d::allreduce_", 6, 8)
    trace.annotation("FSDP::post_backward_reduce (layers.0)", 15, 60)
    trace.op("c10d::_reduce_scatter_base_", 20, 22)
    trace.op("c10d::_allgather_base_", 70, 72)
    trace.gloo("all_reduce", 9, 30)
    trace.gloo("all_reduce", 25, 40, tid=OTHER_GLOO_THREAD)  # it ends first and begins second: the reduce-scatter
    trace.gloo("all_gather", 75, 80)
    trace.gloo("broadcast", 90, 95)
    kernels = reduced(trace, tmp_path).kernels
    assert kernels.collective == ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    assert kernels.dimension == ("tp", "dp", "unknown", "unknown")
    assert (kernels.sequence, kernels.n_bytes) == ((3, None, None, None), (64, None, None, None))


def test_a_collective_is_not_described_by_a_call_that_comes_after_it(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.gloo("all_reduce", 5, 10)  # its call came before the trace began
    trace.op("c10d::_reduce_scatter_base_", 20, 22).gloo("all_reduce", 25, 30)
    assert reduced(trace, tmp_path).kernels.collective == ("all_reduce", "reduce_scatter")


def test_operations_are_the_outermost_however_many_pieces_they_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace().step(1, 0, 1000)
    for at in range(50):
        trace.op("aten::copy_", 10 * at + 2, 10 * at + 4).op("aten::linear", 10 * at, 10 * at + 8)
    whole = reduced(trace, tmp_path)
    monkeypatch.setattr(stream, "_PIECE_BYTES", 500)
    monkeypatch.setattr(columns, "_FIRST_LIMIT", 3)
    assert reduced(trace, tmp_path) == whole
    assert whole.steps[0].class_ns == {"gemm": 400 * US}


def test_fsdps_reduce_scatter_by_an_exchange_of_parts_is_one_by_its_annotation(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("sweep::reduce_scatter dim=dp seq=0 bytes=128", 5, 12).op("c10d::alltoall_base_", 6, 8)
    trace.gloo("all_to_all", 10, 30)
    profile = reduced(trace, tmp_path)
    assert profile.steps[0].collective_ns == {"reduce_scatter": 20 * US}
    assert profile.steps[0].dimension_ns == {"dp": 20 * US}


def test_an_optimisers_operations_and_fsdps_copies_have_classes_of_their_own(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("Optimizer.step#AdamW.step", 10, 20).op("aten::mul", 12, 18)
    trace.annotation("FSDP::all_gather_copy_out", 30, 40).op("aten::copy_", 32, 38)
    trace.op("aten::mm", 50, 55)
    step = reduced(trace, tmp_path).steps[0]
    assert step.class_ns == {"gemm": 5 * US, "optimizer": 6 * US, "shard_copy": 6 * US}
    assert (step.compute_ns, step.copy_alone_ns) == (11 * US, 6 * US)


def test_work_of_the_cpu_belongs_to_the_step_that_it_begins_in(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 50).step(2, 55, 100)
    trace.op("aten::mm", 10, 20).op("aten::mm", 52, 54).op("aten::mm", 60, 70).op("aten::mm", 120, 130)
    first, second = reduced(trace, tmp_path).steps
    assert (first.span_ns, first.compute_sum_ns, first.compute_ns) == (55 * US, 12 * US, 12 * US)
    assert (second.span_ns, second.compute_sum_ns) == (45 * US, 10 * US)


def test_a_process_that_does_not_communicate_has_no_communication(tmp_path: Path) -> None:
    profile = reduced(Trace().step(1, 0, 100).op("aten::mm", 10, 20), tmp_path)
    assert (profile.totals.n_comm, profile.totals.comm_merged_ns, profile.steps[0].exposed_ns) == (0, 0, 0)
    assert profile.kernels.step == ()


def test_a_send_is_recorded_on_the_thread_that_computes(tmp_path: Path) -> None:
    trace = Trace().step(1, 0, 100)
    trace.annotation("sweep::send dim=pp ranks=0,1 src=0 dst=1 seq=4", 5, 12).op("c10d::send", 6, 8)
    trace.gloo("send", 7, 40, tid=MAIN_THREAD)
    trace.op("aten::mm", 20, 30)
    profile = reduced(trace, tmp_path)
    (step,) = profile.steps
    assert (profile.totals.compute_merged_ns, profile.totals.overlap_ns, profile.totals.n_compute) == (
        10 * US,
        10 * US,
        1,
    )
    assert (step.collective_ns, step.dimension_ns) == ({"p2p": 33 * US}, {"pp": 33 * US})
    assert step.bubble_ns == 90 * US
    assert (profile.kernels.source, profile.kernels.target) == ((0,), (1,))
