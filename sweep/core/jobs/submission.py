"""A submission, the attempts that go to the scheduler in one call, and the claim that says which job runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import JobId, NodeName, SubmissionName, UnixTime
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import Record, render
from sweep.core.records.layout import SUBMISSIONS_DIR, attempt_dir
from sweep.core.settings.spec import LaunchSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission(Record):
    """Attempts that need the same resources; array index i runs ``tasks[i]``.

    Written before the scheduler is told, so that a job reads what it is to do and a crash cannot lose what was meant.

    Attributes:
        name: Unique; the job's name, by which the scheduler is asked after a crash.
        run_dir: The run directory, absolute.
        created_at: Unix time.
        tasks: Attempts by array index.
        nodes: Nodes of each task.
        gpus_per_node: Ranks on each node.
        device_type: ``cuda`` or ``cpu``: whether GPUs are used by the ranks.
        walltime_min: Minutes that each task may take.
        sources_dir: Snapshot of the sources that jobs run, absolute.
        sources_hash: Hash that the snapshot must have.
        launch: How a job is started on its nodes.
        exclude: Nodes that it keeps away from; only names that the cluster knows.
        provenance: Commit, whether the tree was dirty, package versions, command.
        is_cut: Whether the walltime is less than the cells were to have, to end before a maintenance.
    """

    KIND = "submission"
    FILE = "the submission file"

    name: SubmissionName
    run_dir: str
    created_at: UnixTime
    tasks: tuple[AttemptKey, ...]
    nodes: int
    gpus_per_node: int
    device_type: str
    walltime_min: int
    sources_dir: str
    sources_hash: str
    launch: LaunchSpec
    exclude: tuple[NodeName, ...] = ()
    provenance: Mapping[str, object] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of each task."""
        return self.nodes * self.gpus_per_node

    @property
    def gpu_hours(self) -> float:
        """The most that each task can cost: walltime x GPUs."""
        return self.gpus * self.walltime_min / 60

    @property
    def file(self) -> str:
        """Path of the submission's file, relative to the run directory."""
        return submission_file(self.name)

    def render(self) -> str:
        """Text of the file; each task is given with its folder, for people."""
        tasks = [{**plain(key), "directory": str(attempt_dir(key))} for key in self.tasks]
        return render(self.KIND, {**plain(self), "tasks": tasks})


def submission_file(name: str) -> str:
    """Path of a submission's file, relative to the run directory."""
    return f"{SUBMISSIONS_DIR}/{name}.json"


def safe_name(text: str) -> str:
    """A job name of letters, digits, ``_``, ``.`` and ``-``, at most 80 long: safe in any shell and file system."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:80] or "sweep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim(Record):
    """The first word on a submission, which stands (``submissions/<name>.claim``, see :mod:`sweep.launch.claim`).

    Attributes:
        job_id: The job that runs it, of an array the id that its tasks share; empty: it was given back before any job
            had begun, and none may begin.
        time: Unix time.
        host: Where it was written.
    """

    KIND = "claim"
    FILE = "the claim"

    job_id: JobId
    time: UnixTime
    host: str


def shared_id(job_id: str) -> str:
    """The id that all tasks of a submission share: 42 of 42_7, and of the local cluster's NAME.7 the name."""
    return re.sub(r"[_.]\d+$", "", job_id)


def claim_file(name: str) -> str:
    """Path of a submission's claim, relative to the run directory."""
    return f"{SUBMISSIONS_DIR}/{name}.claim"
