from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.files.run_reader import find_run_dirs
from sweep.core.attempts.attempt import AttemptKey, ErrorClass, RankError
from sweep.core.cells.cell import cell_id
from sweep.core.encoding.record import RecordError
from sweep.core.grids.grid import Rejection
from sweep.core.jobs.submission import Claim, claim_file
from sweep.core.records.attempt_record import AttemptFile, CellFile, render_error
from sweep.core.records.layout import RESULT_FILE, SWEEP_FILE, attempt_dir, rank_error
from sweep.core.records.progress import Progress
from sweep.core.records.sweep_file import SweepFile
from sweep.core.settings.spec import LaunchSpec
from sweep.files import RunDirError, write_atomically
from sweep.launch.claim import take
from tests.fakes import CPU, result_of, submission_of, tiny_cell, weak_content

CELL = tiny_cell()
KEY = AttemptKey(cell_id=cell_id(CELL), repeat=1, attempt=1)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def _folder(run_dir: RunDir) -> Path:
    folder = Path(run_dir.path, attempt_dir(KEY))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.json").write_text(CellFile(cell=CELL, device=CPU, key=KEY).render())
    return folder


def _content() -> SweepFile:
    sizes = {"nodes": 3, "gpus_per_node": 1, "seq_len": 32, "sequences_per_gpu": "1"}
    rejection = Rejection(axes=sizes, rule="exclude", reason="nodes == 3")
    return weak_content({KEY.cell_id: CELL}, cluster="local", rejections=[rejection])


def test_a_run_directory_is_private_to_its_user(run_dir: RunDir) -> None:
    assert stat.S_IMODE(Path(run_dir.path).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("mode", "umask", "is_open"),
    [(0o700, 0o077, False), (0o750, 0o027, False), (0o2770, 0o007, False), (0o755, 0o077, True)],
)
def test_what_is_made_is_private_or_the_groups_as_the_run_directory_is(
    run_dir: RunDir, mode: int, umask: int, is_open: bool
) -> None:
    Path(run_dir.path).chmod(mode)
    before = os.umask(0)
    try:
        notes = run_dir.apply_access()
        assert os.umask(0) == umask
        assert [f"mode {mode:o}" in note for note in notes] == [True] * is_open
    finally:
        os.umask(before)


def test_an_unwritable_run_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=r"cannot be written .*Give another with run_dir="):
        RunDir(tmp_path / "file" / "run").create()


def test_a_full_disk_is_noticed_although_it_still_takes_names(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # files may be made, and nothing put into them
    try:
        with pytest.raises(RunDirError, match="the space on its disk"):
            RunDir(tmp_path / "run").create()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in (tmp_path / "run").iterdir() if path.is_file()] == []


def test_sweep_json_is_read_back_and_left_alone_when_nothing_changed(run_dir: RunDir) -> None:
    assert run_dir.sweep_file() is None
    run_dir.publish_sweep_file(_content())
    assert run_dir.sweep_file() == _content()
    before = Path(run_dir.path, SWEEP_FILE).stat().st_mtime_ns
    run_dir.publish_sweep_file(_content())
    assert Path(run_dir.path, SWEEP_FILE).stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["", "{half", '{"kind": "sweep", "schema": 99}', '{"kind": "sweep", "schema": 1}'])
def test_a_damaged_or_newer_sweep_json_is_refused_and_kept(run_dir: RunDir, text: str) -> None:
    path = Path(run_dir.path, SWEEP_FILE)
    path.write_text(text)
    with pytest.raises(RunDirError, match="results below it are untouched"):
        run_dir.sweep_file()
    assert path.read_text() == text


def test_a_submission_and_its_cells_are_read_back(run_dir: RunDir) -> None:
    submission = submission_of(
        (KEY,),
        name="weak-local-1",
        run_dir=run_dir.path,
        launch=LaunchSpec(environment={"NCCL_DEBUG": "WARN"}),
        provenance={"git_commit": None},
    )
    cell_file = CellFile(cell=CELL, device=CPU, key=KEY, sources_hash="abc", run_name="weak-local")
    run_dir.publish_submission(submission, [cell_file])
    assert run_dir.submission_names() == ["weak-local-1"]
    assert run_dir.submission("weak-local-1") == submission
    assert CellFile.parse(Path(run_dir.path, attempt_dir(KEY), "cell.json").read_text()) == cell_file


def test_a_half_written_result_does_not_count_and_says_why(run_dir: RunDir) -> None:
    assert run_dir.result(KEY) == (None, "")
    (_folder(run_dir) / RESULT_FILE).write_text(result_of(KEY).render()[:200])
    result, problem = run_dir.result(KEY)
    assert result is None
    assert "not whole JSON" in problem


def test_a_result_of_another_attempt_does_not_count(run_dir: RunDir) -> None:
    other = AttemptKey(cell_id=KEY.cell_id, repeat=1, attempt=2)
    (_folder(run_dir) / RESULT_FILE).write_text(result_of(other).render())
    result, problem = run_dir.result(KEY)
    assert result is None
    assert "not of" in problem


@pytest.mark.parametrize("change", [{"world_size": 2}, {"window_tokens": 319}, {"n_params": 1}])
def test_a_result_of_another_experiment_than_the_cell_does_not_count(run_dir: RunDir, change: dict[str, int]) -> None:
    (_folder(run_dir) / RESULT_FILE).write_text(result_of(KEY, **change).render())
    result, problem = run_dir.result(KEY)
    assert result is None
    assert next(iter(change)) in problem


def test_the_latest_restart_with_a_valid_result_counts(run_dir: RunDir) -> None:
    own = _folder(run_dir)
    for number in (1, 2, 10):
        (own / f"restart-{number}").mkdir()
    (own / RESULT_FILE).write_text(result_of(KEY).render())
    (own / "restart-2" / RESULT_FILE).write_text(result_of(KEY, restart=2, final_loss=2.0).render())
    (own / "restart-10" / RESULT_FILE).write_text("{half")
    result, problem = run_dir.result(KEY)
    assert problem == ""
    assert result is not None
    assert result.restart == 2


def test_earlier_runs_of_a_requeued_job_are_apart_from_its_latest(run_dir: RunDir) -> None:
    own = _folder(run_dir)
    assert run_dir.launches(KEY) == (None, ())
    for number in (0, 1, 2, 10):
        folder = own / f"restart-{number}" if number else own
        folder.mkdir(exist_ok=True)
        written = AttemptFile(key=KEY, job_id="7", restart=number, hosts=("n1",), pid=5, started_at=float(number))
        (folder / "attempt.json").write_text("{half" if number == 1 else written.render())
    assert [run.restart for run in run_dir.launches(KEY)[1]] == [0, 2]
    latest = run_dir.attempt_file(KEY)
    assert latest is not None
    assert latest.restart == 10


def test_the_last_sign_of_life_of_a_run_is_the_last_file_that_it_wrote(run_dir: RunDir) -> None:
    own = _folder(run_dir)
    (own / "restart-1").mkdir()
    assert run_dir.last_sign_of_life(KEY, 0) is None, "the cell file was there before"
    for path, time in ((own / "attempt.json", 10), (own / "progress.json", 20), (own / "restart-1" / "x", 30)):
        path.write_text("")
        os.utime(path, (time, time))
    assert [run_dir.last_sign_of_life(KEY, restart) for restart in (0, 1, 2)] == [20.0, 30.0, None]


def test_errors_and_progress_are_those_of_the_latest_restart(run_dir: RunDir) -> None:
    own = _folder(run_dir)
    early = RankError(rank=0, node_rank=0, time=1.0, error_class=ErrorClass.OOM_DEVICE, message="early")
    late = RankError(rank=1, node_rank=0, time=2.0, error_class=ErrorClass.EXCEPTION, message="late", step=3)
    (own / rank_error(0)).write_text(render_error(early))
    assert run_dir.errors(KEY) == [early]
    (own / "restart-1").mkdir()
    (own / "restart-1" / rank_error(1)).write_text(render_error(late))
    (own / "restart-1" / rank_error(2)).write_text("{half")
    (own / "restart-1" / "progress.json").write_text(Progress(step=3, steps=9, time=1.0, tokens_per_s=None).render())
    assert run_dir.errors(KEY) == [late]
    progress = run_dir.progress(KEY)
    assert progress is not None
    assert progress.step == 3


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_submission_that_no_job_has_begun_can_be_withdrawn_and_stays_so(run_dir: RunDir) -> None:
    assert run_dir.job_that_began("s") is None
    assert run_dir.withdraw("s") == ""
    assert run_dir.withdraw("s") == ""
    assert run_dir.job_that_began("s") == ""
    path = Path(run_dir.path) / claim_file("begun")
    take(path, Claim(job_id="42", time=1.0, host="node1"))
    assert run_dir.withdraw("begun") == run_dir.job_that_began("begun") == "42"
    path.write_text("{")
    with pytest.raises(RecordError, match=r"begun\.claim: .* Delete it if no job of that name is there"):
        run_dir.withdraw("begun")
    assert run_dir.submission_names() == [], "claims are no submissions"


def test_cancel_requests_are_taken_up_once(run_dir: RunDir) -> None:
    name = run_dir.request_cancel(["abcd"])
    assert run_dir.cancel_requests() == [(name, ["abcd"])]
    assert run_dir.is_request_pending(name)
    run_dir.drop_cancel_request(name)
    assert run_dir.cancel_requests() == []
    assert not run_dir.is_request_pending(name)


def test_run_directories_are_found_latest_first(tmp_path: Path) -> None:
    for name, changed_at in (("two", 20.0), ("one", 10.0)):
        made = RunDir(tmp_path / name)
        made.create()
        made.publish_sweep_file(_content())
        os.utime(tmp_path / name / SWEEP_FILE, (changed_at, changed_at))
    (tmp_path / "three").mkdir()
    assert find_run_dirs(tmp_path) == [tmp_path / "two", tmp_path / "one"]
