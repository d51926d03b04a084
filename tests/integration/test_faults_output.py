"""Odd output of Slurm, printed by scripts before the real commands: outcomes must not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run

pytestmark = pytest.mark.slurm

CELLS = ("nodes=1", "seq_len=[32,64,96]", "policy.canary=false", "tables=false")
NTH = 'echo >> "$HERE/{name}.calls"; n=$(wc -l < "$HERE/{name}.calls")\n'

# The queue forgets a job at its end, as after MinJobAge.
FORGETFUL = r'"$REAL" "$@" | grep -v -E "\|(COMPLETED|FAILED|COMPLETING)\|"; exit 0'
# The first calls print an unknown state for every job.
UNKNOWN_WORD = (
    NTH.format(name="squeue") + r'"$REAL" "$@" | { [ $n -gt 12 ] && cat || sed -E "s/\|([A-Z]+)\|/|TELEPORTING|/"; }'
)
CUT_SHORT = NTH.format(name="squeue") + (
    r'[ $n -gt 12 ] && exec "$REAL" "$@"; "$REAL" "$@" |'
    r""" awk -F'|' '{ split($1, id, "_") } !seen[id[1]]++"""
    r""" { print id[1] "_[0,2,...%3]|" $2 "|PENDING||N/A|N/A|Resources" }'"""
)
ERROR_WITH_0 = NTH.format(name="squeue") + (
    r'[ $n -gt 6 ] && exec "$REAL" "$@"; echo "squeue: error: Invalid user: 0" >&2; exit 0'
)
# The queue also lacks a job at first.
LATE_AND_FORGETFUL = NTH.format(name="squeue") + f"[ $n -le 8 ] && exit 0; {FORGETFUL}"
EMPTY_AT_FIRST = NTH.format(name="sacct") + r'[ $n -gt 5 ] && exec "$REAL" "$@"; exit 0'
STALE_AT_FIRST = (
    NTH.format(name="sacct") + r'"$REAL" "$@" | { [ $n -gt 15 ] && cat || sed -E "s/\|COMPLETED\|/|RUNNING|/"; }'
)


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param({"squeue": UNKNOWN_WORD}, id="unknown-state"),
        pytest.param({"squeue": CUT_SHORT, "sacct": "exit 0"}, id="array-row-cut-short"),
        pytest.param({"squeue": ERROR_WITH_0, "sacct": "exit 0"}, id="error-with-exit-0"),
        pytest.param({"squeue": LATE_AND_FORGETFUL, "sacct": EMPTY_AT_FIRST}, id="sacct-empty-at-first"),
        pytest.param({"squeue": FORGETFUL, "sacct": STALE_AT_FIRST}, id="sacct-lags-behind"),
    ],
)
def test_odd_output_of_slurm_delays_a_sweep_and_changes_no_outcome(
    slurm: SlurmUnderTest, tmp_path: Path, ways: dict[str, str]
) -> None:
    """One cell ends without a result, so that its outcome needs the scheduler's state."""
    # Where the queue has a line for every job, no job may be absent for a moment.
    lost_after_s = 60 if ways["squeue"] in (FORGETFUL, LATE_AND_FORGETFUL) else 0
    run = fault_run(
        slurm, tmp_path, "output", *CELLS, plan={"64": "no_result"}, seconds=1, result_grace_s=1.0,
        lost_after_s=lost_after_s,
    )  # fmt: skip
    for command, body in ways.items():
        run = run.in_the_way(command, body)
    done = run.shell.run(*run.arguments)
    assert done.code == 1, done.err
    assert sorted(run.outcomes()) == ["SUCCEEDED", "SUCCEEDED", "TRAINER_ERROR"]
    assert len(run.jobs()) == 3, "nothing is submitted again"
    (failed,) = [event for event in run.events("ended") if event["outcome"] == "TRAINER_ERROR"]
    assert failed["evidence"]["state"] == "COMPLETED", "it waits for Slurm's state"  # type: ignore[index]  # JSON
    run.audit(by_sacct=False)
