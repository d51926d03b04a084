"""A site's set-up lines: run by a real shell, one by one, and the one that fails is named with its words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sweep.core.jobs.set_up import PASSED, failure_in, set_up_script

LMOD = 'Lmod has detected the following error:  The following module(s) are unknown: "nosuch"'
TCL = "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'nosuch'"


def run(*setup: str, tmp: Path | None = None) -> tuple[str, str]:
    """The output of a job script with these lines, and what it says of the one that failed."""
    text = "\n".join(('echo "sweep: zone +0000"', *set_up_script(setup), f"echo started ${PASSED} $A"))
    environ = {**os.environ, **({} if tmp is None else {"TMPDIR": str(tmp)})}
    done = subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True, check=False, timeout=30)
    failed = failure_in(done.stdout)
    assert (done.returncode == 0) == (failed is None) == ("started" in done.stdout)
    return done.stdout + done.stderr, "" if failed is None else failed.reason


@pytest.mark.parametrize(
    "setup",
    [
        ("A=yes",),
        ("declare -x A=yes",),
        ("if true; then", "  A=yes", "fi"),
        ("A=\\", "yes"),
        ("read A <<END", "yes", "END"),
        ("f() { A=yes; }", "f"),
        ("set -euxC -o pipefail", "A=yes", "export PATH=/nowhere"),
        ("shopt -s extglob", "case ab in", "  !(x)) A=yes;; esac"),
        ("false || true", "A=yes"),
        ("module() { echo 'Lmod Warning: old' >&2; A=yes; }", "module load errors/1.0"),
        ("echo 'error: not of a module' >&2; A=yes",),
    ],
)
def test_lines_that_pass_work_in_the_shell_of_the_job(setup: tuple[str, ...], tmp_path: Path) -> None:
    text, reason = run(*setup, tmp=tmp_path)
    assert reason == ""
    assert any(line.startswith("started ") and line.endswith(" yes") for line in text.splitlines()), text
    assert not list(tmp_path.iterdir()), "no file is left"


@pytest.mark.parametrize(
    ("setup", "line", "words"),
    [
        (("nosuch --x",), "`nosuch --x` ended with exit code 127: ", "nosuch: command not found"),
        (("false", "true"), "`false` ended with exit code 1", ""),
        (("echo 'no licence' >&2; exit 0",), "ended the script with exit code 0: no licence", ""),
        (("set -e", "false"), "`false` ended the script with exit code 1", ""),
        ((f"module() {{ echo '{LMOD}' >&2; }}", "module load nosuch"), "`module load nosuch` ended with exit", LMOD),
        ((f'ml() {{ echo "{TCL}" >&2; }}', "true && ml nosuch"), "`true && ml nosuch` ended with exit code 0", TCL),
        (("if true; then", "echo x"), "`if true; then echo x` ended", "syntax error"),
        (("echo )(",), "`echo )(` ended", "syntax error"),
        (("seq 1 1000 >&2; echo so: it fails >&2; false",), "exit code 1: ", "1000; so: it fails"),
    ],
)
def test_a_line_that_fails_ends_the_job_and_is_quoted(
    setup: tuple[str, ...], line: str, words: str, tmp_path: Path
) -> None:
    _, reason = run(*setup, tmp=tmp_path)
    assert line in reason
    assert words in reason
    assert not list(tmp_path.iterdir()), "no file is left"


def test_words_are_in_the_log_where_no_temporary_file_can_be_made(tmp_path: Path) -> None:
    _, reason = run("echo oh no >&2; false", tmp=tmp_path / "missing")
    assert "oh no" in reason


def test_a_line_that_failed_before_the_job_was_requeued_says_nothing_of_its_last_run() -> None:
    text, _ = run("false")
    assert failure_in(text) is not None
    assert failure_in(f"{text}\nsweep: zone +0000\n") is None


def test_a_cluster_without_set_up_lines_has_none_in_its_job_script() -> None:
    assert set_up_script(()) == []
