"""A cluster's recorded answers to questions about its configuration, which a test may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sweep.adapters.slurm.site.cluster_site import SlurmSite
from sweep.core.settings.site import Site
from sweep.core.settings.spec import SlurmSpec
from sweep.ports import SchedulerError, SchedulerUnreachableError

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm"
NOW = 1795972932.0
AWAY = "Unable to contact slurm controller (connect failure)"


def golden(name: str) -> str:
    return (GOLDEN / f"site-{name}.txt").read_text()


def user_rows(**changes: str) -> str:
    """The recorded row of the default account with other limits."""
    values = {
        "qos": "high,low,normal",
        "default": "normal",
        "submit": "9",
        "wall": "12:00:00",
        "group": "",
        "job": "",
        **changes,
    }
    return "sweep|private|sweep||{qos}|{default}|{submit}|{wall}|{group}|{job}\n".format(**values)


@dataclass
class FakeCommands:
    """Answers by what is asked; None where asking fails, AWAY where nobody is there to answer."""

    answers: dict[str, str | None] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def ask(self, command: list[str]) -> str:
        key = self._key(command)
        self.calls.append(key)
        default = golden(key.replace("everyone", "queue"))
        answer = self.answers.get(key, default)
        if answer is None:
            raise SchedulerError("no")
        if answer is AWAY:
            raise SchedulerUnreachableError(f"{command[0]} failed: {AWAY}")
        return answer

    def _key(self, command: list[str]) -> str:
        words = " ".join(command)
        keys = {
            "scontrol show config": "config",
            "scontrol -o show partition": "partitions",
            "scontrol -o show reservation": "reservations",
            "sacctmgr -n -P show user where name=root": "user",
            "sacctmgr -n -P show assoc": "accounts",
            "sacctmgr -n -P show qos": "qos",
            "squeue --array -h -u": "queue",
            "squeue --array -h -o": "everyone",
            "sinfo": "nodes-drained",
        }
        return next(name for beginning, name in keys.items() if words.startswith(beginning))


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> float:
        return self.time


def site_of(
    spec: SlurmSpec | None = None, *, clock: Clock | None = None, **answers: str | None
) -> tuple[SlurmSite, FakeCommands]:
    commands = FakeCommands(answers=answers)
    return SlurmSite(spec or SlurmSpec(), commands, "root", now=clock or Clock()), commands  # type: ignore[arg-type]  # a fake


def ask(spec: SlurmSpec | None = None, **answers: str | None) -> Site:
    return site_of(spec, **answers)[0].site()
