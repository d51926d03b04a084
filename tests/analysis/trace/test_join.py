from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.trace.join import JoinError, join
from analysis.trace.record import NodeProfile, RankProfile, TraceFailure, profile_path, write_profile
from analysis.trace.reduce import reduce_trace
from sweep.core.encoding.record import RecordError
from tests.analysis.trace.synthetic import GEMM, NCCL_ALL_REDUCE, NCCL_SEND_RECV, Trace

US = 1000


def stated(group: str, ranks: list[int], **more: Any) -> dict[str, Any]:
    return {
        "Process Group Name": group,
        "Process Group Ranks": str(ranks),
        "Group size": len(ranks),
        "Collective name": "allreduce",
        **more,
    }


def rank(folder: Path, number: int, late: float, *, world_size: int = 2, head: int = 0, **args: Any) -> RankProfile:
    """A rank whose compute ends ``late`` µs after that of others; both collectives take 10 µs once all are there."""
    trace = Trace(rank=number, world_size=world_size).step(5, 0, 10)
    for at in range(head):
        trace.head(NCCL_ALL_REDUCE, at, at + 1)
    trace.kernel(GEMM, 100, 110 + late, launch=1)
    trace.kernel(NCCL_ALL_REDUCE, 110 + late, 160, launch=2, stream=1, **args)
    trace.kernel(NCCL_ALL_REDUCE, 170, 180, launch=3, stream=1, **args)
    return reduce_trace(trace.write(folder))


def test_the_time_of_a_collective_beyond_that_on_its_last_rank_is_waiting(tmp_path: Path) -> None:
    joined = join([rank(tmp_path, 1, late=40), rank(tmp_path, 0, late=0)])
    (step,) = joined.steps
    assert [(item.rank, item.transfer_ns, item.wait_ns) for item in step.ranks] == [
        (0, 20 * US, 40 * US),
        (1, 20 * US, 0),
    ]
    assert step.slowest_rank == 1
    wait = joined.over_ranks["wait_ns"]
    assert (wait.mean, wait.min, wait.max) == (20 * US, 0, 40 * US)


def test_kernels_of_earlier_steps_that_one_trace_holds_do_not_shift_the_order(tmp_path: Path) -> None:
    (step,) = join([rank(tmp_path, 0, late=0, head=3), rank(tmp_path, 1, late=40, head=1)]).steps
    assert [item.wait_ns for item in step.ranks] == [40 * US, 0]


def test_without_a_peers_trace_the_waiting_is_unknown(tmp_path: Path) -> None:
    alone = rank(tmp_path, 0, late=0, **stated("0", [0, 1]))
    (step,) = join([alone]).steps
    assert (step.ranks[0].transfer_ns, step.ranks[0].wait_ns, step.ranks[0].n_unmatched) == (None, None, 2)
    assert step.slowest_rank is None
    assert "wait_ns" not in join([alone]).over_ranks


def test_nothing_is_matched_in_a_larger_world_without_named_groups(tmp_path: Path) -> None:
    (step,) = join([rank(tmp_path, number, late=0, world_size=8) for number in (0, 1)]).steps
    assert [item.n_unmatched for item in step.ranks] == [2, 2]


def test_nothing_is_matched_where_several_groups_have_no_names(tmp_path: Path) -> None:
    ranks = [replace(rank(tmp_path, number, late=0), n_groups=3) for number in (0, 1)]
    (step,) = join(ranks).steps
    assert [item.n_unmatched for item in step.ranks] == [2, 2]


def test_collectives_are_matched_in_their_own_group_only(tmp_path: Path) -> None:
    groups = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    ranks = [rank(tmp_path, n, 10 * n, world_size=4, **stated("g", groups[n])) for n in range(4)]
    (step,) = join(ranks).steps
    assert [item.wait_ns for item in step.ranks] == [10 * US, 0, 10 * US, 0]


def test_a_number_in_the_group_counts_before_the_order(tmp_path: Path) -> None:
    first = Trace(rank=0).step(1, 0, 10)
    first.kernel(NCCL_ALL_REDUCE, 100, 130, launch=1, **stated("0", [0, 1], Seq=7))
    first.kernel(NCCL_ALL_REDUCE, 140, 145, launch=2, **stated("0", [0, 1], Seq=8))
    second = Trace(rank=1).step(1, 0, 10)
    second.kernel(NCCL_ALL_REDUCE, 140, 145, launch=2, **stated("0", [0, 1], Seq=8))
    (step,) = join([reduce_trace(trace.write(tmp_path)) for trace in (first, second)]).steps
    assert [item.n_unmatched for item in step.ranks] == [1, 0]
    assert step.ranks[1].wait_ns == 0


def test_a_send_is_matched_with_its_receive(tmp_path: Path) -> None:
    ends = stated("4", [0, 1, 2, 3]) | {"Src Rank": 0, "Dst Rank": 1}
    sender = Trace(rank=0, world_size=4).step(1, 0, 10)
    sender.kernel(NCCL_SEND_RECV, 100, 110, launch=1, **ends | {"Collective name": "send"})
    receiver = Trace(rank=1, world_size=4).step(1, 0, 10)
    receiver.kernel(NCCL_SEND_RECV, 50, 110, launch=1, **ends | {"Collective name": "recv"})
    (step,) = join([reduce_trace(trace.write(tmp_path)) for trace in (sender, receiver)]).steps
    assert [(item.p2p_transfer_ns, item.p2p_wait_ns, item.wait_ns) for item in step.ranks] == [
        (10 * US, 0, 0),
        (10 * US, 50 * US, 0),
    ]
    assert step.slowest_rank == 0


def test_sends_whose_ends_nothing_names_are_matched_with_none_and_leave_the_collectives_known(tmp_path: Path) -> None:
    traces = [Trace(rank=number).step(1, 0, 10) for number in (0, 1)]
    for number, trace in enumerate(traces):
        trace.kernel(NCCL_SEND_RECV, 10, 20, launch=1).kernel(NCCL_ALL_REDUCE, 30 + number, 40, launch=2)
    (step,) = join([reduce_trace(trace.write(tmp_path)) for trace in traces]).steps
    assert [(item.wait_ns, item.p2p_wait_ns, item.n_unmatched) for item in step.ranks] == [(US, None, 1), (0, None, 1)]
    assert step.slowest_rank is None


def test_one_rank_twice_or_a_rank_unknown_is_an_error(tmp_path: Path) -> None:
    one = rank(tmp_path, 0, late=0)
    with pytest.raises(JoinError, match="both of rank 0"):
        join([one, one])
    with pytest.raises(JoinError, match="does not say its rank"):
        join([replace(one, rank=None)])


def test_quantities_are_spread_over_ranks_and_over_steps(tmp_path: Path) -> None:
    trace = Trace(rank=0, world_size=1).step(1, 0, 10).step(2, 10, 20)
    trace.kernel(GEMM, 100, 110, launch=1).kernel(GEMM, 110, 140, launch=11)
    joined = join([reduce_trace(trace.write(tmp_path))])
    over_ranks, over_steps = joined.over_ranks["class_ns.gemm"], joined.over_steps["class_ns.gemm"]
    assert (over_ranks.mean, over_ranks.min, over_ranks.max) == (20 * US, 20 * US, 20 * US)
    assert (over_steps.mean, over_steps.min, over_steps.max) == (20 * US, 10 * US, 30 * US)


def test_a_nodes_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    ranks = (rank(tmp_path, 0, late=0, **stated("0", [0, 1], Seq=7)), rank(tmp_path, 1, late=5))
    profile = NodeProfile(node="n1", ranks=ranks, failures=(TraceFailure(file="rank2.json", reason="cut"),))
    path = profile_path(tmp_path / "out", "n1")
    write_profile(path, profile)
    assert path.name == "profile-n1.json"
    assert NodeProfile.parse(path.read_text()) == profile
    with pytest.raises(RecordError, match="schema version 9"):
        NodeProfile.parse(profile.render().replace('"schema": 1', '"schema": 9', 1))


def test_a_profile_whose_columns_do_not_fit_is_refused(tmp_path: Path) -> None:
    one = rank(tmp_path, 0, late=0, **stated("0", [0, 1]))
    for kernels, what in (
        (replace(one.kernels, duration_ns=(1,)), "different lengths"),
        (replace(one.kernels, group=(0, 1)), "a group that it does not hold"),
    ):
        text = NodeProfile(node="n", ranks=(replace(one, kernels=kernels),)).render()
        with pytest.raises(RecordError, match=what):
            NodeProfile.parse(text)
