"""Reports ranks that a signal ended before they could write an error file: which, by which signal, and the class."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.attempts.error_text import classify_lines
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import Record, RecordError
from sweep.core.jobs.node_command import EXITS_FILE
from sweep.files import read_tail, read_text

# Signals that come from within: the code would do it again.
_CRASHES: Mapping[signal.Signals, str] = {
    signal.SIGSEGV: "native code touched memory that is not its own",
    signal.SIGABRT: "native code gave up, as after a failed assertion; its last words are in the log",
    signal.SIGBUS: "no room in /dev/shm, a mapped file that was cut, or bad memory",
    signal.SIGILL: "an instruction that this processor does not know",
    signal.SIGFPE: "an integer division by zero in native code",
}
_ENDED_BY_AGENT_S = 5.0
"""Ranks that end later than this after the first one were ended by torchrun because of it."""
LAST_LINES_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank ended, as torchrun saw it.

    Attributes:
        rank: Global rank.
        exit_code: Its exit code; negative: the signal that ended it.
        time: Unix time at which torchrun noticed, in whole seconds.
        local_rank: Rank on its node.
    """

    rank: int
    exit_code: int
    time: float
    local_rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExits(Record):
    """The file that the agent leaves."""

    KIND = "rank_exits"
    FILE = EXITS_FILE

    exits: tuple[RankExit, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The error that a launcher reports for ranks that could not report it themselves.

    Attributes:
        error_class: Its kind.
        message: The ranks, the signal, and its meaning.
        time: Unix time of the first of them; None where only the launcher saw the end.
    """

    error_class: ErrorClass
    message: str
    time: float | None = None


def render(exits: Iterable[RankExit]) -> str:
    """Text of the file that the agent leaves."""
    return RankExits(exits=tuple(exits)).render()


def read(path: Path) -> list[RankExit]:
    """The exits that the agent wrote; empty where it wrote none, or no rank failed."""
    with contextlib.suppress(OSError, RecordError):
        return list(RankExits.parse(read_text(path)).exits)
    return []


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """Evidence about GPU ranks that aborted, besides the signal.

    Attributes:
        last_messages: The last lines of the failed ranks' standard error, by rank.
        peers_lost_at: Unix times at which other ranks reported lost communication.
    """

    last_messages: Mapping[int, Sequence[str]] = field(default_factory=dict)
    peers_lost_at: Sequence[float] = ()


def last_messages(log_dir: Path, exits: Iterable[RankExit]) -> dict[int, Sequence[str]]:
    """The last lines that failed ranks wrote to standard error, from torchrun's copies."""
    return {each.rank: _tail(log_dir, each.local_rank) for each in exits}


def _tail(log_dir: Path, local_rank: int) -> list[str]:
    for path in log_dir.glob(f"*/attempt_*/{local_rank}/stderr.log"):
        with contextlib.suppress(OSError):
            return read_tail(path, LAST_LINES_BYTES).decode(errors="replace").splitlines()
    return []


def explain(
    exits: Sequence[RankExit],
    has_spoken: Callable[[int], bool],
    *,
    counts_kills: bool,
    witness: Witness | None = None,
) -> Explanation | None:
    """Reports on the ranks that a signal ended before they could report themselves.

    Args:
        exits: Ranks of the node that failed.
        has_spoken: True if a rank left an error file.
        counts_kills: True if the kernel counts kills for lack of memory, and counted none during the run.
        witness: Further evidence about an abort; None where ranks are on CPUs: there an abort is the code's own fault.

    Returns:
        The report; None where no signal ended a silent rank. A crash comes before a kill, which it may have caused.
    """
    first = min((each.time for each in exits), default=0.0)
    silent = [each for each in exits if each.time - first <= _ENDED_BY_AGENT_S and not has_spoken(each.rank)]
    for number in (*_CRASHES, signal.SIGKILL):
        ended = [each for each in silent if each.exit_code == -number]
        if ended:
            numbers = ", ".join(str(each.rank) for each in sorted(ended, key=lambda each: each.rank))
            subject = f"rank {numbers} was" if len(ended) == 1 else f"ranks {numbers} were"
            error_class, meaning = _meaning(number, counts_kills=counts_kills)
            if number == signal.SIGABRT and witness is not None:
                error_class, meaning = _meaning_of_abort(ended, witness)
            return Explanation(
                error_class=error_class,
                message=f"{subject} ended by {number.name}: {meaning}",
                time=min(each.time for each in ended),
            )
    return None


def explain_agent(exit_code: int, program: str, *, counts_kills: bool) -> Explanation | None:
    """The report on a launched process that a signal ended: the ranks' agent, or an entry without one."""
    if exit_code >= 0 or -exit_code not in {*_CRASHES, signal.SIGKILL}:
        return None
    number = signal.Signals(-exit_code)
    error_class, meaning = _meaning(number, counts_kills=counts_kills)
    return Explanation(error_class=error_class, message=f"{program} was ended by {number.name}: {meaning}")


def _meaning_of_abort(ended: Sequence[RankExit], witness: Witness) -> tuple[ErrorClass, str]:
    """The order of reports: a cause that a rank printed, then an unexplained abort, then a lost peer."""
    found = [classify_lines(witness.last_messages.get(each.rank, ())) for each in ended]
    causes = [each for each in found if each is not None and each[0] is not ErrorClass.COMMUNICATION]
    if causes:
        return causes[0][0], f"the last lines of its log say: {causes[0][1]}"
    lost = [each for each in found if each is not None]
    if lost and len(lost) == len(found):
        return lost[0][0], f"the last lines of its log say: {lost[0][1]}"
    # An abort makes its peers lose it, so that only those that had lost somebody before tell anything.
    if any(at < min(each.time for each in ended) for at in witness.peers_lost_at):
        return ErrorClass.COMMUNICATION, "after another rank had reported lost communication"
    return ErrorClass.EXCEPTION, _CRASHES[signal.SIGABRT]


def _meaning(number: signal.Signals, *, counts_kills: bool) -> tuple[ErrorClass, str]:
    if number in _CRASHES:
        return ErrorClass.EXCEPTION, _CRASHES[number]
    # As a lost peer it is worth another attempt, which a lack of memory would end in the same way.
    if counts_kills:
        return ErrorClass.COMMUNICATION, "by someone, and not for want of host memory (the kernel counts no such kill)"
    return ErrorClass.COMMUNICATION, "by someone, or for want of host memory; the kernel does not tell which"


_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of this cgroup that the out-of-memory killer has ended so far; None where the kernel gives no count.

    The count includes kills for a limit of an enclosing cgroup (a job's, a container's) and of the whole machine.

    Args:
        root: The folder with /proc and /sys.
    """
    for path in _counters(root):
        with contextlib.suppress(OSError):
            found = _OOM_KILLS.search(path.read_text())
            if found is not None:
                return int(found[1])
    return None


def _counters(root: Path) -> list[Path]:
    """Files that may hold the count, the most reliable first: of cgroup v1's memory controller, or of v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounts = root / "sys/fs/cgroup"
    first, second = [], []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        # In a container the path may be one of the host, and the mount this very cgroup.
        own = (path.strip("/"), "")
        if "memory" in controllers.split(","):
            first += [mounts / "memory" / name / "memory.oom_control" for name in own]
        elif (number, controllers) == ("0", ""):
            second += [mounts / name / "memory.events" for name in own]
    return first + second
