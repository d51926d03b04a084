"""Names and schemas of everything in a run directory; what the tool, the trainer and the analysis agree on.

A run directory::

    sweep.json                                          the grid's points, rejections, series and devices
    ledger.jsonl                                        what was reserved, submitted and how it ended
    lease.json                                          who may write just now
    scheduler-away.json                                 since when the scheduler has not been reached; only then there
    sources/<hash>/{sweep,trainer,analysis}/            the code that queued jobs run
    submissions/<name>.json                             what one submission runs, by array index
    submissions/<name>.claim                            who has it: the one job that runs it, or nobody any more
    submissions/logs/                                   what a job printed before it knew its attempt
    cells/<cell_id>/repeat-01/attempt-01/               one try at a repeat
        cell.json                                       what to run
        attempt.json                                    what the launcher of node 0 did and saw
        node-0.log node-1.log                           everything a node's processes printed
        progress.json                                   the step a running trainer is at
        steps.jsonl                                     one line a step
        error-rank-0.json error-node-0.json             only after an error
        flight-rank-0                                   torch's flight recorder, only after communication failed
        result.json                                     renamed last: it is complete
        restart-1/                                      the same, of the same job id run again
    local/                                              processes of local jobs (the local cluster only)
    provenance/                                         uncommitted diffs, by their hash
    requests/                                           cancels that the process which holds the run has to take up
    tables/ figures/
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sweep.core.attempts.attempt import AttemptKey, RankError
from sweep.core.cells.cell import Cell, cell_id, cell_to_json
from sweep.core.cells.device import Device
from sweep.core.encoding.codec import convert_value

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = 1

SWEEP_FILE = "sweep.json"
LEDGER_FILE = "ledger.jsonl"
LEASE_FILE = "lease.json"
AWAY_FILE = "scheduler-away.json"
SOURCES_DIR = "sources"
SUBMISSIONS_DIR = "submissions"
SUBMISSION_LOGS_DIR = "submissions/logs"
CELLS_DIR = "cells"
TABLES_DIR = "tables"
FIGURES_DIR = "figures"
CELL_FILE = "cell.json"
ATTEMPT_FILE = "attempt.json"
PROGRESS_FILE = "progress.json"
STEPS_FILE = "steps.jsonl"
RESULT_FILE = "result.json"
FLIGHT_PREFIX = "flight-rank-"
ERROR_GLOB = "error-*.json"
LOG_GLOB = "node-*.log"
SOURCES = ("measured", "simulated", "imported")
"""Where a result can come from; one series never mixes them."""


def attempt_dir(key: AttemptKey) -> PurePosixPath:
    """Folder of an attempt, relative to the run directory."""
    return PurePosixPath(CELLS_DIR, key.cell_id, f"repeat-{key.repeat:02d}", f"attempt-{key.attempt:02d}")


def restart_dir(attempt: PurePosixPath, restart: int) -> PurePosixPath:
    """Folder of a restart (the same job id run again); restart 0 is the attempt's own folder."""
    return attempt if restart == 0 else attempt / f"restart-{restart}"


def node_log(node_rank: int) -> str:
    """File into which everything goes that the processes of one node print."""
    return f"node-{node_rank}.log"


def rank_error(rank: int) -> str:
    """Error file of one rank."""
    return f"error-rank-{rank}.json"


def node_error(node_rank: int) -> str:
    """Error file of one node's launcher."""
    return f"error-node-{node_rank}.json"


class RecordError(ValueError):
    """A record cannot be used: unreadable, of another schema version, incomplete, or of another attempt."""


def parse_object(text: str, kind: str) -> dict[str, Any]:
    """A record's JSON object, its kind and schema version checked.

    Raises:
        RecordError: If it is no JSON object, or of another kind or version.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{kind} is not whole JSON ({error})") from error
    if not isinstance(data, dict):
        raise RecordError(f"{kind} is not a JSON object")
    if data.get("kind") != kind:
        raise RecordError(f"expected a record of kind {kind!r}, found {data.get('kind')!r}")
    if data.get("schema") != SCHEMA_VERSION:
        raise RecordError(
            f"{kind} has schema version {data.get('schema')!r}; this version reads {SCHEMA_VERSION}. "
            "Read it with the version that wrote it."
        )
    return data


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def _read_fields(cls: type, data: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The fields of a record as their types; one with a default may be missing, an unknown one is left aside.

    Raises:
        RecordError: If a field is missing or of the wrong type.
    """
    values = {}
    for item in _fields_of(cls):
        if item.name in data:
            try:
                values[item.name] = convert_value(cls, item.name, data[item.name], item.name)
            except ValueError as error:
                raise RecordError(f"{file} is damaged: {error}") from error
        elif item.default is MISSING and item.default_factory is MISSING:
            raise RecordError(f"{file} lacks {item.name!r}")
    return values


_fields_of = functools.cache(fields)


def _with_key(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields with the key, which lies flat in its file, as one of them."""
    return {**data, "key": {name: data.get(name) for name in ("cell_id", "repeat", "attempt")}}


def render(kind: str, body: Mapping[str, object]) -> str:
    """A record as the text of its file: kind and schema version first, numbers finite."""
    return json.dumps({"schema": SCHEMA_VERSION, "kind": kind, **body}, indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFile:
    """What one attempt is to run (``cell.json``): all that the trainer is told.

    Attributes:
        cell: The cell.
        device: Profile of the device kind that the cell names.
        key: Which attempt this is.
        sources_hash: Hash of the sources that it must run; empty when the trainer is run by hand.
        run_name: Grid and cluster, for people.
    """

    cell: Cell
    device: Device
    key: AttemptKey
    sources_hash: str = ""
    run_name: str = ""

    def render(self) -> str:
        """Text of the file."""
        body = {
            "cell_id": self.key.cell_id,
            "repeat": self.key.repeat,
            "attempt": self.key.attempt,
            "sources_hash": self.sources_hash,
            "run_name": self.run_name,
            "cell": cell_to_json(self.cell),
            "device": self.device.to_json(),
        }
        return render("cell", body)

    @classmethod
    def parse(cls, text: str) -> CellFile:
        """Read the file back.

        Raises:
            RecordError: If it is damaged, or its id is not that of its cell.
        """
        values = _read_fields(cls, _with_key(parse_object(text, "cell")), CELL_FILE)
        file = cls(**values)
        if cell_id(file.cell) != file.key.cell_id:
            found = cell_id(file.cell)
            raise RecordError(f"cell.json says cell {file.key.cell_id} but holds cell {found}; it was altered.")
        return file


# A table reads a hundred thousand of these lines: the decoder is made once.
_STEP_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimiser step (a line of ``steps.jsonl``); times are the maximum over ranks.

    Attributes:
        step: Counts from 0.
        step_time_s: Seconds; the maximum over ranks.
        tokens: Tokens over all ranks.
        loss: Mean cross-entropy a token over the global batch, before the update.
        grad_norm: Global norm of the gradient before clipping; None where it was not computed.
        is_warmup: Whether metrics leave it out.
    """

    step: int
    step_time_s: float
    tokens: int
    loss: float | None
    grad_norm: float | None
    is_warmup: bool

    def render(self) -> str:
        """One JSON line; a loss that is not finite becomes null, which JSON can say."""
        data = asdict(self)
        for name in ("loss", "grad_norm"):
            if data[name] is not None and not math.isfinite(data[name]):
                data[name] = None
        return json.dumps(data, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str) -> Step:
        """Read one line back.

        Raises:
            RecordError: If the line is damaged.
        """
        try:
            data = _STEP_DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"a line of {STEPS_FILE} is damaged: {error}") from error
        if not isinstance(data, dict):
            raise RecordError(f"a line of {STEPS_FILE} is damaged: it is no JSON object")
        return cls(**_read_fields(cls, data, f"a line of {STEPS_FILE}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a trainer measured (``result.json``, renamed last); raw quantities, nothing derived.

    Attributes:
        key: Whose result it is.
        restart: Which run of the job id wrote it.
        started_at: Unix time at which rank 0 began.
        ended_at: Unix time at which it wrote this.
        world_size: Ranks that took part.
        hosts: Host name of each node, by node rank.
        device_type: ``cuda`` or ``cpu``.
        device_name: As the driver reports it (on a CPU: the processor's name).
        n_params: Parameters of the model as it was built.
        steps: Steps run in all.
        warmup_steps: Leading steps outside the window.
        window_steps: Steps of the measured window.
        window_tokens: Tokens of the window over all ranks.
        window_time_s: Seconds of the window from edge to edge; the maximum over ranks.
        window_energy_j: Joules of all GPUs in the window; None where no counter could be read.
        power_source: Which counter; empty where none.
        peak_memory_bytes: Largest device memory allocated in any rank (on a CPU: resident set); None where unknown.
        peak_reserved_bytes: The allocator's reserve at its largest; None on a CPU.
        throttled: Whether any device said that it slowed down in the window; None where unknown.
        throttle_reasons: Its words.
        oversubscribed: More ranks on a node than it has devices (on a CPU: cores).
        final_loss: Loss of the last step.
        fingerprint: Hash of ``fingerprint_fields``.
        fingerprint_fields: What changes a number without being in the cell: versions, driver, device, sources.
        versions: Versions of packages and libraries.
        environment: Environment variables that matter, secrets redacted.
        extra: Anything further a trainer records (profiles, memory by kind); read by name, never required.
        source: One of :data:`SOURCES`.
    """

    key: AttemptKey
    restart: int
    started_at: float
    ended_at: float
    world_size: int
    hosts: tuple[str, ...]
    device_type: str
    device_name: str
    n_params: int
    steps: int
    warmup_steps: int
    window_steps: int
    window_tokens: int
    window_time_s: float
    window_energy_j: float | None
    power_source: str
    peak_memory_bytes: int | None
    peak_reserved_bytes: int | None
    throttled: bool | None
    throttle_reasons: tuple[str, ...]
    oversubscribed: bool
    final_loss: float | None
    fingerprint: str
    fingerprint_fields: Mapping[str, str | None]
    versions: Mapping[str, str | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    source: str = "measured"

    def render(self) -> str:
        """Text of the file."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        key = body.pop("key")
        for name in ("fingerprint_fields", "versions", "environment", "extra"):
            body[name] = dict(body[name])
        return render("result", {"cell_id": key.cell_id, "repeat": key.repeat, "attempt": key.attempt, **body})

    @classmethod
    def parse(cls, text: str, *, expected: AttemptKey | None = None) -> Result:
        """Read the file back.

        Args:
            text: The file.
            expected: The attempt whose result it must be; None: whichever it says.

        Raises:
            RecordError: If it is damaged, incomplete, physically impossible or of another attempt.
        """
        result = cls(**_read_fields(cls, _with_key(parse_object(text, "result")), RESULT_FILE))
        if expected is not None and result.key != expected:
            raise RecordError(f"result.json is that of attempt {result.key}, not of {expected}")
        result.check()
        return result

    def check_against(self, cell: Cell) -> None:
        """Refuse a result of another experiment than the cell asks for.

        Raises:
            RecordError: If ranks, tokens or parameters are not the cell's.
        """
        wanted = {
            "world_size": cell.gpus,
            "window_tokens": self.window_steps * cell.tokens_per_step,
            "n_params": cell.model.n_params,
        }
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise RecordError(f"result.json has {name}={getattr(self, name)}; the cell makes it {value}")

    def check(self) -> None:
        """Refuse numbers that no run can have.

        Raises:
            RecordError: If the window is empty, a quantity is negative or not finite, or the source is not known.
        """
        for name in ("window_steps", "window_tokens", "world_size", "n_params", "steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RecordError(f"result.json has {name}={value!r}, not a positive whole number")
        for name in ("window_energy_j", "peak_memory_bytes", "peak_reserved_bytes", "warmup_steps", "restart"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise RecordError(f"result.json has {name}={value!r}, not a number from 0")
        if not 0 < self.window_time_s < math.inf:
            raise RecordError(f"result.json has window_time_s={self.window_time_s!r}, not a positive number")
        if self.warmup_steps + self.window_steps > self.steps:
            shown = f"warmup_steps={self.warmup_steps} and window_steps={self.window_steps}"
            raise RecordError(f"result.json has {shown}, more than its steps={self.steps}")
        if self.source not in SOURCES:
            raise RecordError(f"result.json has source={self.source!r}, not one of {', '.join(SOURCES)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a running trainer is (``progress.json``, replaced every second or so)."""

    step: int
    steps: int
    time: float
    tokens_per_s: float | None

    def render(self) -> str:
        """Text of the file."""
        return render("progress", asdict(self))

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Read the file back.

        Raises:
            RecordError: If it is damaged.
        """
        return cls(**_read_fields(cls, parse_object(text, "progress"), PROGRESS_FILE))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFile:
    """What the launcher of node 0 did and saw (``attempt.json``); rewritten at its start and at its end.

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

    def render(self) -> str:
        """Text of the file."""
        body = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "key"}
        key = {"cell_id": self.key.cell_id, "repeat": self.key.repeat, "attempt": self.key.attempt}
        return render("attempt", {**key, **body})

    @classmethod
    def parse(cls, text: str) -> AttemptFile:
        """Read the file back.

        Raises:
            RecordError: If it is damaged.
        """
        return cls(**_read_fields(cls, _with_key(parse_object(text, "attempt")), ATTEMPT_FILE))


def render_error(error: RankError, *, exception: str = "", traceback: str = "") -> str:
    """Text of an error file; ``exception`` is the class's qualified name."""
    return render("error", {**asdict(error), "exception": exception, "traceback": traceback})


def parse_error(text: str) -> RankError:
    """Read an error file back.

    Raises:
        RecordError: If it is damaged.
    """
    data = parse_object(text, "error")
    return RankError(**_read_fields(RankError, {**data, "message": str(data.get("message", ""))}, "an error file"))
