"""``status`` of a run directory whose jobs are all over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.cli.main import main
from sweep.core.attempt import Outcome
from sweep.core.ledger import Ended, Reserved
from tests.analysis.factory import RunDir


def a_run(tmp_path: Path, **content: object) -> Path:
    """Of three cells the first used one of the two GPU-hours that were reserved for it, the second is in flight."""
    run = RunDir(tmp_path / "run")
    run.change(**content)
    for nodes, used_s in ((1, 3600.0), (2, None)):
        key = run.key(nodes=nodes)
        run.events.append(Reserved(time=1.0, submission=f"s{nodes}", tasks=(key,), gpu_hours=2.0, gpus=1))
        if used_s is not None:
            run.events.append(Ended(time=9.0, key=key, outcome=Outcome.SUCCEEDED, reason="", gpu_seconds=used_s))
    run.save()
    return run.path


def test_what_is_spent_reserved_and_left_of_the_budget_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path, budget_gpu_hours=10.0)
    assert main(["status", f"run_dir={run}"]) == 0
    printed = capsys.readouterr()
    assert "1.00 GPU-hours spent, 2.00 reserved" in printed.out
    assert "budget of 10.00 GPU-hours: 1.00 spent, 2.00 reserved, 7.00 left" in printed.err
    assert main(["status", f"run_dir={run}", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert (totals["budget_gpu_hours"], totals["gpu_hours_spent"], totals["gpu_hours_committed"]) == (10.0, 1.0, 3.0)


def test_without_a_budget_there_is_no_word_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path)
    assert main(["status", f"run_dir={run}"]) == 0
    printed = capsys.readouterr()
    assert "budget of" not in printed.out + printed.err
