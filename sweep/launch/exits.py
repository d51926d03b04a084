"""Ranks that a signal ended, and so could say nothing: which, by what, and what kind of error that is."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.core.attempt import ErrorClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Signals that come from within: the code would do it again.
_CRASHES: Mapping[signal.Signals, str] = {
    signal.SIGSEGV: "native code touched memory that is not its own",
    signal.SIGABRT: "native code gave up, as after a failed assertion; its last words are in the log",
    signal.SIGBUS: "no room in /dev/shm, a mapped file that was cut, or bad memory",
    signal.SIGILL: "an instruction that this processor does not know",
    signal.SIGFPE: "an integer division by zero in native code",
}
_SAID_BY_AGENT_S = 5.0
"""Ranks that end later than this after the first one were ended by torchrun because of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank ended, as torchrun saw it.

    Attributes:
        rank: Global rank.
        exit_code: Its exit code; negative: the signal that ended it.
        time: Unix time at which torchrun noticed, in whole seconds.
    """

    rank: int
    exit_code: int
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The error that a launcher reports for ranks that could not.

    Attributes:
        error_class: Its kind.
        message: Which ranks, which signal, and what that means.
        time: Unix time of the first of them; None where only the launcher saw it.
    """

    error_class: ErrorClass
    message: str
    time: float | None = None


def render(exits: Iterable[RankExit]) -> str:
    """Text of the file that the agent leaves."""
    return json.dumps([asdict(each) for each in exits])


def read(path: Path) -> list[RankExit]:
    """What the agent left; nothing where it left nothing, or no rank failed."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [RankExit(**each) for each in json.loads(path.read_text())]
    return []


def explain(exits: Sequence[RankExit], has_spoken: Callable[[int], bool], *, counts_kills: bool) -> Explanation | None:
    """What to report of the ranks that a signal ended before they could report anything themselves.

    Args:
        exits: Ranks of the node that failed.
        has_spoken: Whether a rank left an error file.
        counts_kills: Whether the kernel counts kills for want of memory; it has counted none meanwhile.

    Returns:
        A crash before a kill, which may have followed from it; None where no signal ended a silent rank.
    """
    first = min((each.time for each in exits), default=0.0)
    silent = [each for each in exits if each.time - first <= _SAID_BY_AGENT_S and not has_spoken(each.rank)]
    for number in (*_CRASHES, signal.SIGKILL):
        ended = [each for each in silent if each.exit_code == -number]
        if ended:
            numbers = ", ".join(str(each.rank) for each in sorted(ended, key=lambda each: each.rank))
            subject = f"rank {numbers} was" if len(ended) == 1 else f"ranks {numbers} were"
            error_class, meaning = _meaning(number, counts_kills=counts_kills)
            return Explanation(
                error_class=error_class,
                message=f"{subject} ended by {number.name}: {meaning}",
                time=min(each.time for each in ended),
            )
    return None


def explain_agent(exit_code: int, program: str, *, counts_kills: bool) -> Explanation | None:
    """What to report where a signal ended what the launcher started, the ranks' agent or an entry without one."""
    if exit_code >= 0 or -exit_code not in {*_CRASHES, signal.SIGKILL}:
        return None
    number = signal.Signals(-exit_code)
    error_class, meaning = _meaning(number, counts_kills=counts_kills)
    return Explanation(error_class=error_class, message=f"{program} was ended by {number.name}: {meaning}")


def _meaning(number: signal.Signals, *, counts_kills: bool) -> tuple[ErrorClass, str]:
    if number in _CRASHES:
        return ErrorClass.EXCEPTION, _CRASHES[number]
    # As a lost peer it is worth another attempt, which a lack of memory would end in the same way.
    if counts_kills:
        return ErrorClass.COMMUNICATION, "by someone, and not for want of host memory (the kernel counts no such kill)"
    return ErrorClass.COMMUNICATION, "by someone, or for want of host memory; the kernel does not tell which"
