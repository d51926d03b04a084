"""Runs the checks of ``doctor``, which are data, and collects their findings; a check that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from sweep.core.encoding.frozen import dataclass
from sweep.ports import SchedulerError


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a check found."""

    name: str
    status: CheckStatus
    fact: str
    """The state that the check found."""
    mend: str = ""
    """The change that mends it; empty where none is needed."""

    def to_json(self) -> dict[str, str]:
        """The finding in the output of ``doctor --json``."""
        return {"name": self.name, "verdict": str(self.status), "fact": self.fact, "mend": self.mend}


def ok(name: str, fact: str) -> Finding:
    """A sweep can rely on it."""
    return Finding(name=name, status=CheckStatus.OK, fact=fact)


def warning(name: str, fact: str, mend: str) -> Finding:
    """It works, but perhaps not always or not as fast as it could."""
    return Finding(name=name, status=CheckStatus.WARNING, fact=fact, mend=mend)


def problem(name: str, fact: str, mend: str) -> Finding:
    """A sweep would fail."""
    return Finding(name=name, status=CheckStatus.PROBLEM, fact=fact, mend=mend)


def not_checked(name: str, why: str) -> Finding:
    """The check could not be made."""
    return Finding(name=name, status=CheckStatus.NOT_CHECKED, fact=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check."""

    name: str
    run: Callable[[], Finding | Sequence[Finding]]
    """Makes the check; may raise anything, may find several things."""
    needs: tuple[str, ...] = ()
    """Names of earlier checks without which this one means nothing."""


def run_checks(checks: Iterable[Check], report: Callable[[Finding], None] = lambda _: None) -> list[Finding]:
    """Run the checks in their order, and report each finding at once.

    A check that raises, or that needs an earlier one which is not ``ok`` or ``warning``, is ``not checked``.
    """
    findings: list[Finding] = []
    failed: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name in failed]
        if missing:
            found: Sequence[Finding] = [not_checked(check.name, f"needs: {', '.join(missing)}")]
        else:
            found = _run(check)
        if any(finding.status in (CheckStatus.PROBLEM, CheckStatus.NOT_CHECKED) for finding in found):
            failed.add(check.name)
        for finding in found:
            findings.append(finding)
            report(finding)
    return findings


def _run(check: Check) -> Sequence[Finding]:
    try:
        found = check.run()
    except Exception as error:  # a check that breaks must not hide the findings of the others
        what = str(error) if isinstance(error, SchedulerError) else f"{type(error).__name__}: {error}"
        return [not_checked(check.name, f"the check failed: {what}")]
    return [found] if isinstance(found, Finding) else found


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if there is a problem, else 0."""
    return int(any(finding.status is CheckStatus.PROBLEM for finding in findings))
