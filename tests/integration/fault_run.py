"""Shared by the fault tests: a sweep of stub cells on the real Slurm, scripts before its commands, a final audit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.slurm.fields import parse_row_id
from sweep.cli.common import read_history
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import UNDER_WAY, ActionKind
from sweep.usecases.status import statuses
from tests.commands import Shell, events, rows, stub_cluster, wait_for
from tests.integration.conftest import SlurmUnderTest

TINY = ["model=debug_1m", "trainer.steps=6", "trainer.warmup_steps=2", "trainer.threads_per_rank=1"]
GRES = {"gpu_flag": "gres", "cpus_per_task": 1, "signal_delay_s": 10}
STATES = "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO"
DIES = Path(__file__).parents[1] / "stubs" / "dies.py"


@dataclass(frozen=True, kw_only=True)
class DyingShell(Shell):
    """Runs the command that dies at a ledger write."""

    def command(self, *arguments: str) -> list[str]:
        usual = super().command(*arguments)
        return [sys.executable, str(DIES), *usual[3:]]


@dataclass(frozen=True, kw_only=True)
class FaultRun:
    """One sweep: its command, its folder, and where the stub counts what it measured.

    Attributes:
        gate: File that the stub waits for where the cluster is ``gated``: in all cells, or in those of one length.
    """

    slurm: SlurmUnderTest
    shell: Shell
    arguments: tuple[str, ...]
    run_dir: Path
    tally: Path
    gate: Path

    def reshaped(self, name: str, *, site: Mapping[str, object] | None = None, **changes: object) -> None:
        """Write the cluster's file anew, with other settings."""
        environment = {"STUB_TALLY": str(self.tally)}
        if gated := changes.pop("gated", False):
            environment |= {"STUB_GATE": str(self.gate)} | ({} if gated is True else {"STUB_GATED": str(gated)})
        plan, mode, seconds = changes.pop("plan", {}), changes.pop("mode", "ok"), changes.pop("seconds", 0)
        assert self.shell.config_dir is not None
        stub_cluster(
            self.shell.config_dir,
            name,
            base="slurm",
            mode=str(mode),
            seconds=float(str(seconds)),
            environment={**environment, "STUB_PLAN": json.dumps(plan)},
            slurm={**GRES, **(site or {})},
            **changes,
        )

    def with_env(self, **variables: str) -> FaultRun:
        return replace(self, shell=replace(self.shell, env={**self.shell.env, **variables}))

    def in_the_way(self, command: str, body: str) -> FaultRun:
        """Put a script before one of Slurm's commands; ``$REAL`` is the real command, ``$HERE`` a folder for notes."""
        folder = self.shell.folder / "bin"
        folder.mkdir(exist_ok=True)
        real = shutil.which(command, path=os.environ["PATH"])
        (folder / command).write_text(f"#!/bin/bash\nREAL={real}\nHERE={folder}\n{body}\n")
        (folder / command).chmod(0o755)
        path = self.shell.env["PATH"]
        return self if path.startswith(f"{folder}:") else self.with_env(PATH=f"{folder}:{path}")

    def calls(self, command: str) -> int:
        """Number of runs of a script that counts them (``echo >> $HERE/COMMAND.calls``)."""
        log = self.shell.folder / "bin" / f"{command}.calls"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def events(self, kind: str) -> list[dict[str, object]]:
        return events(self.run_dir, kind)

    def outcomes(self) -> list[str]:
        return [str(event["outcome"]) for event in self.events("ended")]

    def jobs(self) -> list[str]:
        """Ids of all jobs in the order in which the ledger names them."""
        return [job for event in self.events("submitted") for job in event["jobs"]]  # type: ignore[attr-defined]

    def job_of(self, length: int) -> str:
        """The first job of the cell of one sequence length, once it has begun."""
        found: list[str] = []

        def has_begun() -> bool:
            for path in self.run_dir.glob("cells/*/repeat-01/attempt-01/cell.json"):
                launched = path.with_name("attempt.json")
                if json.loads(path.read_text())["cell"]["seq_len"] == length and launched.exists():
                    found.append(str(json.loads(launched.read_text())["job_id"]))
            return bool(found)

        wait_for(has_begun, 60, f"the job of {length} begins")
        return found[0]

    def names(self) -> set[str]:
        return {path.stem for path in self.run_dir.glob("submissions/*.json")}

    def in_queue(self) -> list[str]:
        """States of this run's jobs, as the controller says now."""
        lines = self.slurm.run("squeue", "--array", "-h", "-o", "%j|%T").splitlines()
        return [state for name, _, state in (line.partition("|") for line in lines) if name in self.names()]

    def wait_running(self, count: int = 1, seconds: float = 60) -> None:
        """Wait until so many jobs run and the ledger knows them."""
        wait_for(lambda: self.in_queue().count("RUNNING") >= count, seconds, f"{count} jobs run")
        wait_for(lambda: len(self.jobs()) >= count, seconds, "the ledger names them")

    def wait_left(self, seconds: float = 60) -> None:
        wait_for(lambda: not self.in_queue(), seconds, "no job is left")

    def measured(self) -> Counter[str]:
        """Measurements of each repeat, by the stub's own count."""
        return Counter(self.tally.read_text().splitlines() if self.tally.exists() else [])

    def by_length(self) -> dict[str, dict[str, str]]:
        """The table, by sequence length."""
        return {row["seq_len"]: row for row in rows(self.run_dir)}

    def audit(self, *, budget: float | None = None, by_sacct: bool = True, turned_away: Collection[str] = ()) -> None:
        """Check that every cell is measured or explained, none was measured twice, no job is left, the budget adds up.

        The ledger is compared with other witnesses: the stub's own count, the queue, and accounting.

        Args:
            budget: GPU-hours that the run was allowed.
            by_sacct: Compare jobs and their GPU time with Slurm's own accounting, too.
        """
        left = [state for state in self.in_queue() if state != "COMPLETING"]
        assert not left, f"jobs of the run are left in the queue: {left}"
        twice = {repeat: count for repeat, count in self.measured().items() if count > 1}
        assert not twice, f"measured more than once: {twice}"
        run_dir = RunDir(self.run_dir)
        content = run_dir.sweep_file()
        assert content is not None
        history, problems = read_history(run_dir)
        assert not problems
        for status in statuses(content, history, run_dir):
            assert status.action.kind not in UNDER_WAY, status.action
            assert status.action.kind is ActionKind.DONE or status.action.reason, status.action
        ended = {_key(event["key"]): event for event in self.events("ended")}
        assert len(ended) == len(self.events("ended")), "an attempt ended twice"
        succeeded = {key.rpartition("/")[0] for key, event in ended.items() if event["outcome"] == "SUCCEEDED"}
        assert succeeded == set(self.measured()), "a measurement was lost, or one was made up"
        settled = self._audit_settled(ended, may_be_unknown=not by_sacct)
        committed = gpu_hours_committed(history)
        assert abs(committed - settled) < 1e-9, f"nothing is in flight: committed {committed}, settled {settled}"
        assert budget is None or committed <= budget
        if by_sacct:
            self._audit_by_sacct(ended, settled, budget, turned_away)

    def _audit_settled(self, ended: Mapping[str, Mapping[str, object]], *, may_be_unknown: bool) -> float:
        """GPU-hours of all attempts that became jobs; each has an outcome, or was withdrawn before it began."""
        never = {_key(event["key"]) for event in self.events("withdrawn")}
        for key in self._jobs_of().values():
            assert (key in ended) != (key in never), f"{key} is a job and was never settled, or twice"
        used = 0.0
        hours = {
            _key(task): float(str(event["gpu_hours"]))
            for event in self.events("reserved")
            for task in event["tasks"]  # type: ignore[attr-defined]  # JSON
        }
        for key, event in ended.items():
            assert may_be_unknown or event["gpu_seconds"] is not None, f"what {key} used was not settled"
            used += hours[key] if event["gpu_seconds"] is None else float(str(event["gpu_seconds"])) / 3600
        return used

    def _jobs_of(self) -> dict[str, str]:
        """Attempts by job id, as the ledger has them."""
        jobs = {str(event["submission"]): event["jobs"] for event in self.events("submitted")}
        return {
            job: _key(task)
            for event in self.events("reserved")
            for task, job in zip(event["tasks"], jobs.get(str(event["submission"]), ()), strict=False)  # type: ignore[call-overload]
        }

    def _audit_by_sacct(
        self,
        ended: Mapping[str, Mapping[str, object]],
        settled: float,
        budget: float | None,
        turned_away: Collection[str],
    ) -> None:
        """The jobs that accounting knows by the names of the run, and the whole seconds of each of their runs."""
        jobs = self._jobs_of()
        # The tasks of an array that are cancelled together while they wait have one row between them: the array's.
        never = {_key(event["key"]) for event in self.events("withdrawn")}
        never |= {key for key, event in ended.items() if event["gpu_seconds"] == 0}
        may_lack = {job for job, key in jobs.items() if "_" in job and key in never}
        may_have = {job.partition("_")[0] for job in may_lack}

        def is_known() -> bool:
            found = set(self._rows_by_name(turned_away))
            return set(jobs) - may_lack <= found <= set(jobs) | may_have

        with contextlib.suppress(AssertionError):  # accounting lags; its last answer counts
            wait_for(is_known, 120, "accounting knows all jobs")
        assert is_known(), f"accounting has {sorted(self._rows_by_name(turned_away))}, the ledger {sorted(jobs)}"
        rows = self._rows_by_name(turned_away)
        for array in may_have - set(jobs):
            assert all(seconds == 0 for seconds, _ in rows.pop(array, [])), f"tasks of {array} that waited did run"
        hours = 0.0
        for job, runs in rows.items():
            gpus = max(gpus for _, gpus in runs)
            spent = sum(seconds for seconds, _ in runs)
            hours += spent * gpus / 3600
            event = ended.get(jobs[job])
            if event is None:
                assert spent == 0, f"{jobs[job]} counts as not having happened, but job {job} ran for {spent} s"
                continue
            used = float(str(event["gpu_seconds"])) / (gpus or 1)
            # A job that ended while Slurm was away has its launcher's times, which leave out how long it took to start.
            state_is_known = event["evidence"].get("state") != ""  # type: ignore[attr-defined]  # JSON
            # Slurm's times are whole seconds; squeue and sacct may round them differently.
            least_s, most_s = (spent if state_is_known else 0) - 2 * len(runs), spent + 2 * len(runs)
            assert least_s <= used <= most_s, (jobs[job], used, runs)
        assert abs(hours - settled) <= 0.02, f"accounting has {hours} GPU-hours, the ledger settled {settled}"
        assert budget is None or hours <= budget

    def _rows_by_name(self, without: Collection[str]) -> dict[str, list[tuple[int, int]]]:
        """Seconds and GPUs of each run of the run's jobs, by sacct; of one that was requeued there are several."""
        names = {str(event["submission"]) for event in self.events("reserved")} - set(without)
        if not names:
            return {}
        # Without both states and an end sacct keeps silent about what was cancelled before it could ever run.
        always = f"env SLURM_TIME_FORMAT=%s sacct -X -D -n -P -S now-1days -E now+1days -s {STATES}".split()
        asked = (*always, "-o", "JobID,Start,End,ReqTRES", "--name", ",".join(sorted(names)))
        rows: dict[str, list[tuple[int, int]]] = {}
        for line in self.slurm.run(*asked).splitlines():
            row_id, start, end, tres = line.split("|")
            if start.isdecimal() and not end.isdecimal():
                rows[f"{row_id}, which is not over"] = []
            # Not ElapsedRaw, which leaves out while a job was suspended: it holds its GPUs all the same.
            seconds = int(end) - int(start) if start.isdecimal() and end.isdecimal() else 0
            named = parse_row_id(row_id)
            assert named is not None, line
            gpus = re.search(r"gres/gpu=(\d+)", tres)
            for job in named[1]:
                rows.setdefault(job, []).append((seconds, int(gpus[1]) if gpus else 0))
        return rows


def _key(data: object) -> str:
    assert isinstance(data, dict)
    return f"{data['cell_id']}/{data['repeat']}/{data['attempt']}"


def fault_run(
    slurm: SlurmUnderTest,
    folder: Path,
    name: str,
    *arguments: str,
    shell: type[Shell] = Shell,
    **changes: object,
) -> FaultRun:
    """A sweep of one-node cells on a cluster of its own; ``arguments`` are further overrides."""
    folder.mkdir(parents=True, exist_ok=True)
    made = FaultRun(
        slurm=slurm,
        # Blame of nodes that a test makes fail is nobody else's.
        shell=shell(
            folder=folder,
            env={**slurm.env, "XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")},
            config_dir=folder / "conf",
        ),
        arguments=("+grid=weak_scaling", f"cluster={name}", *TINY, *arguments),
        run_dir=folder / "runs" / f"weak_scaling-{name}",
        tally=folder / "tally",
        gate=folder / "gate",
    )
    made.reshaped(name, **changes)  # type: ignore[arg-type]  # keywords of the file
    return made
