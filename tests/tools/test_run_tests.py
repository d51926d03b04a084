"""Several test runs at once: the output that is shown, the exit code, and no process left after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.commands import is_alive, wait_for
from tools.run_tests import GIVEN_SLURM, Part, parts, run_all

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def part(name: str, code: str) -> Part:
    return Part(name=name, command=[sys.executable, "-uc", textwrap.dedent(code)])


@pytest.mark.parametrize(("first", "second", "expected"), [(0, 0, 0), (3, 0, 1), (0, 5, 1), (1, 1, 1), (-9, 0, 1)])
def test_any_part_that_fails_makes_the_whole_fail(first: int, second: int, expected: int) -> None:
    codes = [
        f"import os, signal; os.kill(os.getpid(), {-c})" if c < 0 else f"raise SystemExit({c})" for c in (first, second)
    ]
    assert run_all([part("a", codes[0]), part("b", codes[1])]) == expected


def test_outputs_do_not_mix_and_no_line_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    speaking = "import time\nfor i in range({n}): print('{name}', i); time.sleep(0.05)"
    # The second goes on after the first, and the third ends before both.
    counts = {"a": 4, "b": 12, "c": 1}
    assert run_all([part(name, speaking.format(n=n, name=name)) for name, n in counts.items()]) == 0
    lines = capfd.readouterr().out.splitlines()
    expected = [f"{name} {i}" for name, n in counts.items() for i in range(n)]
    assert [line for line in lines if not line.startswith("==")] == expected
    assert lines[-3:] == ["== a: passed", "== b: passed", "== c: passed"]


def test_both_run_at_the_same_time(tmp_path: Path) -> None:
    meeting = """
        import pathlib, time
        pathlib.Path({mine!r}).touch()
        deadline = time.monotonic() + 120
        while not pathlib.Path({other!r}).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    """
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert run_all([part("a", meeting.format(mine=a, other=b)), part("b", meeting.format(mine=b, other=a))]) == 0


STUBBORN = """
    import pathlib, signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if {is_stubborn}:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pathlib.Path({path!r}).write_text(str(child.pid))
        time.sleep(600)
    except KeyboardInterrupt:
        print("tidied up")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_both_and_all_that_they_started(number: signal.Signals, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    codes = [textwrap.dedent(STUBBORN.format(path=str(p), is_stubborn=p.name == "b")) for p in paths]
    program = (
        "import sys; from tools.run_tests import Part, run_all; "
        "made = [Part(name=n, command=[sys.executable, '-c', c]) for n, c in zip('ab', sys.argv[1:])]; "
        "sys.exit(run_all(made, patience_s=8))"
    )
    started = subprocess.Popen([sys.executable, "-c", program, *codes], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = [int(path.read_text()) for path in paths]
    assert all(map(is_alive, children))
    os.kill(started.pid, number)
    out, _ = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "tidied up" in out
    assert f"== b: exit status {-signal.SIGKILL}" in out
    wait_for(lambda: not any(map(is_alive, children)), 60, "nothing is left")


def test_each_integration_test_is_in_exactly_one_part() -> None:
    trainer, others, *waiting = parts([], {})
    assert {"tests", "--ignore=tests/trainer", "--ignore=tests/integration"} <= set(others.command)
    assert "tests/trainer" in trainer.command
    collected = [
        {line.partition("::")[0] for line in subprocess.run(
            [*made.command, "--collect-only", "-q"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.splitlines() if "::" in line}
        for made in waiting
    ]  # fmt: skip
    assert all(collected)
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/integration/test_*.py")}
    assert set().union(*collected) == files
    assert sum(map(len, collected)) == len(files)


def test_only_one_part_uses_a_given_slurm() -> None:
    together = parts(["-x"], {GIVEN_SLURM: "/somewhere"})
    assert [("tests/integration" in made.command) for made in together] == [False, False, True]
    assert all(made.command[-1] == "-x" for made in together)
