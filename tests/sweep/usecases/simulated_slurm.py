"""Slurm's commands over a simulated cluster: what they print, and every way in which they fail to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sweep.adapters.slurm.commands import Answer, CommandTimeoutError, SlurmCommands
from tests.sweep.usecases.simulated_cluster import NODES, OURS, Cluster, End, Job, Row

_NAMES = {OURS: "me"}


class Sbatch(StrEnum):
    """What becomes of one call of sbatch."""

    TAKEN = "taken"
    TIMES_OUT_TAKEN = "taken, and its answer is lost"
    TIMES_OUT = "lost on its way"
    GETS_THROUGH_LATE = "hangs, and is taken later"
    TAKEN_TWICE = "taken twice"
    REFUSED = "refused"
    FULL = "full for now"
    NO_NODE = "no node is what it asks for"
    SITES_WORDS = "refused in a site's own words"


class Trouble(StrEnum):
    """What is wrong with Slurm's answers for a while."""

    CONTROLLER_AWAY = "controller away"
    DATABASE_AWAY = "database away"
    ACCOUNTING_EMPTY = "accounting says nothing"
    ACCOUNTING_CUT = "accounting cuts task lists"


@dataclass(frozen=True, kw_only=True)
class Spell:
    """A trouble, from when (seconds after the beginning) and for how long."""

    trouble: Trouble
    at_s: int
    for_s: int


@dataclass(kw_only=True)
class Site:
    """How this Slurm is set up."""

    sacct: bool = True
    lag_s: int = 0
    min_job_age_s: int = 60
    max_array: int = 1001
    max_submit: int | None = None
    tells_max_submit: bool = True


class SimulatedCommands(SlurmCommands):
    """Answers as Slurm 22.05 would.

    Args:
        cluster: The cluster.
        site: How its Slurm is set up.
        spells: When it is in trouble.
        sbatch: What becomes of the calls of sbatch, in their order; then all are taken.
        moment: Called before and after each command: the process that asks may die there.
    """

    def __init__(
        self,
        cluster: Cluster,
        site: Site,
        *,
        spells: Sequence[Spell],
        sbatch: list[Sbatch],
        moment: Callable[[str], None],
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__({"PATH": ""}, sleep=sleep)
        self.cluster, self.site = cluster, site
        self._spells, self._calls, self._moment = spells, sbatch, moment
        self.began_at = cluster.now
        self.submits = 0

    def heal(self) -> None:
        """No trouble from now on."""
        self._spells, self._calls = [], []

    def require(self, *names: str) -> None:
        pass

    def _run(self, command: Sequence[str], environ: Mapping[str, str]) -> Answer:
        name, *words = command
        self._moment(f"before {name}")
        self.cluster.advance(self.cluster.now)
        answer: Answer = getattr(self, f"_{name}")(words)
        self._moment(f"after {name}")
        return answer

    def _is(self, trouble: Trouble) -> bool:
        now = self.cluster.now - self.began_at
        return any(spell.trouble is trouble and spell.at_s <= now < spell.at_s + spell.for_s for spell in self._spells)

    def _no_controller(self, name: str) -> Answer | None:
        if not self._is(Trouble.CONTROLLER_AWAY):
            return None
        return _failed(f"{name}: error: Unable to contact slurm controller (connect failure)")

    # -------------------------------------------------------------------------------------------------------- sbatch

    def _sbatch(self, words: Sequence[str]) -> Answer:
        self.submits += 1
        away = self._no_controller("sbatch")
        if away is not None:
            return away
        script = Path(words[0])
        fate = self._calls.pop(0) if self._calls else Sbatch.TAKEN
        refusal = self._refusal(script)
        if refusal or fate in _REFUSALS:
            return _failed(f"sbatch: error: {refusal or _REFUSALS[fate]}")
        if fate is Sbatch.SITES_WORDS:
            return Answer(returncode=1, stdout="Your project has used up its hours.\n", stderr="")
        if fate is Sbatch.GETS_THROUGH_LATE:
            self._later(script, 150)
            raise CommandTimeoutError("sbatch did not answer within 60 s")
        if fate is Sbatch.TIMES_OUT:
            return _failed("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
        try:
            self._moment("during sbatch")
        except BaseException:
            self._later(script, 150)  # what was started goes on without who started it
            raise
        base = self._accept(script)
        if fate is Sbatch.TAKEN_TWICE:
            self._accept(script)
        if fate is Sbatch.TIMES_OUT_TAKEN:
            return _failed("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
        return Answer(returncode=0, stdout=f"Submitted batch job {base}\n", stderr="")

    def _later(self, script: Path, seconds: float) -> None:
        def arrive() -> None:
            if not self._refusal(script):
                self._accept(script)

        self.cluster.at(self.cluster.now + seconds, arrive)

    def _accept(self, script: Path) -> int:
        options, file = _read_script(script)
        self.cluster.add_foreign()
        return self.cluster.accept(script, run_dir_file=file, options=options)

    def _refusal(self, script: Path) -> str:
        options, _ = _read_script(script)
        tasks = _tasks(options)
        if tasks > self.site.max_array:
            return "Batch job submission failed: Invalid job array specification"
        excluded = set(options.get("exclude", "").split(",")) - {""}
        if not excluded <= set(NODES):
            return f"Batch job submission failed: Invalid node name specified {excluded}"
        if len(set(NODES) - excluded) < int(options["nodes"]):
            return _NO_NODE
        live = sum(job.is_live and job.user == OURS for job in self.cluster.jobs)
        if self.site.max_submit is not None and live + tasks > self.site.max_submit:
            return _FULL
        return ""

    # ------------------------------------------------------------------------------------------------ queue, accounting

    def _squeue(self, words: Sequence[str]) -> Answer:
        away = self._no_controller("squeue")
        if away is not None:
            return away
        asked = _options(words)
        all_states = "t" in asked
        rows = [job for job in self.cluster.jobs if self._is_in_queue(job, all_states)]
        if "u" in asked:
            rows = [job for job in rows if _NAMES.get(job.user) == asked["u"]]
        if "name" in asked:
            rows = [job for job in rows if job.name == asked["name"]]
        if "j" in asked:
            bases = asked["j"].split(",")
            rows = [job for job in rows if str(job.base) in bases]
            if not rows:
                return _failed("slurm_load_jobs error: Invalid job id specified")
        columns = {
            "i": lambda job: job.id,
            "j": lambda job: job.name,
            "T": lambda job: job.state.split()[0],
            "N": lambda job: ",".join(job.nodes),
            "S": lambda job: _time(job.started_at or job.ended_at),
            "e": lambda job: _time(job.ended_at),
            "r": lambda job: job.reason,
            "o": lambda job: job.script,
            "U": lambda job: str(job.user),
            "u": lambda job: _NAMES.get(job.user, "other"),
            "q": lambda job: "normal",
            "a": lambda job: "sweep",
            "P": lambda job: "debug",
        }
        return _printed("|".join(columns[word[1:]](job) for word in asked["o"].split("|")) for job in rows)

    def _is_in_queue(self, job: Job, all_states: bool) -> bool:
        if job.is_forgotten:
            return False
        age_s = 0.0 if job.ended_at is None else self.cluster.now - job.ended_at
        return job.is_live or (all_states and age_s < self.site.min_job_age_s)

    def _sacct(self, words: Sequence[str]) -> Answer:
        if self._is(Trouble.DATABASE_AWAY):
            return _failed("sacct: error: Problem talking to the database: Connection refused")
        if self._is(Trouble.ACCOUNTING_EMPTY):
            return _printed([])
        asked = _options(words)
        since = datetime.strptime(asked["S"], "%Y-%m-%d").timestamp()
        recorded = [
            (job, row) for job in self.cluster.jobs if job.user == OURS and (row := self._recorded(job)) is not None
        ]
        recorded = [(job, row) for job, row in recorded if (row.ended_at or self.cluster.now) >= since]
        if "name" in asked:
            recorded = [(job, row) for job, row in recorded if job.name == asked["name"]]
        if "j" in asked:
            recorded = [(job, row) for job, row in recorded if str(job.base) in asked["j"].split(",")]
        if "D" not in asked:  # of several jobs of an id the last is shown
            recorded = list({job.id: (job, row) for job, row in recorded}.values())
        if asked["o"] == "JobID,Start,End":
            return _printed(f"{job.id}|{_time(a)}|{_time(b)}" for job, row in recorded for a, b in row.runs)
        if "MaxRSS" in asked["o"]:
            return _printed(line for job, row in recorded for line in _memory(job, row))
        return _printed(
            self._accounting_line(job, row, asked["o"].split(",")) for job, row in self._as_listed(recorded)
        )

    def _recorded(self, job: Job) -> Row | None:
        known = [row for row in job.recorded if row.time <= self.cluster.now - self.site.lag_s]
        return known[-1] if known else None

    def _as_listed(self, recorded: Iterable[tuple[Job, Row]]) -> Iterable[tuple[tuple[str, Job], Row]]:
        """Tasks of an array that wait, or were cancelled together while they waited, have one row between them."""
        waiting: dict[tuple[int, str, float | None], list[tuple[Job, Row]]] = {}
        for job, row in recorded:
            if job.index is not None and row.started_at is None and not row.runs:
                waiting.setdefault((job.base, row.state, row.ended_at), []).append((job, row))
            else:
                yield (job.id, job), row
        for (base, _, _), beside in waiting.items():
            indices = ",".join(str(job.index) for job, _ in beside)
            if self._is(Trouble.ACCOUNTING_CUT) and len(beside) > 1:
                indices = f"{beside[0][0].index},..."
            yield (f"{base}_[{indices}]", beside[0][0]), beside[0][1]

    def _accounting_line(self, named: tuple[str, Job], row: Row, columns: Sequence[str]) -> str:
        row_id, job = named
        values = {
            "JobID": row_id,
            "JobName": job.name,
            "State": row.state,
            "NodeList": ",".join(row.nodes) or "None assigned",
            "Start": _time(row.started_at or row.ended_at),
            "End": _time(row.ended_at),
            "ExitCode": row.exit_code,
            "Reason": row.reason,
        }
        return "|".join(values[name] for name in columns)

    # ------------------------------------------------------------------------------------------------------- the rest

    def _scancel(self, words: Sequence[str]) -> Answer:
        away = self._no_controller("scancel")
        if away is not None:
            return away
        found = [job for job in self.cluster.jobs if job.id in words and not job.is_forgotten]
        for job in found:
            if job.key is None:
                self.cluster.wrongs.append(f"scancel of {job.id}, which is not ours")
            if job.is_live and job.cancelled_in is None:
                job.cancelled_in = job.state
        self.cluster.kill(found, OURS)
        return _printed([])

    def _sinfo(self, words: Sequence[str]) -> Answer:
        away = self._no_controller("sinfo")
        down = self.cluster.down
        return away or _printed(f"{node}|{'down*|not responding' if node in down else 'idle|none'}" for node in NODES)

    def _scontrol(self, words: Sequence[str]) -> Answer:
        away = self._no_controller("scontrol")
        if away is not None:
            return away
        shown = {
            "config": [
                "AccountingStorageEnforce = associations,limits,qos",
                "ClusterName             = simulated",
                f"MaxArraySize            = {self.site.max_array}",
            ],
            "partition": [
                f"PartitionName=debug Default=YES QoS=N/A MaxTime=2-00:00:00 Nodes={','.join(NODES)} State=UP"
            ],
            "reservation": ["No reservations in the system"],
        }
        return _printed(shown[words[-1]])

    def _sacctmgr(self, words: Sequence[str]) -> Answer:
        if self._is(Trouble.DATABASE_AWAY) or not self.site.tells_max_submit:
            return _failed("sacctmgr: error: Problem talking to the database: Connection refused")
        most = "" if self.site.max_submit is None else str(self.site.max_submit)
        shown = {
            "user": ["sweep|simulated|sweep||normal|normal||||"],
            "assoc": ["simulated|sweep|root||"],
            "qos": [f"normal|{most}||||||||"],
        }
        return _printed(shown[next(word for word in words if word in shown)])


_FULL = "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
_NO_NODE = "Batch job submission failed: Requested node configuration is not available"
_REFUSALS = {
    Sbatch.REFUSED: "Batch job submission failed: Invalid account or account/partition combination specified",
    Sbatch.FULL: _FULL,
    Sbatch.NO_NODE: _NO_NODE,
}


def _failed(words: str) -> Answer:
    return Answer(returncode=1, stdout="", stderr=f"{words}\n")


def _printed(lines: Iterable[str]) -> Answer:
    return Answer(returncode=0, stdout="".join(f"{line}\n" for line in lines), stderr="")


def _time(at: float | None) -> str:
    return "Unknown" if at is None else str(int(at))


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options with their values; of those that take none, empty."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        elif word.startswith("-"):
            name = word[1:]
            found[name] = ""
        elif name:
            found[name] = word
    return found


def _read_script(script: Path) -> tuple[dict[str, str], Path]:
    text = script.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    file = re.search(r"--submission (\S+)", text)
    assert file is not None
    return options, Path(file[1])


def _tasks(options: Mapping[str, str]) -> int:
    return int(options["array"].partition("%")[0].rpartition("-")[2]) + 1 if "array" in options else 1


def _memory(job: Job, row: Row) -> Iterable[str]:
    was_polled = job.fate is not None and job.fate.end is End.OOM_POLLED
    yield f"{job.id}|{row.exit_code}||200M|1"
    yield f"{job.id}.0|{'0:9' if was_polled else '1:0'}|{'565596K' if was_polled else '21396K'}||1"
