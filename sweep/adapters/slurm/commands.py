"""Runs Slurm's commands: sets their environment and timeout, and retries where a controller is busy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_exponential

from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.environment import scrubbed
from sweep.ports import SchedulerError, SchedulerUnreachableError

# A user's defaults for these commands could hide jobs (SQUEUE_PARTITION) or wait for an answer (SCANCEL_INTERACTIVE).
_USERS_DEFAULTS = re.compile(r"^(SQUEUE|SACCT|SCANCEL|SINFO)_")
_FOR_ASKING = {
    "LC_ALL": "C",
    "SLURM_TIME_FORMAT": "%s",
    # The default of 64 bytes cuts the task list of a sparse array short.
    "SLURM_BITSTR_LEN": "1024",
}
_PREFIX = re.compile(r"^(?:sbatch|squeue|sacct|scancel|scontrol|sinfo|sacctmgr): (?:(?:error|fatal): )?")
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|reset|timed out)|zero bytes|standby mode"
    r"|problem talking to the database|unable to connect to database|sending persistconn|broken pipe|send failure"
    r"|receive failure|temporarily un|transport endpoint"
    # No cluster is found, or it does not authenticate this process: the same as unreachable.
    r"|configuration source|unable to resolve|munge|authentication error",
    re.IGNORECASE,
)
# With this error squeue prints no job and exits with 0; as an answer it would make every job look gone.
_NO_ANSWER = re.compile(r"error: invalid user", re.IGNORECASE)
_LONGEST_ARGUMENTS_BYTES = 100_000


class CommandMissingError(SchedulerError):
    """A command is not on PATH."""


class CommandTimeoutError(SchedulerUnreachableError):
    """A command was killed because it took too long; its effect is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """The lines on standard error, without ``sbatch: error:``, joined by ``; ``; else those on standard output."""
        for printed in (self.stderr, self.stdout):
            lines = [_PREFIX.sub("", line.strip()) for line in printed.splitlines()]
            if any(lines):
                return "; ".join(filter(None, lines))
        return ""


class SlurmCommands:
    """Runs Slurm's commands.

    Args:
        environ: Their environment, ``PATH`` included; variables that an enclosing job left in it are removed.
        timeout_s: Seconds that each command may take.
        attempts: Attempts while the controller or the database does not answer.
        backoff_s: Seconds before the first retry; doubled for each further one, up to 10.
        patience_s: Seconds after which there is no retry: Slurm's commands themselves retry for MessageTimeout (29 s
            were seen).
        sleep: Waits.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        timeout_s: float = 60.0,
        attempts: int = 3,
        backoff_s: float = 1.0,
        patience_s: float = 20.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clean = scrubbed(environ)
        asking = {name: value for name, value in self._clean.items() if not _USERS_DEFAULTS.match(name)}
        self._asking = {**asking, **_FOR_ASKING}
        self._timeout_s, self._attempts, self._backoff_s = timeout_s, attempts, backoff_s
        self._patience_s, self._sleep = patience_s, sleep

    def require(self, *names: str) -> None:
        """Check that commands can be run, before anything depends on them.

        Raises:
            CommandMissingError: If one is not on PATH.
            SchedulerError: If SLURM_CONF names no file; each command would search for another one for a minute.
        """
        for name in names:
            self._program(name)
        named = self._clean.get("SLURM_CONF")
        if named and not Path(named).is_file():
            raise SchedulerError(
                f"SLURM_CONF names {named}, which is no file. Let it name the cluster's slurm.conf, or unset it on a "
                "machine that finds its cluster by itself."
            )

    def ask(self, command: Sequence[str], *, unless: re.Pattern[str] | None = None) -> str:
        """Run a command that changes nothing when repeated, and return its standard output.

        Args:
            command: Name and arguments.
            unless: An error message of Slurm that is no failure.

        Raises:
            SchedulerError: If it failed, or could not reach the controller in several attempts.
        """
        retrying = Retrying(
            stop=stop_after_attempt(self._attempts) | stop_after_delay(self._patience_s),
            wait=wait_exponential(multiplier=self._backoff_s, max=10),
            retry=retry_if_exception_type(SchedulerUnreachableError),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(self._ask_once, command, unless)

    def _ask_once(self, command: Sequence[str], unless: re.Pattern[str] | None) -> str:
        answer = self._run(command, self._asking)
        if answer.returncode == 0 and not _NO_ANSWER.search(answer.stderr):
            return answer.stdout
        if unless is not None and unless.search(answer.stderr):
            return answer.stdout
        text = f"{command[0]} failed: {answer.message or f'exit code {answer.returncode}'}"
        raise (SchedulerUnreachableError if _TRANSIENT.search(answer.stderr) else SchedulerError)(text)

    def submit(self, command: Sequence[str]) -> Answer:
        """Run a command once, in the environment that a job inherits.

        Raises:
            CommandMissingError: If it is not on PATH.
            CommandTimeoutError: If it took too long and was killed.
        """
        return self._run(command, self._clean)

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._clean.get("PATH", os.defpath))
        if found is None:
            hint = " Where a cluster keeps no accounting, set slurm.sacct=false." if name == "sacct" else ""
            raise CommandMissingError(
                f"{name} is not on PATH. Run this where Slurm is, on a login node, or take cluster=local.{hint}"
            )
        return found

    def _run(self, command: Sequence[str], environ: Mapping[str, str]) -> Answer:
        program = self._program(command[0])
        try:
            process = subprocess.Popen(
                [program, *command[1:]],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                # A session of its own: killed with its children, and not stopped by Ctrl-C at the terminal.
                start_new_session=True,
            )
        except OSError as error:
            raise SchedulerError(f"{program} cannot be run: {error}") from error
        with process:
            try:
                stdout, stderr = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                raise CommandTimeoutError(f"{command[0]} did not answer within {self._timeout_s:g} s") from error
        return Answer(returncode=process.returncode, stdout=stdout, stderr=stderr)


def argument_chunks(words: Sequence[str], limit_bytes: int = _LONGEST_ARGUMENTS_BYTES) -> Iterator[list[str]]:
    """Split words into as few lists as fit on a command line each: about 10,000 job ids fit on one."""
    chunk: list[str] = []
    length = 0
    for word in words:
        if chunk and length + len(word) + 1 > limit_bytes:
            yield chunk
            chunk, length = [], 0
        chunk.append(word)
        length += len(word) + 1
    if chunk:
        yield chunk
