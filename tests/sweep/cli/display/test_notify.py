"""What the user's own command is told while a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from sweep.adapters.files.run_directory import RunDir
from sweep.cli.display.notify import Notifier
from sweep.core.decisions.plan import Action, ActionKind
from sweep.core.settings.spec import SweepSpec
from sweep.usecases.orchestrate import Snapshot


def at(*kinds: ActionKind) -> Snapshot:
    actions = [
        Action(kind=kind, cell_id=f"{i}" * 16, repeat=1, attempt=1, reason=f"why {i}") for i, kind in enumerate(kinds)
    ]
    return Snapshot(actions=tuple(actions), reports={})


def notifier(tmp_path: Path, *command: str) -> Notifier:
    named = SimpleNamespace(name="x")
    spec = cast("SweepSpec", SimpleNamespace(notify=command, grid=named, cluster=named))
    return Notifier(spec, RunDir(tmp_path), Console(stderr=True))


def notified(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "tell"
    script.write_text(f"#!/bin/sh\n{{ cat; echo; }} >> {tmp_path}/told\n")
    script.chmod(0o755)
    return [str(script)]


def test_cells_given_up_or_paused_are_reported_once_and_not_if_they_were_so_at_the_start(
    tmp_path: Path, command: list[str]
) -> None:
    made = notifier(tmp_path, *command)
    wait, give_up, paused = ActionKind.WAIT, ActionKind.GIVE_UP, ActionKind.PAUSED
    made.watched(at(wait, wait, give_up))
    assert notified(tmp_path) == []
    made.watched(at(wait, give_up, give_up))
    made.watched(at(wait, give_up, give_up))
    (news,) = notified(tmp_path)
    assert (news["event"], news["exit_code"], news["counts"]) == ("given_up", None, {"wait": 1, "give_up": 2})
    assert [hole["reason"] for hole in news["holes"]] == ["why 1"]
    made.watched(at(paused, give_up, give_up))
    made.ended(at(paused, give_up, give_up), 1)
    assert [item["event"] for item in notified(tmp_path)] == ["given_up", "ended"], "the last look is the end's to tell"
    assert len(notified(tmp_path)[-1]["holes"]) == 3


def test_a_command_that_fails_is_noted_without_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notifier(tmp_path, "false", "https://hooks.example.org/s3cret").stopped("a full disk", 3)
    printed = capsys.readouterr().err
    assert "the notify command failed" in printed
    assert "s3cret" not in printed
