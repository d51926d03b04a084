"""The ports of the use cases: a cluster, a ledger, a run directory, a clock.

A port that acts extends one that only reads, for example :class:`Scheduler` extends :class:`JobReports`. ``status`` is
given ports that only read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sweep.core.attempts.attempt import AttemptKey, JobReport, JobRun, RankError
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import Event
from sweep.core.jobs.submission import Submission
from sweep.core.records.attempt_record import AttemptFile, CellFile
from sweep.core.records.progress import Progress
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile
from sweep.core.settings.site import Site


class SchedulerError(Exception):
    """The scheduler cannot be asked just now, or at all; nothing is known to have changed."""


class SchedulerUnreachableError(SchedulerError):
    """The scheduler's daemons do not answer just now; the same question may be answered later."""


class SubmissionRejectedError(Exception):
    """The scheduler refused a submission: no job exists.

    Attributes:
        is_transient: True if the same submission may be taken later (a limit on submitted jobs).
        leaves_no_node: True if the nodes that it does not exclude are none that it can use.
        is_known: False if nobody knows whether the message means a refusal for good: it is worth a few more tries.
    """

    def __init__(
        self, message: str, *, is_transient: bool = False, leaves_no_node: bool = False, is_known: bool = True
    ) -> None:
        """Keep the scheduler's own message."""
        super().__init__(message)
        self.is_transient, self.leaves_no_node, self.is_known = is_transient, leaves_no_node, is_known


class SubmissionUncertainError(Exception):
    """The scheduler may have taken a submission or not; it must be looked up by its name."""


class Intent(Protocol):
    """A submission as it is looked for: its own file, or the ledger where that is damaged, has this."""

    @property
    def name(self) -> str:
        """The name that its job has."""

    @property
    def created_at(self) -> float:
        """Unix time before which it was not submitted."""

    @property
    def tasks(self) -> tuple[AttemptKey, ...]:
        """Attempts by array index."""


class JobReports(Protocol):
    """Reads where jobs are."""

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission of so many tasks, from the id that they share (a claim names it)."""

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """Report on every job, in a fixed number of calls whatever their number.

        Args:
            job_ids: The jobs asked about; one that is unknown is :data:`sweep.core.attempts.attempt.ABSENT`.
            since: Unix time before which none of them was submitted.
            names: The submission's name by job. A job that has the id and another name is somebody else's: then the one
                asked about is absent, and the report has that as its reason. No other absent job has a reason.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """


class Accounting(Protocol):
    """Reads the runs of jobs that were requeued."""

    def runs_of(self, job_ids: Collection[str], *, since: float) -> Mapping[str, Sequence[JobRun]]:
        """All runs of jobs that may have been requeued under their ids, the first first; unknown jobs are left out.

        Args:
            job_ids: The jobs asked about.
            since: Unix time before which none of them was submitted.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """


class ClusterFacts(Protocol):
    """Reads what a cluster is and allows."""

    def own_name(self) -> str | None:
        """The cluster's own name; None where it has none, or does not say it now."""

    def site(self) -> Site:
        """The limits of the cluster just now, as far as it says or has said before.

        Raises:
            SchedulerError: If it cannot be reached, and never was.
        """

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Of these nodes, those out of service, with the scheduler's reason; empty where it cannot be asked."""


class Diagnosis(Protocol):
    """Reads why a job ended where the scheduler itself no longer says it."""

    def logged_end(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        """Report how the scheduler ended a job, by the lines it wrote into the job's log; None where it wrote none.

        Args:
            run_dir: The run directory.
            submission: Name of the submission.
            job_id: The job.
            since: Unix time before which nothing counts: when the job's last run began.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterView:
    """A cluster that can be asked and takes no orders; what it cannot tell is None."""

    reports: JobReports
    accounting: Accounting | None = None
    facts: ClusterFacts | None = None
    diagnosis: Diagnosis | None = None


class Scheduler(JobReports, Protocol):
    """Runs submissions as jobs."""

    @property
    def keeps_jobs(self) -> bool:
        """True if jobs go on after this process has ended."""

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Hand a submission over and give the ids of its jobs, by array index.

        Raises:
            SubmissionRejectedError: If it was refused.
            SubmissionUncertainError: If it may have been taken all the same.
            SchedulerError: If the scheduler was not reached.
        """

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Job ids of a submission by its name; None where the scheduler has never heard of it.

        A half-written submission is removed. So this is a port that acts.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """Ask for the end of jobs, which may take a while; those that are over already are no error.

        Args:
            jobs: Names of submissions by job id. A job that has the id and is of no such submission, or another
                user's, is left alone.
            only_pending: Leave jobs alone that have begun.

        Returns:
            A message for each job that was left alone.

        Raises:
            SchedulerError: If it cannot be asked.
        """

    def close(self) -> None:
        """Leave: end the jobs that cannot go on without this process, and wait until they have ended."""


class RunProgress(Protocol):
    """Reads how far a run is."""

    @property
    def path(self) -> str:
        """Absolute path."""

    def sweep_file(self) -> SweepFile | None:
        """The content of ``sweep.json``; None where there is none yet."""

    def attempt_file(self, key: AttemptKey) -> AttemptFile | None:
        """The launcher's file of an attempt's latest run; None where there is none that can be read."""

    def launches(self, key: AttemptKey) -> tuple[AttemptFile | None, tuple[AttemptFile, ...]]:
        """The launcher's file of an attempt's latest run, and those of its earlier runs in order."""

    def progress(self, key: AttemptKey) -> Progress | None:
        """The step that a running trainer is at; None where it has not said."""


class RunRecords(RunProgress, Protocol):
    """Reads all records of a run directory."""

    def submission_names(self) -> Sequence[str]:
        """Names of all submissions ever written, oldest first."""

    def submission(self, name: str) -> Submission:
        """One submission.

        Raises:
            RecordError: If its file is damaged.
            OSError: If it cannot be read.
        """

    def job_that_began(self, name: str) -> str | None:
        """The job that claimed a submission (the id that its tasks share); None: no job has begun.

        An empty claim is a withdrawal: no job ever begins.

        Raises:
            RecordError: If the claim is damaged.
            OSError: If it cannot be read.
        """

    def result(self, key: AttemptKey) -> tuple[Result | None, str]:
        """A valid result of this very attempt (of its latest restart that has one), and what is wrong with others."""

    def errors(self, key: AttemptKey) -> Sequence[RankError]:
        """Error files of an attempt's latest restart."""

    def last_sign_of_life(self, key: AttemptKey, restart: int) -> float | None:
        """Unix time at which one run of an attempt last wrote a file; ``restart`` counts the runs before it."""

    def cancel_requests(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Requests of ``sweep cancel`` made while another process holds the run: their names and cell ids."""


class RunDirectory(RunRecords, Protocol):
    """Reads and publishes records in a run directory."""

    def publish_sweep_file(self, content: SweepFile) -> None:
        """Replace ``sweep.json``."""

    def publish_submission(self, submission: Submission, cells: Iterable[CellFile]) -> None:
        """Write the cell file of every attempt and then the submission's file, all on disk on return."""

    def withdraw(self, name: str) -> str:
        """See to it that no job begins a submission from now on; gives the job that has begun before, empty: none.

        Raises:
            RecordError: If the claim that is there is damaged.
            OSError: If it can be neither written nor read.
        """

    def publish_away(self, since: float | None, message: str) -> None:
        """Tell ``status`` since when (Unix time) the scheduler has not been reached; None: it is reached."""

    def drop_cancel_request(self, name: str) -> None:
        """Take a request off the pile once it was acted on."""


class Ledger(Protocol):
    """Appends events, of one writer."""

    def read(self) -> tuple[Sequence[Event], Sequence[str]]:
        """All events, and what is wrong with the lines that are none."""

    def append(self, event: Event) -> None:
        """Write one event; on return it is on disk.

        Raises:
            OSError: If it cannot be written.
        """


class BlameBook(Protocol):
    """Keeps evidence against nodes of one cluster, shared by all runs of a user."""

    def read(self) -> Sequence[Blame]:
        """All that was ever written and can be read."""

    def add(self, blames: Iterable[Blame]) -> None:
        """Write more; a book that cannot be written is no error."""


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Unix time."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""
