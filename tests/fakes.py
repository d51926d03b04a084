"""Fakes of the ports, for faults that the real things will not produce on demand and for decisions without waiting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sweep.core.attempts.attempt import ABSENT, AttemptKey, JobReport, JobRun, Phase, RankError, slurm_state
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import Event, parse_event, render_event
from sweep.core.attempts.verdict import Verdict
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention, ModelShape
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.record import RecordError
from sweep.core.grids.grid import Point, Rejection
from sweep.core.grids.series import SeriesKind, SeriesSpec
from sweep.core.jobs.submission import Submission
from sweep.core.records.attempt_record import AttemptFile, CellFile
from sweep.core.records.progress import Progress
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile
from sweep.core.settings.site import UNLIMITED, Site
from sweep.core.settings.spec import LaunchSpec
from sweep.ports import ClusterView, Intent

TINY = ModelShape(name="tiny", n_layers=2, hidden=32, n_heads=4, n_kv_heads=2, ffn_hidden=64, vocab_size=128)
CPU = Device(name="cpu", type="cpu")


def tiny_cell(*, nodes: int = 1, gpus_per_node: int = 1, **changes: object) -> Cell:
    """A small FSDP cell."""
    gpus = nodes * gpus_per_node
    values: dict[str, object] = {
        "model": TINY,
        "device": "cpu",
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "parallelism": Parallelism(dp_shard=gpus),
        "global_batch": 2 * gpus,
        "micro_batch": 2,
        "seq_len": 32,
        "precision": Precision.FP32,
        "trainer": TrainerSettings(steps=6, warmup_steps=1),
        **changes,
    }
    return Cell(**values)  # type: ignore[arg-type]  # assembled from keywords


def weak_content(
    cells: Mapping[str, Cell], *, cluster: str = "fake", rejections: Iterable[Rejection] = ()
) -> SweepFile:
    """The ``sweep.json`` of a weak-scaling grid over nodes that has just these cells."""
    return SweepFile(
        grid="weak",
        cluster=cluster,
        scale="laptop",
        batch_kind=BatchKind.SEQUENCES_PER_GPU,
        repeats=1,
        series=SeriesSpec(kind=SeriesKind.WEAK, baseline={"nodes": 1}),
        flop_convention=FlopConvention.PALM_FULL,
        devices={"cpu": CPU},
        cells=cells,
        points=tuple(Point(axes={"nodes": cell.nodes}, cell_id=name) for name, cell in cells.items()),
        rejections=tuple(rejections),
    )


def submission_of(tasks: int | tuple[AttemptKey, ...] = 1, **changes: object) -> Submission:
    """A submission of jobs of one CPU: so many, or these attempts."""
    if isinstance(tasks, int):
        tasks = tuple(AttemptKey(cell_id=f"{number:016x}", repeat=1, attempt=1) for number in range(tasks))
    values: dict[str, object] = {
        "name": "weak",
        "run_dir": "/runs/weak",
        "created_at": 0.0,
        "tasks": tasks,
        "nodes": 1,
        "gpus_per_node": 1,
        "device_type": "cpu",
        "walltime_min": 5,
        "sources_dir": "/runs/weak/sources/abc",
        "sources_hash": "abc",
        "launch": LaunchSpec(),
        **changes,
    }
    return Submission(**values)  # type: ignore[arg-type]  # assembled from keywords


def result_of(key: AttemptKey, **changes: object) -> Result:
    """A valid result of an attempt."""
    values: dict[str, object] = {
        "key": key,
        "restart": 0,
        "started_at": 1000.0,
        "ended_at": 1010.0,
        "world_size": 1,
        "hosts": ("host1",),
        "device_type": "cpu",
        "device_name": "some CPU",
        "n_params": TINY.n_params,
        "steps": 6,
        "warmup_steps": 1,
        "window_steps": 5,
        "window_tokens": 320,
        "window_time_s": 2.5,
        "window_energy_j": None,
        "power_source": "",
        "peak_memory_bytes": 1 << 20,
        "peak_reserved_bytes": None,
        "throttled": None,
        "throttle_reasons": (),
        "oversubscribed": False,
        "final_loss": 4.5,
        "fingerprint": "abcdef012345",
        "fingerprint_fields": {"torch": "2.13.0"},
        **changes,
    }
    return Result(**values)  # type: ignore[arg-type]  # assembled from keywords


@dataclass
class FakeClock:
    """Time that passes only when somebody sleeps."""

    time: float = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Crash(BaseException):
    """The process dies here: nothing catches it, nothing is tidied up."""


@dataclass
class MemoryLedger:
    """Events as their own text, so that what cannot be written cannot be read back either."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    crash_after: int | None = None
    """Die right after the n-th append (counted from now)."""

    def read(self) -> tuple[Sequence[Event], Sequence[str]]:
        return [parse_event(line) for line in self.lines], self.problems

    def append(self, event: Event) -> None:
        self.lines.append(render_event(event))
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                self.crash_after = None
                raise Crash

    def events(self) -> list[Event]:
        return list(self.read()[0])


@dataclass
class MemoryRunDirectory:
    """A run directory in memory."""

    content: SweepFile | None = None
    submissions: dict[str, Submission] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    """What is wrong with submissions' files, by name."""
    cell_files: dict[AttemptKey, CellFile] = field(default_factory=dict)
    results: dict[AttemptKey, Result] = field(default_factory=dict)
    result_problems: dict[AttemptKey, str] = field(default_factory=dict)
    rank_errors: dict[AttemptKey, list[RankError]] = field(default_factory=dict)
    attempt_files: dict[AttemptKey, AttemptFile] = field(default_factory=dict)
    earlier: dict[AttemptKey, list[AttemptFile]] = field(default_factory=dict)
    signs: dict[tuple[AttemptKey, int], float] = field(default_factory=dict)
    away: tuple[float, str] | None = None
    progresses: dict[AttemptKey, Progress] = field(default_factory=dict)
    requests: dict[str, list[str]] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    """By submission the job that began it; empty: it was given back."""
    path: str = "/runs/fake"

    def sweep_file(self) -> SweepFile | None:
        return self.content

    def publish_sweep_file(self, content: SweepFile) -> None:
        self.content = SweepFile.parse(content.render())

    def publish_submission(self, submission: Submission, cells: Iterable[CellFile]) -> None:
        for cell in cells:
            assert cell.key not in self.cell_files, "an attempt's folder is never used twice"
            self.cell_files[cell.key] = cell
        self.submissions[submission.name] = Submission.parse(submission.render())

    def submission_names(self) -> Sequence[str]:
        return sorted(self.submissions)

    def submission(self, name: str) -> Submission:
        if name in self.damaged:
            raise RecordError(self.damaged[name])
        return self.submissions[name]

    def job_that_began(self, name: str) -> str | None:
        return self.claims.get(name)

    def withdraw(self, name: str) -> str:
        return self.claims.setdefault(name, "")

    def result(self, key: AttemptKey) -> tuple[Result | None, str]:
        return self.results.get(key), self.result_problems.get(key, "")

    def errors(self, key: AttemptKey) -> Sequence[RankError]:
        return self.rank_errors.get(key, [])

    def attempt_file(self, key: AttemptKey) -> AttemptFile | None:
        return self.attempt_files.get(key)

    def launches(self, key: AttemptKey) -> tuple[AttemptFile | None, tuple[AttemptFile, ...]]:
        return self.attempt_files.get(key), tuple(self.earlier.get(key, []))

    def progress(self, key: AttemptKey) -> Progress | None:
        return self.progresses.get(key)

    def last_sign_of_life(self, key: AttemptKey, restart: int) -> float | None:
        return self.signs.get((key, restart))

    def publish_away(self, since: float | None, message: str) -> None:
        self.away = None if since is None else (since, message)

    def cancel_requests(self) -> Sequence[tuple[str, Sequence[str]]]:
        return list(self.requests.items())

    def drop_cancel_request(self, name: str) -> None:
        del self.requests[name]


@dataclass
class FakeScheduler:
    """A scheduler whose jobs do what a test says.

    ``submit_error`` is raised by the next submissions; with ``takes_it_all_the_same`` the job exists nevertheless.
    """

    keeps_jobs: bool = True
    states: dict[str, JobReport] = field(default_factory=dict)
    by_name: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keys: dict[str, AttemptKey] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    submit_error: BaseException | None = None
    takes_it_all_the_same: bool = False
    poll_error: Exception | None = None
    polls: int = 0
    not_ours: set[str] = field(default_factory=set)
    """Jobs that have another name than their submission's."""
    find_error: Exception | None = None
    runs: dict[str, list[JobRun]] = field(default_factory=dict)
    """What accounting knows of jobs that were requeued."""
    asked_for_runs: int = 0
    cancel_error: Exception | None = None
    takes_its_time: bool = False
    """A cancelled job goes on for now."""
    limits: Site = UNLIMITED
    site_error: Exception | None = None
    logs: dict[str, JobReport] = field(default_factory=dict)
    """What the scheduler wrote of a job's end into its log."""
    out_of_service: dict[str, str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=lambda: FakeClock(time=200.0))
    """By which jobs end; by default all at one time."""
    _next: int = 100

    @property
    def view(self) -> ClusterView:
        return ClusterView(reports=self, accounting=self, facts=self, diagnosis=self)

    def own_name(self) -> str | None:
        return None

    def submit(self, submission: Submission) -> tuple[str, ...]:
        if self.submit_error is not None and not self.takes_it_all_the_same:
            raise self.submit_error
        self._next += 1
        many = len(submission.tasks) > 1
        jobs = tuple(f"{self._next}_{i}" if many else str(self._next) for i in range(len(submission.tasks)))
        for job, key in zip(jobs, submission.tasks, strict=True):
            self.states[job] = JobReport(state="PENDING", phase=Phase.PENDING)
            self.keys[job] = key
        assert submission.name not in self.by_name, "a submission's name is used once"
        self.by_name[submission.name] = jobs
        if self.submit_error is not None:
            raise self.submit_error
        return jobs

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        if self.find_error is not None:
            raise self.find_error
        return self.by_name.get(submission.name)

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        return (shared_id,) if tasks == 1 else tuple(f"{shared_id}_{index}" for index in range(tasks))

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        self.polls += 1
        if self.poll_error is not None:
            raise self.poll_error
        others = {job: replace(ABSENT, reason=f"{job} is another's") for job in self.not_ours if job in (names or {})}
        return {job: others.get(job) or _with_meaning(self.states.get(job, ABSENT)) for job in job_ids}

    def runs_of(self, job_ids: Collection[str], *, since: float) -> Mapping[str, Sequence[JobRun]]:
        self.asked_for_runs += 1
        return {job: runs for job, runs in self.runs.items() if job in job_ids}

    def site(self) -> Site:
        if self.site_error is not None:
            raise self.site_error
        return self.limits

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        return {node: reason for node, reason in self.out_of_service.items() if node in nodes}

    def logged_end(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        report = self.logs.get(job_id)
        assert report is None or report.ended_at is not None
        return _with_meaning(report) if report is not None and (report.ended_at or 0.0) >= since else None

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        if self.cancel_error is not None:
            raise self.cancel_error
        for job in jobs:
            was = self.states[job].phase
            if was is Phase.ENDED or (only_pending and was is not Phase.PENDING):
                continue
            self.cancelled.append(job)
            if not self.takes_its_time:
                # Slurm gives a job that was cancelled while it waited no times of its own.
                times = {"started_at": None} if was is Phase.PENDING else {}
                self.say(job, "CANCELLED by 0", **times)
        return ()

    def close(self) -> None:
        pass

    def say(self, job: str, state: str, **details: object) -> None:
        """Let a job be in a state."""
        phase = slurm_state(state).phase
        now = self.clock.now()
        times = {"started_at": now - 100.0, "ended_at": now} if phase is Phase.ENDED else {}
        self.states[job] = JobReport(state=state, phase=phase, **{**times, **details})  # type: ignore[arg-type]  # keywords

    def live_jobs(self) -> list[str]:
        return [job for job, report in self.states.items() if report.phase in (Phase.PENDING, Phase.RUNNING)]


def _with_meaning(report: JobReport) -> JobReport:
    is_hopeless = report.reason == "PartitionTimeLimit"
    return replace(report, outcome=report.outcome or slurm_state(report.state).outcome, is_hopeless=is_hopeless)


@dataclass
class MemoryBlameBook:
    """Evidence against nodes, in memory."""

    blames: list[Blame] = field(default_factory=list)

    def read(self) -> Sequence[Blame]:
        return list(self.blames)

    def add(self, blames: Iterable[Blame]) -> None:
        self.blames.extend(blames)


@dataclass
class ListReporter:
    """Remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    verdicts: list[tuple[AttemptKey, Verdict]] = field(default_factory=list)
    submissions: list[tuple[Submission, tuple[str, ...]]] = field(default_factory=list)

    def submitted(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        self.submissions.append((submission, jobs))

    def ended(self, key: AttemptKey, verdict: Verdict) -> None:
        self.verdicts.append((key, verdict))

    def note(self, text: str) -> None:
        self.notes.append(text)
