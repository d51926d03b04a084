from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.trace.__main__ import main
from analysis.trace.record import NodeProfile
from tests.analysis.trace.synthetic import GEMM, NCCL_ALL_REDUCE, Trace

ROOT = Path(__file__).parents[3]
KEYS = {
    *("n_events", "n_gpu_records", "n_comm", "n_compute", "n_memory", "n_other", "span_us", "busy_us", "idle_us"),
    *("compute_merged_us", "compute_sum_us", "comm_merged_us", "comm_sum_us", "memory_merged_us", "overlap_us"),
    *("overlap_pct", "exposed_comm_us", "exposed_vs_any_us"),
}
BLOCKED = ("torch", "pandas", "matplotlib", "scipy", "hydra", "omegaconf", "submitit", "rich", "typing_extensions")


def a_trace(rank: int = 0) -> Trace:
    trace = Trace(rank=rank).step(1, 0, 10)
    trace.kernel(GEMM, 100, 110, launch=1)
    return trace.kernel(NCCL_ALL_REDUCE, 105, 120 + rank, launch=2, stream=1)


def test_json_is_one_object_a_file_with_the_keys_of_the_reference_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(a_trace(rank).write(tmp_path)) for rank in (0, 1)]
    assert main([*files, "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first)[:2] == ["file", "scope"]
    assert set(first) > KEYS
    assert (first["file"], first["scope"], first["span_us"]) == ("rank0.json.gz", "all_exact", 20.0)
    assert (first["overlap_pct"], second["exposed_comm_us"]) == (pytest.approx(100 / 3), 11.0)


def test_the_text_shows_what_a_step_is_made_of_and_which_rank_the_others_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(a_trace(rank).write(tmp_path)) for rank in (0, 1)]) == 0
    out = capsys.readouterr().out
    assert "step 1: 0.020 ms = compute 0.010 + exposed 0.010 + copies alone 0.000 + idle 0.000" in out
    assert "step 1 over 2 ranks: slowest is rank 0" in out


def test_the_profile_of_a_node_is_written_with_the_traces_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = a_trace().write(tmp_path)
    cut = tmp_path / "rank1.json"
    cut.write_text(a_trace(1).text()[:-200])
    assert main([str(cut), str(good), "--out", str(tmp_path / "out"), "--node", "gpu/07"]) == 2
    captured = capsys.readouterr()
    assert "rank1.json is cut" in captured.err
    profile = NodeProfile.parse((tmp_path / "out" / "profile-gpu_07.json").read_text())
    assert profile.node == "gpu/07"
    assert [rank.rank for rank in profile.ranks] == [0]
    assert [failure.file for failure in profile.failures] == ["rank1.json"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "does not begin as a JSON object"),
        (b"\x1f\x8bnothing", "is cut or damaged"),
        (b'{"traceEvents": [{"ph": "B", "name": "x", "cat": "blink"}]}', "nothing to reduce"),
        (b'{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1}]}', "damaged event 'k'"),
        (b'{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1, "dur": -1}]}', "duration is -1000 ns"),
        (b'{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1e40, "dur": 1}]}', "damaged event 'k'"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {"device": []}}]}',
            "damaged event",
        ),
    ],
)
def test_a_damaged_or_foreign_file_gets_one_line_and_gives_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, what: str
) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    assert main([str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"analysis trace: {path} ")
    assert what in captured.err


def test_a_text_that_is_no_mesh_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_trace().write(tmp_path)
    with pytest.raises(SystemExit) as raised:
        main([str(path), "--mesh", "ep=2"])
    assert raised.value.code == 2
    assert "'ep=2' is no degree" in capsys.readouterr().err
    assert main([str(path), "--mesh", "dp_shard=2,tp=1"]) == 0


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main([str(a_trace().write(tmp_path)), "--out", str(taken)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_it_runs_where_the_trainer_runs_without_the_extra_analysis_and_without_torch(tmp_path: Path) -> None:
    path = a_trace().write(tmp_path)
    program = (
        "import runpy, sys\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        f"sys.argv = ['analysis', 'trace', {str(path)!r}, '--json']\n"
        "try: runpy.run_module('analysis', run_name='__main__')\n"
        "except SystemExit as ended: code = ended.code\n"
        "third = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(third - {'__main__', 'analysis', 'sweep'}), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rank"] == 0
    third = set(json.loads(done.stderr.replace("'", '"'))) - set(BLOCKED)
    assert {name for name in third if not name.startswith("_")} <= {"numpy", "msgspec"}


def test_it_is_a_module_to_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "analysis.trace", str(a_trace().write(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0" in done.stdout
