"""``attempt.json``: what the launcher of node 0 did and saw."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.frozen import dataclass
from sweep.core.records.attempt_record import AttemptRecord
from sweep.core.records.layout import ATTEMPT_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFile(AttemptRecord):
    """The report of node 0's launcher (``attempt.json``), written at its start and again at its end.

    Attributes:
        key: Which attempt.
        job_id: The scheduler's id of the job.
        restart: How often the same job id had run before.
        hosts: The job's nodes, by node rank.
        pid: The launcher's process id on its node.
        started_at: Unix time of its start.
        ended_at: Unix time of its end; None while it runs.
        exit_code: Exit code of torchrun on node 0 (negative: the signal that ended it); None while it runs.
        stopped_by: Name of the signal that asked it to stop; empty where none did.
        command: What it started.
        environment: Environment variables that matter, secrets redacted.
        sources_hash: Hash of the sources as it found them.
        provenance: Commit, whether the tree was dirty, package versions at submission.
    """

    KIND = "attempt"
    FILE = ATTEMPT_FILE

    key: AttemptKey
    job_id: str
    restart: int
    hosts: tuple[str, ...]
    pid: int
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    stopped_by: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sources_hash: str = ""
    provenance: Mapping[str, object] = field(default_factory=dict)
