"""Records of one attempt: ``cell.json`` says what to run, ``attempt.json`` how it went, error files why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Self

from sweep.core.attempts.attempt import AttemptKey, RankError
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.cells.device import Device
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import JobId, NodeName, UnixTime
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import Record, RecordError, parse_object, read_record, render
from sweep.core.records.layout import ATTEMPT_FILE, CELL_FILE


class AttemptRecord(Record):
    """Base of the records that name their attempt by ``cell_id``, ``repeat`` and ``attempt``."""

    __slots__ = ()
    key: AttemptKey

    def render(self) -> str:
        """Text of the file."""
        body = plain(self)
        return render(self.KIND, {**body.pop("key"), **body})

    @classmethod
    def parse(cls, text: str, *, expected: AttemptKey | None = None) -> Self:
        """Read the file back.

        Args:
            text: The file.
            expected: The attempt that the file must name; None: any.

        Raises:
            RecordError: If the file is damaged, contradicts itself, or names another attempt.
        """
        record = super().parse(text)
        if expected is not None and record.key != expected:
            raise RecordError(f"{cls.FILE} is that of attempt {record.key}, not of {expected}")
        return record

    @classmethod
    def upgraded(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The object of the file with the key as one field."""
        return {**data, "key": {name: data.get(name) for name in ("cell_id", "repeat", "attempt")}}


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFile(AttemptRecord):
    """The order for one attempt (``cell.json``): everything that the trainer must know to run it.

    Attributes:
        key: The attempt.
        sources_hash: Hash of the sources that the attempt must run; empty where the trainer is started by hand.
        run_name: Grid and cluster, for people.
        cell: The cell.
        device: Profile of the device kind that the cell names.
    """

    KIND = "cell"
    FILE = CELL_FILE

    key: AttemptKey
    sources_hash: str = ""
    run_name: str = ""
    cell: Cell
    device: Device

    def check(self) -> None:
        """Refuse a cell whose id is not the attempt's.

        Raises:
            RecordError: If the ids differ.
        """
        if cell_id(self.cell) != self.key.cell_id:
            found = cell_id(self.cell)
            raise RecordError(f"cell.json says cell {self.key.cell_id} but holds cell {found}; it was altered.")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFile(AttemptRecord):
    """The report of node 0's launcher (``attempt.json``), written at its start and again at its end.

    Attributes:
        key: The attempt.
        job_id: The scheduler's id of the job.
        restart: Number of earlier runs of the same job id.
        hosts: The job's nodes, by node rank.
        pid: The launcher's process id on its node.
        started_at: Unix time of its start.
        ended_at: Unix time of its end; None while it runs.
        exit_code: Exit code of torchrun on node 0 (negative: the signal that ended it); None while it runs.
        stopped_by: Name of the signal that asked the launcher to stop; empty where none did.
        command: The command that it started.
        environment: Environment variables that matter, secrets redacted.
        sources_hash: Hash of the sources that the launcher found.
        provenance: At submission: the commit, if the tree was dirty, and package versions.
    """

    KIND = "attempt"
    FILE = ATTEMPT_FILE

    key: AttemptKey
    job_id: JobId
    restart: int
    hosts: tuple[NodeName, ...]
    pid: int
    started_at: UnixTime
    ended_at: UnixTime | None = None
    exit_code: int | None = None
    stopped_by: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sources_hash: str = ""
    provenance: Mapping[str, object] = field(default_factory=dict)


_KIND = "error"


def render_error(error: RankError, *, exception: str = "", traceback: str = "") -> str:
    """Text of an error file; ``exception`` is the class's qualified name."""
    return render(_KIND, {**plain(error), "exception": exception, "traceback": traceback})


def parse_error(text: str) -> RankError:
    """Read an error file.

    Raises:
        RecordError: If it is damaged.
    """
    return read_record(RankError, parse_object(text, _KIND), "an error file")
