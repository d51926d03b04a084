"""A job runs the code that its user submitted, or nothing: whatever else lies in the snapshot is never run."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sweep.adapters.files.lease import Holder, Lease
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.files.sources_snapshot import snapshot
from sweep.adapters.local.preflight_runner import PreflightError, PreflightRunner
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.submitit_executor import LaunchExecutor
from sweep.core.attempts.attempt import ErrorClass, Phase
from sweep.core.settings.spec import SlurmSpec
from sweep.files import RunDirError
from tests.fakes import weak_content
from tests.security.test_compiler_caches import NOBODY, needs_root
from tests.stubs.jobs import key, stub_launch, submission
from tests.sweep.launch.launches import error_of, folder
from tests.trainer.cells import cell, cell_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sweep.core.jobs.submission import Submission

PLANTED = "open({!r}, 'w').close()\n"


def by_slurm(made: Submission, bin_dir: Path) -> None:
    """Run the job script, with an srun that runs what it is given."""
    script = LaunchExecutor(made, SlurmSpec(), python=sys.executable, commands=SlurmCommands({})).script_text()
    srun = bin_dir / "srun"
    srun.write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    job = {"SLURM_JOB_ID": "43", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "gpu08"}
    environ = {**os.environ, **job, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    subprocess.run(["bash"], input=script, env=environ, text=True, timeout=240, check=False)


def by_local(made: Submission, _: Path) -> None:
    """Run the job on the local cluster."""
    scheduler = LocalScheduler(Path(made.run_dir))
    jobs = scheduler.submit(made)
    deadline = time.monotonic() + 240
    while any(report.phase is not Phase.ENDED for report in scheduler.poll(jobs, since=0.0).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


either_cluster = pytest.mark.parametrize("run", [by_slurm, by_local])


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    made = tmp_path / "bin"
    made.mkdir()
    return made


def add(root: Path, name: str, planted: str) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(planted)


def edit(root: Path, planted: str) -> None:
    launcher = root / "sweep/launch/__main__.py"
    launcher.chmod(0o644)
    launcher.write_text(launcher.read_text().replace("import argparse", f"import argparse\n{planted}"))


def link(root: Path, planted: str) -> None:
    outside = root.parent.parent / "outside.py"
    outside.write_text((root / "trainer/__init__.py").read_text())
    (root / "trainer/__init__.py").unlink()
    (root / "trainer/__init__.py").symlink_to(outside)
    outside.write_text(outside.read_text() + planted)


ALTERATIONS: dict[str, Callable[[Path, str], None]] = {
    "sitecustomize": lambda root, planted: add(root, "sitecustomize.py", planted),
    "a module that hides a library": lambda root, planted: add(root, "psutil.py", planted),
    "a module of a package": lambda root, planted: add(root, "sweep/extra.py", planted),
    "a compiled module": lambda root, planted: add(root, "sweep/__pycache__/files.cpython-311.pyc", planted),
    "a native module": lambda root, planted: add(root, "sweep/files.so", planted),
    "a file of another suffix": lambda root, planted: add(root, "sweep/notes.txt", planted),
    "the launcher itself": edit,
    "a link": link,
    "a file that others can write": lambda root, _: (root / "sweep/files.py").chmod(0o664),
    "a folder that others can write": lambda root, _: (root / "sweep").chmod(0o777),
    "a file that is gone": lambda root, _: (root / "analysis/__init__.py").unlink(),
}


@either_cluster
@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_snapshot_runs_nothing(
    tmp_path: Path, bin_dir: Path, name: str, run: Callable[[Submission, Path], None]
) -> None:
    made = submission(tmp_path, stub_launch("works"))
    ran = tmp_path / "ran"
    ALTERATIONS[name](Path(made.sources_dir), PLANTED.format(str(ran)))
    run(made, bin_dir)
    assert not ran.exists()
    assert not (folder(made) / "saw-0.json").exists()
    error = error_of(folder(made))
    assert error.error_class is ErrorClass.REFUSED
    assert "sources" in error.message


@needs_root
@either_cluster
@pytest.mark.parametrize("part", ["", "sweep", "trainer/__init__.py"])
def test_a_job_whose_code_is_another_users_is_refused(
    tmp_path: Path, bin_dir: Path, part: str, run: Callable[[Submission, Path], None]
) -> None:
    made = submission(tmp_path, stub_launch("works"))
    os.chown(Path(made.sources_dir) / part, NOBODY, NOBODY)
    run(made, bin_dir)
    assert not (folder(made) / "saw-0.json").exists()
    assert f"belongs to user {NOBODY}" in error_of(folder(made)).message


@either_cluster
def test_a_submission_that_others_can_write_is_refused(
    tmp_path: Path, bin_dir: Path, run: Callable[[Submission, Path], None]
) -> None:
    made = submission(tmp_path, stub_launch("works"))
    (tmp_path / made.file).chmod(0o666)
    run(made, bin_dir)
    assert not folder(made).exists()


@either_cluster
def test_two_jobs_of_one_snapshot_run_one_after_the_other(
    tmp_path: Path, bin_dir: Path, run: Callable[[Submission, Path], None]
) -> None:
    for number in (1, 2):
        made = submission(tmp_path, stub_launch("works"), name=f"job-{number}", tasks=(key(number),))
        run(made, bin_dir)
        assert (folder(made) / "saw-0.json").exists(), (folder(made) / "node-0.log").read_text()
        assert not list(Path(made.sources_dir).rglob("*.pyc"))
    assert len(list((tmp_path / "sources").iterdir())) == 1


def test_a_preflight_runs_nothing_that_was_planted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    sources_dir, digest = snapshot(tmp_path / "run")
    add(sources_dir, "sitecustomize.py", PLANTED.format(str(tmp_path / "ran")))
    with pytest.raises(PreflightError, match="hash to"):
        PreflightRunner(tmp_path / "run", sources_dir, digest, os.environ).run(cell_file(cell(gpus=1)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2777, 0o707])
def test_a_run_directory_that_the_world_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    made = RunDir(tmp_path / "run")
    for use in (made.create, made.apply_access):
        with pytest.raises(RunDirError, match=r"anybody may write .*chmod o-w"):
            use()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.fixture
def shared() -> Iterator[RunDir]:
    """A run directory of a group, below folders that everybody may enter."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        path = Path(top) / "run"
        path.mkdir()
        os.chown(path, -1, NOBODY if os.geteuid() == 0 else -1)
        path.chmod(0o2770)
        made = RunDir(path)
        made.apply_access()
        made.create()
        yield made
    os.umask(before)


def test_in_a_groups_run_directory_code_and_submissions_are_written_by_their_owner_only(shared: RunDir) -> None:
    path = Path(shared.path)
    sources_dir, _ = snapshot(path)
    made = submission(path, stub_launch("works"))
    shared.publish_submission(made, [replace(cell_file(cell(gpus=1)), key=key())])
    assert [name for name in sources_dir.rglob("*") if name.stat().st_mode & 0o022] == []
    assert (path / made.file).stat().st_mode & 0o022 == 0
    assert folder(made).stat().st_mode & 0o022 == 0
    holders = (path, *(path / name for name in ("sources", "submissions", "submissions/logs", "cells")))
    assert all(each.stat().st_mode & stat.S_ISVTX for each in holders)
    assert all(each.stat().st_mode & stat.S_IWGRP for each in holders), "members may still add what is theirs"


ATTACKS = {
    "edit the launcher": "open(glob('sources/*/sweep/launch/__main__.py')[0], 'a')",
    "add to the snapshot": "open(glob('sources/*')[0] + '/sitecustomize.py', 'w')",
    "replace the snapshot": "os.rename(glob('sources/*')[0], 'sources/away')",
    "replace all snapshots": "os.rename('sources', 'away')",
    "edit the submission": "open(glob('submissions/*.json')[0], 'a')",
    "replace the submission": "os.rename(glob('submissions/*.json')[0], 'submissions/away')",
    "replace all submissions": "os.rename('submissions', 'away')",
    "put a link into an attempt": "os.symlink('/etc/x', glob('cells/*/*/attempt-01')[0] + '/node-0.log')",
    "replace an attempt": "os.rename(glob('cells/*/*/attempt-01')[0], 'cells/away')",
}


def as_member(act: Callable[[], None]) -> str:
    """The name of the error that another member of the group gets; empty: none."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            act()
        except Exception as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


@needs_root
@pytest.mark.parametrize("name", ATTACKS)
def test_a_member_of_the_group_cannot(shared: RunDir, name: str) -> None:
    path = Path(shared.path)
    made = submission(path, stub_launch("works"))
    shared.publish_submission(made, [replace(cell_file(cell(gpus=1)), key=key())])
    program = f"import os\nfrom glob import glob\nopen('member', 'w')\n{ATTACKS[name]}"
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", program],
        cwd=path, user=NOBODY, group=NOBODY, extra_groups=(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (path / "member").exists(), done.stderr
    assert "PermissionError" in done.stderr


@needs_root
def test_a_member_of_the_group_gets_an_error_for_a_lease_of_anothers(shared: RunDir) -> None:
    path = Path(shared.path)
    holder = Holder(host=socket.gethostname(), pid=2**22 + 1, started="", token="t")
    (path / "lease.json").write_text(holder.render())

    def take() -> None:
        with Lease(path):
            pass

    assert as_member(take) == "LeaseHeldError"
    take()


@needs_root
def test_a_member_of_the_group_gets_an_error_for_a_grid_of_anothers(shared: RunDir) -> None:
    shared.publish_sweep_file(weak_content({}, cluster="local"))
    assert as_member(lambda: shared.publish_sweep_file(weak_content({}, cluster="local"))) == ""
    assert as_member(lambda: shared.publish_sweep_file(weak_content({}, cluster="other"))) == "RunDirError"


@needs_root
def test_a_member_of_the_group_submits_code_of_their_own(shared: RunDir) -> None:
    path = Path(shared.path)
    theirs, digest = snapshot(path)
    for each in (theirs, *theirs.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    ours, same = snapshot(path)
    assert (ours.name, same) == (f"{digest}-0", digest)
    assert {each.stat().st_uid for each in ours.rglob("*")} == {0}
