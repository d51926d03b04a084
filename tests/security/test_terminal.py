"""No text of a run directory from a stranger reaches a terminal, a table or a page with its control characters."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.__main__ import main as analyse
from analysis.given_away import html, latex, markdown
from sweep.cli.main import main
from sweep.core.encoding.message import visible, visible_line
from tests.security.hostile import PAYLOAD, bad_characters, hostile_run

RUNS = [("ends", False), ("ends", True), ("paused", False), ("slurm_ends", False)]


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, with_names = request.param
    return hostile_run(name, tmp_path_factory.mktemp("hostile"), with_names=with_names)


def cells(run: Path) -> list[str]:
    return list(json.loads((run / "sweep.json").read_text())["cells"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No blame file of the person who runs the tests, and no Slurm."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)


def test_no_verb_prints_a_hostile_record_raw(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = f"run_dir={run}"
    for words in (
        ["status"],
        ["status", "--json"],
        ["status", "--nodes"],
        ["status", "--nodes", "--json"],
        ["status", *cells(run)],
        ["status", "--json", *cells(run)],
        *(["logs", cell] for cell in cells(run)),
        ["plan", "+grid=weak_scaling", "cluster=local"],
        ["cancel", "--all"],
        ["cancel", "--all", "--json"],
    ):
        main([*words, asked])
        out, err = capfd.readouterr()
        assert out + err
        assert bad_characters(out + err) == [], words


def test_no_table_holds_a_hostile_record_raw(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    analyse([str(run), "--out", str(tmp_path)])
    out, err = capfd.readouterr()
    assert bad_characters(out + err) == []
    for path in tmp_path.glob("tables/*"):
        text = path.read_text()
        assert bad_characters(text) == [], path.name
        assert path.suffix != ".md" or "<b>" not in text.replace("\\<b>", "")


def test_a_terminal_gets_no_control_character_of_a_record(tmp_path: Path) -> None:
    run = hostile_run("ends", tmp_path, with_names=False)
    for words in (["status", *cells(run)], ["logs", cells(run)[0]]):
        shown = on_terminal([sys.executable, "-m", "sweep", *words, f"run_dir={run}"])
        assert "PWNED" in shown, "a hostile text is among those shown"
        assert bad_characters(shown.replace("\r\n", "\n")) == [], words


def on_terminal(command: list[str]) -> str:
    """What a command writes to a terminal that has no styles of its own."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ):
        os.close(theirs)
        text = b""
        while True:
            try:
                text += (read := os.read(ours, 65_536))
            except OSError:  # the last process has closed it
                read = b""
            if not read:
                os.close(ours)
                return text.decode()


def test_logs_are_raw_only_where_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = hostile_run("ends", tmp_path, with_names=False)
    main(["logs", cells(run)[0], f"run_dir={run}", "--raw"])
    assert PAYLOAD in capfd.readouterr().out


@pytest.mark.parametrize("words", [["status", f"run_dir=a{PAYLOAD}"], ["plan", f"+grid={PAYLOAD}"], [f"{PAYLOAD}"]])
def test_an_error_shows_what_was_typed_and_does_not_obey_it(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capfd.readouterr()
    assert bad_characters(out + err) == []


@pytest.mark.parametrize("module", ["sweep", "analysis"])
def test_a_traceback_shows_a_hostile_message_and_does_not_obey_it(module: str, tmp_path: Path) -> None:
    """A defect: the verb fails with a text of a record in its message."""
    name = {"sweep": "sweep.cli.main", "analysis": "analysis.load"}[module]
    function = {"sweep": "main", "analysis": "load"}[module]
    code = (
        f"import runpy, sys, {name} as broken\n"
        f"def fail(*_): raise RuntimeError({PAYLOAD!r})\n"
        f"broken.{function} = fail; sys.argv = ['x', 'status']\n"
        f"runpy.run_module('{module}', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "PWNED" in done.stderr
    assert bad_characters(done.stdout + done.stderr) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, tp=2 \u00d7 é 漢 \N{GRINNING FACE}", "plain text, tp=2 \u00d7 é 漢 \N{GRINNING FACE}"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\r\x00\x7f\x9b", r"\r\x00\x7f\x9b"),
        ("\u202etext\u2066", r"\u202etext\u2066"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible_line(text) == shown.replace("\n", r"\n").replace("\t", r"\t")


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (markdown, r"\x1b] \| \`x\` \*b\* \<i> ![x]\(http://x) [y]\: a_b"),
        (html, r"\x1b] | `x` *b* &lt;i&gt; ![x](http://x) [y]: a_b"),
        (latex, r"\textbackslash{}x1b] \textbar{} `x` *b* \textless{}i\textgreater{} ![x](http://x) [y]: a\_b"),
    ],
)
def test_markup_in_a_text_is_shown_as_it_is(escaped: object, text: str) -> None:
    assert callable(escaped)
    expected = text.replace(r"\x1b", r"\\x1b") if escaped is markdown else text
    assert escaped("\x1b] | `x` *b*\n<i>  ![x](http://x) [y]: a_b") == expected


def test_latex_runs_no_command_of_a_text() -> None:
    assert latex("\\input{/etc/passwd} $x$ 5% #1 a&b \\\\ ~^") == (
        r"\textbackslash{}input\{/etc/passwd\} \$x\$ 5\% \#1 a\&b \textbackslash{}\textbackslash{} "
        r"\textasciitilde{}\textasciicircum{}"
    )


def test_html_stays_in_its_attribute() -> None:
    assert html("\"><script>'") == "&quot;&gt;&lt;script&gt;&#x27;"
