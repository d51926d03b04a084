"""The binding of a rank to CPU cores, over a made-up sysfs. Not yet run on a GPU."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.cells.trainer_settings import TrainerSettings
from trainer.device.cpu_affinity import (
    Binding,
    bind,
    format_cpu_list,
    limit_all_threads,
    parse_cpu_list,
)

GPU = "0000:1b:00.0"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    device = tmp_path / "bus" / "pci" / "devices" / GPU
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("8-15,24-31\n")
    (device / "numa_node").write_text("1\n")
    return tmp_path


def bound(setting: str, gpu: str | None, sysfs: Path, available: set[int]) -> tuple[Binding, set[int] | None]:
    limits: list[set[int]] = []
    found = bind(setting, gpu, sysfs=sysfs, available=lambda: available, limit=limits.append)
    return found, limits[0] if limits else None


def test_a_rank_keeps_to_the_cores_beside_its_gpu(sysfs: Path) -> None:
    found, limit = bound("auto", GPU, sysfs, set(range(32)))
    assert limit == {*range(8, 16), *range(24, 32)}
    assert found == Binding(cores="8-15,24-31", numa_node=1, is_bound=True)


def test_of_these_it_takes_what_the_job_was_given(sysfs: Path) -> None:
    found, limit = bound("auto", GPU, sysfs, {0, 1, 8, 9, 24})
    assert limit == {8, 9, 24}
    assert found.cores == "8-9,24"


def test_where_the_job_has_no_core_beside_the_gpu_it_keeps_what_it_has(sysfs: Path) -> None:
    found, limit = bound("auto", GPU, sysfs, {0, 1})
    assert limit is None
    assert (found.cores, found.is_bound) == ("0-1", False)
    assert "beside the GPU (8-15,24-31)" in found.reason


@pytest.mark.parametrize(
    ("setting", "gpu", "word"),
    [("none", GPU, "trainer.bind=none"), ("auto", None, "no GPU"), ("auto", "0000:ff:00.0", "cannot read sysfs")],
)
def test_without_binding_the_reason_is_kept(setting: str, gpu: str | None, word: str, sysfs: Path) -> None:
    found, limit = bound(setting, gpu, sysfs, {0, 1, 8})
    assert limit is None
    assert (found.cores, found.is_bound) == ("0-1,8", False)
    assert word in found.reason


def _keep_to_one_core(pipe: Connection) -> None:
    over = threading.Event()
    before = threading.Thread(target=over.wait)
    before.start()
    core = min(os.sched_getaffinity(0))
    limit_all_threads({core})
    after = threading.Thread(target=over.wait)
    after.start()
    tasks = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    pipe.send(
        ({before.native_id, after.native_id} <= set(tasks), {core}, [os.sched_getaffinity(task) for task in tasks])
    )
    over.set()


def test_threads_that_were_there_before_are_limited_as_well() -> None:
    # In a process of its own: this one needs its cores.
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_keep_to_one_core, args=(theirs,))
    process.start()
    assert ours.poll(240)
    all_there, core, found = ours.recv()
    process.join()
    assert all_there
    assert found == [core] * len(found)


def test_a_machine_of_one_memory_has_no_numa_node(sysfs: Path) -> None:
    (sysfs / "bus" / "pci" / "devices" / GPU / "numa_node").write_text("-1\n")
    assert bound("auto", GPU, sysfs, set(range(32)))[0].numa_node is None


def test_a_kernel_that_refuses_is_no_error(sysfs: Path) -> None:
    def refuse(cores: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    found = bind("auto", GPU, sysfs=sysfs, available=lambda: {8, 9}, limit=refuse)
    assert (found.cores, found.is_bound) == ("8-9", False)
    assert "Invalid argument" in found.reason


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_read_back_as_written(cores: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cores)) == cores


def test_the_setting_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="Give auto or none"):
        TrainerSettings(bind="numa")
