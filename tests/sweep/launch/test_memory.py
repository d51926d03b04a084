"""Host memory that runs out under a launcher, by the kernel's own count and, where cgroups can be made, for real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass
from sweep.launch.exits import oom_kills
from tests.stubs.jobs import stub_launch, submission
from tests.sweep.launch.launches import command, error_of, folder, launch, place

V1 = "9:name=systemd:/\n4:cpu,memory:/slurm/job_7\n0::/\n"
V2 = "0::/system.slice/job_7\n"


def _root(path: Path, cgroup: str | None, **files: str) -> Path:
    (path / "proc/self").mkdir(parents=True)
    if cgroup is not None:
        (path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        file = path / "sys/fs/cgroup" / name.replace("__", "/")
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cgroup", "files", "kills"),
    [
        (V2, {"system.slice__job_7__memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
        (V2, {"memory.events": "oom_kill 1\n"}, 1),
        (V1, {"memory__slurm__job_7__memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}, 4),
        (V1, {"memory__memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
        (V2, {}, None),
        ("", {"memory.events": "oom_kill 1\n"}, None),
        (None, {}, None),
    ],
)
def test_the_kernels_count_is_that_of_the_own_cgroup(
    tmp_path: Path, cgroup: str | None, files: dict[str, str], kills: int | None
) -> None:
    assert oom_kills(_root(tmp_path, cgroup, **files)) == kills


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Path]:
    """A real cgroup (v1) of 200 MiB."""
    path = _own_memory_cgroup() / f"sweep-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield path
    path.rmdir()


def _own_memory_cgroup() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":memory:" in line), None)
    if own is None:
        pytest.skip("this machine has no cgroup v1 memory controller")
    return Path("/sys/fs/cgroup/memory", own.strip("/"))


def test_a_rank_that_the_kernel_kills_for_its_memory_is_reported_as_that(tmp_path: Path, tight: Path) -> None:
    made = submission(tmp_path, stub_launch("eats"))
    done = subprocess.run(
        command(made, *place()),
        preexec_fn=lambda: (tight / "cgroup.procs").write_text(str(os.getpid())),  # type: ignore[arg-type, return-value]
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 137
    error = error_of(folder(made))
    assert error.error_class is ErrorClass.OOM_HOST
    assert error.message == "the kernel killed 1 of its processes for want of host memory"


def test_a_failure_for_another_reason_is_not_called_so(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works", "--exit-code", "3"))
    assert launch(made).returncode == 3
    assert not (folder(made) / "error-node-0.json").exists()
