"""The rank that reports a refusal, how long it waits, and its message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.records.attempt_record import parse_error, render_error
from sweep.core.records.layout import ERROR_GLOB, rank_error
from tests.trainer.places import ranks
from trainer import cli
from trainer.failure.error_report import ErrorReporter, RankProgress
from trainer.failure.process_exit import EXIT_REFUSED
from trainer.process.ranks import Ranks, reports_at_once
from trainer.process.refusal import Refusal

AGENTS = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}


class Waits:
    """A clock that only ``sleep`` moves."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds

    def monotonic(self) -> float:
        return self.waited_s


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    made = Waits()
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    monkeypatch.setattr(cli, "leave", exit)
    return made


def exit(code: int) -> None:
    raise SystemExit(code)


def refused(folder: Path, rank: int, *, speaker: int) -> None:
    place = ranks(rank)
    with pytest.raises(SystemExit, match=str(EXIT_REFUSED)):
        cli._refuse("no such file", ErrorReporter(folder, place, RankProgress()), place, speaker=speaker)


@pytest.mark.parametrize(
    ("rank", "speaker", "patience_s"),
    [
        (0, 0, 0),  # says it at once
        (4, 4, 0),  # what a node finds, its own first rank says at once
        (4, 0, 10),  # rank 0 has not found it: soon, as the others may stop this node
        (1, 0, 60),  # of rank 0's node, alone
        (5, 4, 60),  # of another node, alone
        (5, 0, 15),
    ],
)
def test_a_rank_reports_a_refusal_that_no_other_rank_reports(
    rank: int, speaker: int, patience_s: float, tmp_path: Path, waits: Waits, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(tmp_path, rank, speaker=speaker)
    assert waits.waited_s == pytest.approx(patience_s, abs=0.2)
    assert capsys.readouterr().err == "trainer: refused: no such file\n"
    error = parse_error((tmp_path / rank_error(rank)).read_text())
    assert (error.error_class, error.message) == (ErrorClass.REFUSED, "no such file")


@pytest.mark.parametrize(("rank", "speaker", "reported_by"), [(4, 0, 0), (1, 0, 0), (5, 0, 0), (5, 0, 4), (5, 4, 4)])
def test_a_refusal_that_another_rank_has_reported_is_not_reported_again(
    rank: int, speaker: int, reported_by: int, tmp_path: Path, waits: Waits, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = RankError(
        rank=reported_by, node_rank=0, time=1.0, error_class=ErrorClass.REFUSED, message="no such file"
    )
    (tmp_path / rank_error(reported_by)).write_text(render_error(reported))
    refused(tmp_path, rank, speaker=speaker)
    assert capsys.readouterr().err == ""
    assert [path.name for path in tmp_path.glob(ERROR_GLOB)] == [rank_error(reported_by)]


@pytest.mark.parametrize(
    ("changes", "patience_s"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, 0),
        ({"RANK": "4", "LOCAL_RANK": "0"}, 5),  # a folder that is missing on its node alone
        ({}, 10),
        ({"RANK": "x"}, 0),  # nobody else can know of it
        ({"RANK": None}, 0),
        ({"TORCHELASTIC_RUN_ID": None}, 0),
    ],
)
def test_before_the_ranks_are_known_every_node_reports(
    changes: dict[str, str | None],
    patience_s: float,
    tmp_path: Path,
    waits: Waits,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**AGENTS, **changes}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=str(EXIT_REFUSED)):
        cli.main(["--cell", str(tmp_path / "cell.json"), "--out", str(tmp_path / "nowhere")])
    assert waits.waited_s == pytest.approx(patience_s)
    assert capsys.readouterr().err.count("there is no such folder") == 1


def test_only_a_rank_that_knows_its_rank_leaves_the_report_to_rank_0() -> None:
    assert not reports_at_once(AGENTS)
    assert reports_at_once({**AGENTS, "RANK": "00"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SWEEP_NODE_RANK": "abc"}, "SWEEP_NODE_RANK=abc is no number .* Unset it, or set it right"),
        ({"GROUP_RANK": "abc"}, "GROUP_RANK=abc is no number .* Set it right; torchrun does"),
        ({"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT=x is no number"),
        ({"RANK": None}, "RANK is missing. torchrun sets it for every rank"),
        ({"GROUP_RANK": None}, "GROUP_RANK is missing"),
    ],
)
def test_the_wrong_variable_is_named(changes: dict[str, str | None], words: str) -> None:
    environ = {name: value for name, value in {**AGENTS, **changes}.items() if value is not None}
    with pytest.raises(Refusal, match=words):
        Ranks.from_environment(environ)
