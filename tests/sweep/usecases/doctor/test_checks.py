"""The checks of doctor run in order; a check that fails stops only those that need it."""

from __future__ import annotations

from sweep.usecases.doctor.checks import (
    Check,
    Finding,
    exit_code,
    not_checked,
    ok,
    problem,
    run_checks,
    warning,
)


def test_a_check_that_raises_is_not_checked_and_the_others_go_on() -> None:
    shown: list[Finding] = []
    checks = [
        Check(name="breaks", run=lambda: ok("x", str(1 / 0))),
        Check(name="needs it", run=lambda: ok("needs it", ""), needs=("breaks",)),
        Check(name="needs that", run=lambda: ok("needs that", ""), needs=("needs it",)),
        Check(name="fine", run=lambda: [ok("fine", "1"), warning("fine", "2", "m")]),
        Check(name="needs fine", run=lambda: ok("needs fine", ""), needs=("fine",)),
        Check(name="nothing to say", run=lambda: []),
    ]
    found = run_checks(checks, shown.append)
    assert found == shown
    assert [(item.name, item.status.value) for item in found] == [
        ("breaks", "not checked"),
        ("needs it", "not checked"),
        ("needs that", "not checked"),
        ("fine", "ok"),
        ("fine", "warning"),
        ("needs fine", "ok"),
    ]
    assert "ZeroDivisionError" in found[0].fact


def test_only_a_problem_gives_exit_code_1() -> None:
    assert exit_code([ok("a", ""), warning("b", "", ""), not_checked("c", "")]) == 0
    assert exit_code([ok("a", ""), problem("b", "", "")]) == 1
