"""Runs the job of ``doctor --all-nodes`` until every node that is free has answered, or has had its time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.submission import Submission
from sweep.ports import Clock, Scheduler, SchedulerError, SubmissionRejectedError, SubmissionUncertainError

_MOST_JOBS = 6
"""One node on which the job cannot begin costs one job."""
_NOT_GIVEN = "the job did not get it"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeInSlurm:
    """A node as Slurm describes it; ``out_of_service`` is its state and reason, empty where jobs may run on it."""

    state: str
    out_of_service: str
    gpus: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAnswer:
    """The answer of one node: its report as far as it came, and other lines.

    Attributes:
        report: The report.
        messages: Other lines.
        failure: The set-up line that failed there.
        is_over: True if its step has ended.
    """

    report: Mapping[str, Any]
    messages: tuple[str, ...] = ()
    failure: JobReport | None = None
    is_over: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the node has nothing more to say."""
        return bool(self.report.get("is_whole")) or self.is_over


_SILENT = NodeAnswer(report={})


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """The files of one job: its nodes (None before it has begun) and their answers."""

    hosts: tuple[str, ...] | None = None
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if there is nothing more to wait for."""
        return self.hosts is not None and all(self.answers.get(host, _SILENT).is_whole for host in self.hosts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Every node's answer, or why there is none.

    Attributes:
        answers: By node.
        unchecked: Nodes that no job could check, each with the reason: out of service, busy.
        failed: Nodes that no job can use, or that ended the job, each with the reason.
    """

    answers: dict[str, NodeAnswer] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyor:
    """Asks all nodes.

    Attributes:
        scheduler: Runs the jobs.
        submission: Makes the submission of the so-manieth job, for a number of nodes and without others, and writes its
            files.
        read: Reads what the nodes of a submission have printed.
        nodes: Asks Slurm for its nodes.
        gpus_per_node: GPUs that a job asks of each node; 0 where it asks for none.
        clock: Tells the time.
        timeout_s: Seconds to wait in all.
        grace_s: Seconds for which files may be missing after a job's end, and a cancelled job may take to end.
        poll_s: Seconds between two looks.
    """

    scheduler: Scheduler
    submission: Callable[[int, int, tuple[str, ...]], Submission]
    read: Callable[[Submission], Printed]
    nodes: Callable[[], Mapping[str, NodeInSlurm]]
    gpus_per_node: int
    clock: Clock
    timeout_s: float
    grace_s: float = 15.0
    poll_s: float = 0.5

    def run(self, unchecked: Mapping[str, str]) -> Survey:
        """Ask all nodes but those that are not to be checked, which come with the reason."""
        survey, deadline = Survey(unchecked=dict(unchecked)), self.clock.monotonic() + self.timeout_s
        for number in range(_MOST_JOBS):
            known = self.nodes()
            survey.unchecked.update(
                (name, f"Slurm says {node.out_of_service}")
                for name, node in known.items()
                if node.out_of_service and name not in survey.unchecked and name not in survey.failed
            )
            survey.failed.update(
                (name, f"Slurm knows {node.gpus} GPUs there; {self.gpus_per_node} are asked for on each node")
                for name, node in known.items()
                if node.gpus < self.gpus_per_node and name not in survey.unchecked
            )
            away = {*survey.unchecked, *survey.failed, *survey.answers}
            left = [name for name in known if name not in away]
            if not left:
                return survey
            submission = self.submission(number, len(left), tuple(name for name in known if name in away))
            why = self._job(submission, survey, deadline)
            if why or number + 1 == _MOST_JOBS:
                for name in left:
                    if name not in survey.answers and name not in survey.failed:
                        state = f" (Slurm says {known[name].state})" if why == _NOT_GIVEN else ""
                        survey.unchecked[name] = f"{why or 'other nodes ended every job'}{state}"
                return survey
        return survey

    def _job(self, submission: Submission, survey: Survey, deadline: float) -> str:
        """Run one job: why nodes are missing; empty where another job is to follow without the node that ended this."""
        began = self.clock.now()
        try:
            jobs = self.scheduler.submit(submission)
        except (SubmissionRejectedError, SubmissionUncertainError, SchedulerError) as error:
            return f"the job was not submitted: {error}"
        try:
            printed, report = self._wait(submission, jobs[0], began, deadline)
        finally:
            with contextlib.suppress(SchedulerError):
                self.scheduler.cancel(dict.fromkeys(jobs, submission.name))
                self._await_end(jobs[0], began)
        survey.answers.update(printed.answers)
        hosts = printed.hosts
        if printed.is_complete or (hosts is not None and self.clock.monotonic() > deadline):
            survey.answers.update((host, _SILENT) for host in hosts or () if host not in survey.answers)
            return _NOT_GIVEN
        if report is None or report.phase is not Phase.ENDED:
            reason = f" ({report.reason})" if report is not None and report.reason else ""
            return f"no node was free within {self.timeout_s:g} s{reason}"
        return self._blame(hosts or report.nodes, report, survey)

    def _blame(self, hosts: tuple[str, ...], report: JobReport, survey: Survey) -> str:
        """Name the node that ended a job before all had answered: one out of service now, or else the first."""
        words = f"{report.state}{f' ({report.reason})' if report.reason else ''}"
        if not hosts:
            return f"the job ended as {words}"
        known = self.nodes()
        sick = [host for host in hosts if host in known and known[host].out_of_service]
        for host in sick or hosts[:1]:
            now = f"; Slurm says {known[host].out_of_service} now" if host in sick else ""
            survey.answers.pop(host, None)
            survey.failed[host] = f"the job ended there as {words}{now}"
        for host in [host for host, answer in survey.answers.items() if host in hosts and not answer.is_whole]:
            del survey.answers[host]
        return ""

    def _wait(
        self, submission: Submission, job: str, began: float, deadline: float
    ) -> tuple[Printed, JobReport | None]:
        ended_at, report = None, None
        while True:
            printed, now = self.read(submission), self.clock.monotonic()
            if printed.is_complete or now > deadline:
                return printed, report
            with contextlib.suppress(SchedulerError):
                report = self.scheduler.poll([job], since=began)[job]
            if report is not None and report.phase is Phase.ENDED:
                ended_at = now if ended_at is None else ended_at
                if now - ended_at > self.grace_s:
                    return printed, report
            self.clock.sleep(self.poll_s)

    def _await_end(self, job: str, began: float) -> None:
        deadline = self.clock.monotonic() + self.grace_s
        over = (Phase.ENDED, Phase.ABSENT)
        while self.scheduler.poll([job], since=began)[job].phase not in over and self.clock.monotonic() < deadline:
            self.clock.sleep(self.poll_s)
