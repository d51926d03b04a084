from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import (
    SLURM_STATES,
    UNKNOWN_STATE,
    AttemptKey,
    Outcome,
    Phase,
    slurm_state,
)

# man squeue, JOB STATE CODES, of Slurm 24.05.
DOCUMENTED = """
BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PENDING
POWER_UP_NODE PREEMPTED RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED RUNNING
SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT
"""
DOCUMENTED_STATES = DOCUMENTED.split()


# --- the scheduler's words


@pytest.mark.parametrize("word", DOCUMENTED_STATES)
def test_every_documented_state_is_known(word: str) -> None:
    assert word in SLURM_STATES


@pytest.mark.parametrize(
    ("printed", "phase", "outcome"),
    [
        ("PENDING", Phase.PENDING, None),
        ("RUNNING", Phase.RUNNING, None),
        ("COMPLETED", Phase.ENDED, None),
        ("FAILED", Phase.ENDED, None),
        ("CANCELLED", Phase.ENDED, Outcome.CANCELLED),
        ("CANCELLED by 1000", Phase.ENDED, Outcome.CANCELLED),
        ("CANCELLED+", Phase.ENDED, Outcome.CANCELLED),
        ("NODE_FAIL+", Phase.ENDED, Outcome.NODE_FAIL),
        ("OUT_OF_ME+", Phase.ENDED, Outcome.OOM_HOST),
        ("PREEMPTED", Phase.ENDED, Outcome.PREEMPTED),
        ("  timeout \n", Phase.ENDED, Outcome.TIMEOUT),
        ("DEADLINE", Phase.ENDED, Outcome.TIMEOUT),
    ],
)
def test_a_state_is_read_as_it_is_printed(printed: str, phase: Phase, outcome: Outcome | None) -> None:
    state = slurm_state(printed)
    assert (state.phase, state.outcome) == (phase, outcome)


@pytest.mark.parametrize("word", ["", "   ", "EXPEDITED", "NOT_A_STATE", "+", "RE+", "COMPLET+", "完了"])
def test_a_word_that_is_not_understood_counts_as_alive(word: str) -> None:
    assert slurm_state(word) is UNKNOWN_STATE
    assert UNKNOWN_STATE.phase is Phase.RUNNING


@given(st.text())
def test_any_word_has_a_phase_and_an_outcome_only_at_the_end(word: str) -> None:
    state = slurm_state(word)
    assert state.outcome is None or state.phase is Phase.ENDED


def test_an_exit_code_word_is_never_specific() -> None:
    # Slurm says FAILED of a device OOM, of a lost peer and of a Python exception alike.
    assert SLURM_STATES["FAILED"].outcome is None
    assert SLURM_STATES["COMPLETED"].outcome is None


# --- keys


def test_an_attempt_is_named_as_people_type_it() -> None:
    assert str(AttemptKey(cell_id="89c35e1f02ab77d4", repeat=1, attempt=2)) == "89c35e1f02ab77d4/1/2"


@pytest.mark.parametrize(
    "parts",
    [("c", 0, 1), ("c", 1, 0), ("c", 1.0, 1), ("c", True, 1), ("c", "1", 1), (7, 1, 1), (None, 1, 1)],
)
def test_repeats_and_attempts_count_from_one(parts: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"not whole numbers from 1|is not a cell id"):
        AttemptKey(**dict(zip(("cell_id", "repeat", "attempt"), parts, strict=True)))  # type: ignore[arg-type]
