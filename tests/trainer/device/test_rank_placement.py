"""A rank's place: its variables, its mesh coordinates, its devices and threads, and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.cells.device import Device
from sweep.core.cells.parallelism import Parallelism
from tests.trainer.cells import CPU
from trainer.device import devices
from trainer.parallel.mesh import ORDER, MeshError, data_rank, sizes
from trainer.process.ranks import Ranks
from trainer.process.refusal import Refusal, check_devices

H100 = Device(name="h100", type="cuda", match=("H100",), unlike=("MIG", "NVL"))


def test_torchruns_variables_place_a_rank() -> None:
    placed = Ranks.from_environment(
        {
            "TORCHELASTIC_RUN_ID": "x",
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "1",
            "SLURM_RESTART_COUNT": "2",
        }
    )
    assert (placed.rank, placed.node_rank, placed.restart) == (5, 1, 2)
    assert placed.node_ranks == range(4, 8)
    assert placed.first_rank_of_node == 4
    assert placed.has_agent


def test_without_an_agent_there_is_one_rank() -> None:
    assert Ranks.from_environment({"RANK": "3", "WORLD_SIZE": "8"}) == Ranks()


def test_the_mesh_error_shows_the_whole_equation() -> None:
    with pytest.raises(MeshError, match=r"pp=1 x dp_replicate=1 x dp_shard=4 x cp=1 x tp=2 = 8 ranks; there are 4"):
        sizes(Parallelism(dp_shard=4, tp=2), 4)


@given(st.tuples(*(st.integers(1, 3) for _ in ORDER)))
def test_the_data_rank_is_the_coordinate_in_the_mesh(degrees: tuple[int, ...]) -> None:
    given_degrees: dict[str, Any] = dict(zip(ORDER, degrees, strict=True))
    layout = Parallelism(**given_degrees)
    assert list(sizes(layout, layout.world_size)) == list(ORDER)
    for rank in range(layout.world_size):
        rest, coordinate = rank, {}
        for name, degree in reversed(list(zip(ORDER, degrees, strict=True))):
            rest, coordinate[name] = divmod(rest, degree)
        expected = coordinate["dp_replicate"] * layout.dp_shard + coordinate["dp_shard"]
        assert data_rank(layout, rank) == expected


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "torch finds none"),
        (("NVIDIA H100 80GB HBM3",), r"runs 2 ranks but shows 1 GPU"),
        (("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), "this node has NVIDIA A100-SXM4-80GB"),
        (("NVIDIA H100 NVL", "NVIDIA H100 NVL"), "'H100' in its name without 'MIG' or 'NVL'"),
    ],
)
def test_a_node_without_the_devices_that_were_asked_for_is_refused(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        check_devices(H100, names, Ranks(local_world_size=2, world_size=2))


def test_the_right_devices_are_accepted_and_further_ones_do_not_matter() -> None:
    check_devices(H100, ("NVIDIA H100 80GB HBM3", "NVIDIA T4"), Ranks())
    check_devices(CPU, ("some processor",), Ranks(local_world_size=4, world_size=4))


def test_cores_are_shared_out_on_a_cpu_and_one_thread_stands_by_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert devices.threads_for(0, "cpu", 2) == 4
    assert devices.threads_for(0, "cpu", 16) == 1
    assert devices.threads_for(0, "cuda", 1) == 1
    assert devices.threads_for(3, "cpu", 16) == 3


def test_the_cpu_has_a_name_and_cores() -> None:
    compute = devices.open_compute("cpu", 0)
    assert compute.name()
    assert len(compute.places()) == len(os.sched_getaffinity(0))
    allocated, reserved = compute.peak_bytes()
    assert allocated is not None
    assert allocated > 1 << 20
    assert reserved is None


def test_a_processor_that_linux_does_not_name_has_its_architectures_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(self: Path, **kwargs: object) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert devices.cpu_name() == os.uname().machine
