"""``status`` of a run directory whose jobs are all over."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sweep.adapters.files.blame_file import BlameFile, blame_path
from sweep.adapters.files.lease import Lease
from sweep.cli.main import main
from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import Ended, Reserved, Skipped
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.encoding.message import hours_text
from sweep.core.settings.policy import Policy
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


def test_status_shows_what_is_spent_reserved_and_left_of_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path, policy=Policy(budget_gpu_hours=10.0))
    assert main(["status", f"run_dir={run}"]) == 0
    printed = capsys.readouterr()
    assert "1.00 GPU-hours spent, 2.00 reserved" in printed.out
    assert "budget of 10.00 GPU-hours: 1.00 spent, 2.00 reserved, 7.00 left" in printed.err
    assert main(["status", f"run_dir={run}", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    names = (
        "budget_gpu_hours",
        "gpu_hours_spent",
        "gpu_hours_reserved",
        "gpu_hours_committed",
        "budget_gpu_hours_left",
    )
    assert [totals[name] for name in names] == [10.0, 1.0, 2.0, 3.0, 7.0]


def test_the_policy_of_the_last_run_says_what_is_retried_and_which_node_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {**OUTCOME_RULES, Outcome.NODE_FAIL: replace(OUTCOME_RULES[Outcome.NODE_FAIL], max_retries=0)}
    run = RunDir(tmp_path / "run")
    run.change(policy=Policy(outcomes=rules, bad_node_after=1, bad_node_expiry_h=2.0), own_name="frontier")
    key = run.key(nodes=1)
    run.events.append(Reserved(time=1.0, submission="s", tasks=(key,), gpu_hours=2.0, gpus=1))
    run.events.append(Ended(time=9.0, key=key, outcome=Outcome.NODE_FAIL, reason="down", gpu_seconds=1.0))
    run.save()
    assert main(["status", f"run_dir={run.path}", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["state"] for cell in cells if cell["outcome"]] == ["give_up"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    book = BlameFile(blame_path("frontier", {"XDG_STATE_HOME": str(tmp_path)}))
    now = time.time()
    for node, hours_ago in (("n1", 1.0), ("n2", 3.0)):
        book.add(
            [
                Blame(
                    node=node,
                    time=now - hours_ago * 3600,
                    cell_id="a",
                    run="r",
                    outcome=Outcome.NODE_FAIL,
                    reason="down",
                )
            ]
        )
    assert main(["status", "--nodes", f"run_dir={run.path}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n1: excluded, blamed by 1 cell; latest: NODE_FAIL: down",
        "excluded: blamed by 1 or more different cells within 2 hours.",
    ]


def test_without_a_budget_status_mentions_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path)
    assert main(["status", f"run_dir={run}"]) == 0
    printed = capsys.readouterr()
    assert "budget of" not in printed.out + printed.err


def test_cells_that_the_last_run_left_untried_are_shown_as_such_only_while_no_run_is_active(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run")
    key = run.key(nodes=1)
    run.events.append(Skipped(time=1.0, repeats=((key.cell_id, 1),), kind="paused", reason="three failed alike"))
    run.save()

    def states() -> list[str]:
        assert main(["status", f"run_dir={run.path}", "--json"]) == 0
        return [cell["state"] for cell in json.loads(capsys.readouterr().out)["cells"] if cell["cell"] == key.cell_id]

    assert states() == ["paused"]
    with Lease(run.path):
        assert states() == ["submit"]


def test_a_cell_is_named_by_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path)
    cell = RunDir(tmp_path / "other").cell_id(nodes=2)
    assert main(["status", cell, f"run_dir={run}"]) == 0
    assert f"cell {cell} (tiny, 2 nodes x 1, dp_shard=2, seq 128)" in capsys.readouterr().out


def test_status_names_the_run_directory_as_given_and_shows_its_real_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "of [me]")
    for quote in ("", "'", '"'):
        assert main(["status", f"run_dir={quote}{run}{quote}"]) == 0
        assert f"{run}: 3 repeats" in capsys.readouterr().out


def test_very_few_gpu_hours_are_not_shown_as_zero() -> None:
    assert [hours_text(value) for value in (None, 0.0, 0.0048, 0.1, 1024.0)] == [
        "0.00",
        "0.00",
        "0.0048",
        "0.10",
        "1,024.00",
    ]
