"""Faults of the orchestrator itself, on a real Slurm: killed at every ledger write, two at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweep.core.records.layout import LEDGER_FILE
from tests.commands import wait_for
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import DyingShell, fault_run

pytestmark = pytest.mark.slurm

# Writes: reserved, submitted and ended of the canary, then of the other cell's two attempts.
WRITES = 9
TWO_CELLS = ("nodes=1", "seq_len=[32,64]", "tables=false", "policy.outcomes.TRAINER_ERROR.max_retries=1")


def _killed_and_resumed(slurm: SlurmUnderTest, folder: Path, when: str, write: int) -> None:
    run = fault_run(
        slurm, folder, f"{when}{write}".lower(), *TWO_CELLS, "budget.gpu_hours=1", shell=DyingShell, lost_after_s=4,
        # On a busy machine a job may outlive its result for a while; ending it then would be one more write.
        plan={"64": "error@1"}, hang_grace_s=60.0,
    )  # fmt: skip
    first = run.with_env(**{f"DIES_{when}": str(write)}).shell.run(*run.arguments)
    assert first.code == 137, first.err
    jobs = run.jobs()
    second = run.shell.run(*run.arguments)
    assert second.code == 0, second.err
    assert run.jobs()[: len(jobs)] == jobs, "what was submitted is adopted"
    # If it is killed around the reservation, the failing first attempt never runs, and its number is not used again.
    failing = [] if write == 4 else ["TRAINER_ERROR"]
    assert run.outcomes() == ["SUCCEEDED", *failing, "SUCCEEDED"]
    run.wait_left()
    run.audit(budget=1)
    if write == WRITES:
        assert len((run.run_dir / LEDGER_FILE).read_text().splitlines()) == WRITES, "there is no other write"
        third = run.with_env(DIES_BEFORE="1").shell.run(*run.arguments)
        assert third.code == 0, "a third run has nothing left to write"


@pytest.mark.parametrize("when", ["AFTER", "BEFORE"])
def test_a_sweep_that_is_killed_at_any_ledger_write_resumes_without_loss_or_double(
    slurm: SlurmUnderTest, tmp_path: Path, when: str
) -> None:
    """It dies before the second write: sbatch has answered, and the job's id is recorded nowhere."""
    with ThreadPoolExecutor(3) as pool:
        cases = [
            pool.submit(_killed_and_resumed, slurm, tmp_path / str(write), when, write)
            for write in range(1, WRITES + 1)
        ]
    for case in cases:
        case.result()


def test_a_job_that_slurm_has_forgotten_is_found_by_its_own_records(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """No accounting, and the queue has forgotten the job (MinJobAge): only its files are left."""
    run = fault_run(
        slurm, tmp_path, "forgotten", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "tables=false",
        shell=DyingShell, lost_after_s=4, site={"sacct": False},
    )  # fmt: skip
    assert run.with_env(DIES_BEFORE="2").shell.run(*run.arguments).code == 137
    run.wait_left()
    heir = run.in_the_way("squeue", "exit 0")
    done = heir.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 2
    run.audit(by_sacct=False)


def test_an_sbatch_that_outlives_its_killed_orchestrator_measures_nothing_twice(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """The successor has given the submission back meanwhile: the late array finds that, and does not begin."""
    run = fault_run(
        slurm, tmp_path, "outlives", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "tables=false", lost_after_s=3
    ).in_the_way(
        "sbatch",
        'if [ -e "$HERE/slow" ]; then exec "$REAL" "$@"; fi\n'
        'touch "$HERE/slow"; until [ -e "$HERE/go" ]; do sleep 0.1; done; "$REAL" "$@"; touch "$HERE/arrived"',
    )
    run.run_dir.mkdir(parents=True)
    run.run_dir.chmod(0o755)
    first = run.shell.start(*run.arguments)
    folder = tmp_path / "bin"
    wait_for((folder / "slow").exists, 60, "sbatch is under way")
    first.kill()
    first.wait()
    heir = run.shell.start(*run.arguments)
    wait_for(lambda: bool(run.events("released")), 120, "the heir gives it back")
    (folder / "go").touch()
    text, _ = heir.communicate(timeout=240)
    assert heir.returncode == 0, text
    wait_for((folder / "arrived").exists, 60, "the late sbatch is through")
    run.wait_left()
    assert [event["reason"] for event in run.events("released")] == ["it never reached the scheduler"]
    late = [path.read_text() for path in run.run_dir.glob("submissions/logs/*.log")]
    assert sum("it was given back at" in text for text in late) == 2, late
    assert set(run.measured().values()) == {1}
    assert run.outcomes() == ["SUCCEEDED"] * 2
    run.audit(turned_away=[str(event["submission"]) for event in run.events("released")])
    assert "anybody may look into" in text
    assert [path for path in run.run_dir.rglob("*") if path.stat().st_mode & 0o077] == [], "private all the same"


def test_a_submission_that_sbatch_hands_over_twice_runs_once(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """The ledger names the second job, which finds the claim of the first."""
    run = fault_run(
        slurm, tmp_path, "twice", "nodes=1", "seq_len=32", "tables=false", gated=True, result_grace_s=1.0
    )  # fmt: skip
    claimed = f'ls "{run.run_dir}"/submissions/*.claim > /dev/null 2>&1'
    run = run.in_the_way("sbatch", f'"$REAL" "$@" > /dev/null; until {claimed}; do sleep 0.1; done; exec "$REAL" "$@"')
    started = run.shell.start(*run.arguments)
    wait_for(lambda: len(run.jobs()) == 2, 120, "the ledger has the one that it named, and the one that began")
    run.gate.touch()
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 0, text
    assert run.outcomes() == ["SUCCEEDED"]
    run.wait_left()
    run.audit(by_sacct=False)


def test_a_submission_file_that_is_damaged_before_its_job_id_is_known_loses_and_doubles_nothing(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """The job of 32 has read the file before; the job of 64 waits meanwhile, and cannot read it."""
    run = fault_run(
        slurm, tmp_path, "damaged", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "order=grid", shell=DyingShell,
        lost_after_s=4, site={"sbatch": {"nodelist": "node1"}, "exclusive": True}, gated=True,
    )  # fmt: skip
    assert run.with_env(DIES_BEFORE="2").shell.run(*run.arguments).code == 137
    run.job_of(32)
    (file,) = run.run_dir.glob("submissions/*.json")
    file.write_text(file.read_text()[:100])
    run.gate.touch()
    done = run.shell.run(*run.arguments)
    assert done.code == 1, done.err
    assert "its file is damaged" in done.err
    assert run.by_length()["32"]["status"] == "measured"
    assert run.by_length()["64"]["status"] == "trainer_error"
    assert "its submission's file is damaged" in run.by_length()["64"]["reason"]
    again = run.shell.run(*run.arguments, "retry=[TRAINER_ERROR]")
    assert again.code == 0, again.err
    run.audit()


def test_the_second_of_two_orchestrators_stops_and_a_successor_of_a_killed_one_takes_over(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(
        slurm, tmp_path, "two", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "tables=false", gated=True
    )
    first = run.shell.start(*run.arguments)
    run.wait_running(2)
    second = run.shell.run(*run.arguments)
    assert second.code == 2
    assert f"held by process {first.pid} on" in second.err
    first.kill()
    first.wait()
    run.gate.touch()
    # Two start at the same moment and find the lease of the dead one: one of them gets it.
    heirs = [run.shell.start(*run.arguments) for _ in range(2)]
    texts = [heir.communicate(timeout=240)[0] for heir in heirs]
    codes = sorted(heir.returncode for heir in heirs)
    # The later one finds the run held, or, if the other has finished, nothing left to do.
    assert codes in ([0, 2], [0, 0]), texts
    refused = [text for heir, text in zip(heirs, texts, strict=True) if heir.returncode == 2]
    assert all("which is running a sweep in it" in text for text in refused), "it never held the run"
    assert len(run.jobs()) == 2
    run.audit()
