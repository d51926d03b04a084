"""What the use cases need of the world: a scheduler, a ledger, a run directory, a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import AttemptKey, JobReport, JobRun, Outcome, RankError
    from sweep.core.attempts.blame import Blame
    from sweep.core.attempts.ledger import Event
    from sweep.core.jobs.submission import Submission
    from sweep.core.records.attempt_file import AttemptFile
    from sweep.core.records.cell_file import CellFile
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
        is_transient: Whether the same submission may be taken later (a limit on submitted jobs).
        leaves_no_node: Whether no nodes are left that are what it asks for, without those that it excludes.
    """

    def __init__(self, words: str, *, is_transient: bool = False, leaves_no_node: bool = False) -> None:
        """Keep the scheduler's own words."""
        super().__init__(words)
        self.is_transient, self.leaves_no_node = is_transient, leaves_no_node


class SubmissionUncertainError(Exception):
    """Whether the scheduler took a submission is not known; it must be looked up by its name."""


class Intent(Protocol):
    """What a submission is looked for by: as its own file has it, or the ledger where that is damaged."""

    @property
    def name(self) -> str:
        """The name that its job has."""
        ...

    @property
    def created_at(self) -> float:
        """Unix time before which it was not submitted."""
        ...

    @property
    def tasks(self) -> tuple[AttemptKey, ...]:
        """Attempts by array index."""
        ...


class Scheduler(Protocol):
    """Runs submissions as jobs."""

    @property
    def keeps_jobs(self) -> bool:
        """Whether jobs go on after this process has ended."""
        ...

    def own_name(self) -> str | None:
        """What the cluster calls itself; None where it has no name, or does not say it now."""
        ...

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Hand a submission over and give the ids of its jobs, by array index.

        Raises:
            SubmissionRejectedError: If it was refused.
            SubmissionUncertainError: If it may have been taken all the same.
            SchedulerError: If the scheduler was not reached.
        """
        ...

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Job ids of a submission by its name; None where the scheduler has never heard of it.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """
        ...

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission of so many tasks, from the id that they share (a claim names it)."""
        ...

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """What is known of each job, in a fixed number of calls whatever their number.

        Args:
            job_ids: The jobs asked about; each is in the answer, by
                :data:`sweep.core.attempts.attempt.ABSENT` where unknown.
            since: Unix time before which none of them was submitted.
            names: By job its submission's name: what has its id and is not of that submission is another job. Then
                this one is absent, with the reason; of nothing else that is absent there is a reason.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """
        ...

    def runs_of(self, job_ids: Collection[str], *, since: float) -> Mapping[str, Sequence[JobRun]]:
        """All runs of jobs that may have been requeued under their ids, the first first.

        Args:
            job_ids: The jobs asked about; one of which that is not known is left out.
            since: Unix time before which none of them was submitted.

        Raises:
            SchedulerError: If it cannot be asked: then nothing is known.
        """
        ...

    def site(self) -> Site:
        """What the cluster allows just now, as far as it says or has said before.

        Raises:
            SchedulerError: If it cannot be reached, and never was.
        """
        ...

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Of these nodes, those out of service, with the scheduler's reason; empty where it cannot be asked."""
        ...

    def is_hopeless(self, report: JobReport) -> bool:
        """Whether a waiting job's reason is one that no waiting cures."""
        ...

    def outcome_of(self, report: JobReport) -> Outcome | None:
        """What the state's word means, where it is specific."""
        ...

    def last_words(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        """How the scheduler itself ended a job, by what it wrote into the job's log; None where it wrote nothing.

        Args:
            run_dir: The run directory.
            submission: Name of the submission.
            job_id: The job.
            since: Unix time before which nothing counts: when the job's last run began.
        """
        ...

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """Ask for the end of jobs, which may take a while; those that are over already are no error.

        Args:
            jobs: Job ids with the names of their submissions: what has the id and is of no such submission, or
                another user's, is left alone.
            only_pending: Leave those alone that have begun.

        Returns:
            What was left alone, in words; empty where nothing had to be.

        Raises:
            SchedulerError: If it cannot be asked.
        """
        ...

    def close(self) -> None:
        """Leave: end what cannot go on without this process, and wait until it has ended."""
        ...


class Ledger(Protocol):
    """Append-only events with one writer."""

    def read(self) -> tuple[Sequence[Event], Sequence[str]]:
        """All events, and what is wrong with the lines that are none."""
        ...

    def append(self, event: Event) -> None:
        """Write one event; on return it is on disk.

        Raises:
            OSError: If it cannot be written.
        """
        ...


class RunDirectory(Protocol):
    """Reading and publishing in a run directory."""

    @property
    def path(self) -> str:
        """Absolute path."""
        ...

    def sweep_file(self) -> SweepFile | None:
        """The content of ``sweep.json``; None where there is none yet."""
        ...

    def publish_sweep_file(self, content: SweepFile) -> None:
        """Replace ``sweep.json``."""
        ...

    def publish_submission(self, submission: Submission, cells: Iterable[CellFile]) -> None:
        """Write the cell file of every attempt and then the submission's file, all on disk on return."""
        ...

    def submission_names(self) -> Sequence[str]:
        """Names of all submissions ever written, oldest first."""
        ...

    def submission(self, name: str) -> Submission:
        """One submission.

        Raises:
            RecordError: If its file is damaged.
            OSError: If it cannot be read.
        """
        ...

    def job_that_began(self, name: str) -> str | None:
        """The job that runs a submission (the id that its tasks share), by its own claim.

        None where none has begun, and empty where none ever will: the submission was withdrawn.

        Raises:
            RecordError: If the claim is damaged.
            OSError: If it cannot be read.
        """
        ...

    def withdraw(self, name: str) -> str:
        """See to it that no job begins a submission from now on; gives the job that has begun before, empty: none.

        Raises:
            RecordError: If the claim that is there is damaged.
            OSError: If it can be neither written nor read.
        """
        ...

    def result(self, key: AttemptKey) -> tuple[Result | None, str]:
        """A valid result of this very attempt (of its latest restart that has one), and what is wrong with others."""
        ...

    def errors(self, key: AttemptKey) -> Sequence[RankError]:
        """Error files of an attempt's latest restart."""
        ...

    def earlier_runs(self, key: AttemptKey) -> Sequence[AttemptFile]:
        """What the launchers of an attempt's earlier runs under the same job id wrote, the first first."""
        ...

    def last_sign_of_life(self, key: AttemptKey, restart: int) -> float | None:
        """Unix time at which an attempt's run, by how often the job had run before, last wrote a file."""
        ...

    def attempt_file(self, key: AttemptKey) -> AttemptFile | None:
        """What the launcher wrote; None where it has not, or not readably."""
        ...

    def progress(self, key: AttemptKey) -> Progress | None:
        """The step a running trainer is at; None where it has not said."""
        ...

    def publish_away(self, since: float | None, words: str) -> None:
        """Say for ``status`` since when (Unix time) the scheduler has not been reached, and its words; None: it is."""
        ...

    def cancel_requests(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Requests of ``sweep cancel`` made while another process holds the run: their names and cell ids."""
        ...

    def drop_cancel_request(self, name: str) -> None:
        """Take a request off the pile once it was acted on."""
        ...


class BlameBook(Protocol):
    """Evidence against nodes of one cluster, shared by all runs of a user."""

    def read(self) -> Sequence[Blame]:
        """All that was ever written and can be read."""
        ...

    def add(self, blames: Iterable[Blame]) -> None:
        """Write more; a book that cannot be written is no error."""
        ...


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Unix time."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
