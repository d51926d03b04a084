"""One node's part of an attempt: checks, the command, and the records that stay."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.attempts.error_text import classify_lines, classify_text
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.environment import relevant
from sweep.core.jobs.node_command import CACHES, EXITS_FILE, Node
from sweep.core.records.attempt_record import AttemptFile, parse_error, render_error
from sweep.core.records.layout import ATTEMPT_FILE, CELL_FILE, ERROR_GLOB, node_error, node_log, rank_error
from sweep.core.settings.spec import Runner
from sweep.files import make_folder, open_to_append, read_tail, read_text, write_atomically
from sweep.launch.check import EXIT_REFUSED
from sweep.launch.exits import (
    LAST_LINES_BYTES,
    Explanation,
    RankExit,
    Witness,
    explain,
    explain_agent,
    last_messages,
    oom_kills,
    read,
)
from sweep.launch.supervisor import Supervisor


def open_cache(environ: Mapping[str, str]) -> str:
    """Make the compilers' cache folders; returns why one must not be used, empty where none may be another user's."""
    for name in CACHES:
        path = Path(environ[name])
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return (
                f"{name}={path} belongs to another user, or others can write it; what they put there would run as you. "
                "Name a folder that is yours alone, or unset it."
            )
    return ""


class Launcher:
    """Runs one node's part of an attempt and keeps its records.

    Args:
        node: This node's place in the job.
        environ: The environment.
    """

    def __init__(self, node: Node, environ: Mapping[str, str]) -> None:
        """Make the folder of this run of the job and redirect everything printed to the node's log in it."""
        self._node = node
        run_dir = Path(node.submission.run_dir)
        self._cell_file = run_dir / node.attempt / CELL_FILE
        self._environ = environ
        self._record = AttemptFile(
            key=node.key,
            job_id=node.job_id,
            restart=node.restart,
            hosts=node.hosts,
            pid=os.getpid(),
            started_at=time.time(),
            provenance=node.submission.provenance,
            sources_hash=node.submission.sources_hash,  # sweep.launch.check has found that they have it
        )
        self._folder = make_folder(run_dir, node.folder, mode=0o755)
        _log_to(self._folder / node_log(node.node_rank))

    def run(self, supervisor: Supervisor) -> int:
        """Check, start and wait; returns the exit code of this process.

        Raises:
            OSError: If a file cannot be written; it is reported if the report can be.
        """
        try:
            return self._run_checked(supervisor)
        except OSError as error:
            self._report(classify_text(str(error)), str(error))
            raise

    def _run_checked(self, supervisor: Supervisor) -> int:
        refusal = self._refusal()
        if refusal is not None:
            self._report(*refusal)
            self._end(EXIT_REFUSED)
            return EXIT_REFUSED
        killed_before = oom_kills()
        log_dir = tempfile.mkdtemp(prefix="sweep-")
        try:
            code = self._run(supervisor, log_dir)
            exits = read(Path(log_dir) / EXITS_FILE)
            spoken = last_messages(Path(log_dir), exits)
        finally:
            shutil.rmtree(log_dir, ignore_errors=True)
        killed = (oom_kills() or 0) - (killed_before or 0)
        if killed > 0 and code != 0:
            # A rank that is killed so writes nothing itself, and its peers only that they lost it.
            self._report(ErrorClass.OOM_HOST, f"the kernel killed {killed} of its processes for want of host memory")
        elif supervisor.stopped_by is not None and code != 0:
            self._report(*_stopped(supervisor.stopped_by))
        elif code != 0:
            self._explain(code, exits, spoken, counts_kills=killed_before is not None)
        self._end(code, supervisor.stopped_by)
        return _exit_code(code, supervisor.stopped_by)

    def _refusal(self) -> tuple[ErrorClass, str] | None:
        """The reason why nothing may start; empty where it may."""
        if self._node.submission.launch.runner is not Runner.TORCHRUN:
            return None
        if importlib.util.find_spec("torch") is None:
            mend = "Install the extra 'trainer' there, name another Python with cluster.launch.python, or load torch in"
            return ErrorClass.REFUSED, f"{sys.executable} has no torch. {mend} cluster.slurm.setup."
        if self._node.node_rank == 0 and not self._node.meeting_dir and not _is_free(self._node.port):
            # Worth another attempt, which has another port; the peers would join whoever listens there.
            return ErrorClass.COMMUNICATION, f"the rendezvous port {self._node.port} is in use on {self._node.head}."
        return None

    def _run(self, supervisor: Supervisor, log_dir: str) -> int:
        node = self._node
        command = node.command(
            python=node.submission.launch.python or sys.executable,
            cell_file=str(self._cell_file),
            out_dir=str(self._folder),
            log_dir=log_dir,
        )
        environ = node.environment(self._environ, cores=len(os.sched_getaffinity(0)), scratch_dir=log_dir)
        self._record = replace(self._record, command=command, environment=relevant(environ))
        self._write()
        if problem := open_cache(environ):
            self._report(ErrorClass.REFUSED, problem)
            return EXIT_REFUSED
        try:
            return supervisor.run(command, environ)
        except OSError as error:
            self._report(ErrorClass.EXCEPTION, f"{command[0]} cannot be started: {error}")
            return 127

    def _explain(
        self, code: int, exits: list[RankExit], spoken: Mapping[int, Sequence[str]], *, counts_kills: bool
    ) -> None:
        """Report ranks that could not report themselves: a signal ended them or their agent."""
        witness = None
        if self._node.submission.device_type == "cuda":
            witness = Witness(last_messages=spoken, peers_lost_at=self._peers_lost_at())
        program = "torchrun" if self._node.submission.launch.runner is Runner.TORCHRUN else "the entry"
        found = explain(
            exits,
            lambda rank: (self._folder / rank_error(rank)).exists(),
            counts_kills=counts_kills,
            witness=witness,
        )
        found = found or explain_agent(code, program, counts_kills=counts_kills) or self._explain_by_log(exits, spoken)
        if found is not None:
            self._report(found.error_class, found.message, found.time)

    def _explain_by_log(self, exits: list[RankExit], spoken: Mapping[int, Sequence[str]]) -> Explanation | None:
        """The error of a file system that the last lines tell of: a rank that met it may not have written its own."""
        if any((self._folder / rank_error(each.rank)).exists() for each in exits):
            return None
        log = self._folder / node_log(self._node.node_rank)
        lines = [*read_tail(log, LAST_LINES_BYTES).decode(errors="replace").splitlines(), *chain(*spoken.values())]
        found = classify_lines(lines)
        if found is None or found[0] is not ErrorClass.STORAGE:
            return None
        return Explanation(error_class=found[0], message=f"the last lines of its log say: {found[1]}")

    def _peers_lost_at(self) -> list[float]:
        found = []
        for path in self._folder.glob(ERROR_GLOB):
            with contextlib.suppress(OSError, RecordError):
                error = parse_error(read_text(path))
                if error.error_class is ErrorClass.COMMUNICATION:
                    found.append(error.time)
        return found

    def _end(self, code: int, stopped_by: signal.Signals | None = None) -> None:
        self._record = replace(
            self._record, ended_at=time.time(), exit_code=code, stopped_by=stopped_by.name if stopped_by else ""
        )
        self._write()

    def _write(self) -> None:
        if self._node.node_rank == 0:
            write_atomically(self._folder / ATTEMPT_FILE, self._record.render())

    def _report(self, error_class: ErrorClass, message: str, at: float | None = None) -> None:
        with contextlib.suppress(OSError):  # the log may be on a disk that is full
            print(f"launch: {message}", file=sys.stderr, flush=True)
        rank = self._node.node_rank
        caught_at = time.time() if at is None else at
        error = RankError(rank=None, node_rank=rank, time=caught_at, error_class=error_class, message=message)
        write_atomically(self._folder / node_error(rank), render_error(error))


def _log_to(path: Path) -> None:
    fd = open_to_append(path)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _stopped(by: signal.Signals) -> tuple[ErrorClass, str]:
    if by is signal.SIGUSR2:
        return ErrorClass.TIMEOUT, "stopped because the time limit is near (SIGUSR2)"
    return ErrorClass.STOPPED, f"stopped by {by.name}"


def _exit_code(code: int, stopped_by: signal.Signals | None) -> int:
    """The exit code of a shell: 128 + signal for a command that a signal stopped or killed."""
    if code != 0 and stopped_by is not None:
        return 128 + stopped_by
    return 128 - code if code < 0 else code
