"""The fate of a failed sbatch, by messages recorded from Slurm 22.05 and messages that sites have reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.adapters.slurm.commands import Answer
from sweep.adapters.slurm.refusal import Meaning, error_of, meaning_of
from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError

RECORDED = {
    entry["case"]: Answer(returncode=entry["returncode"], stdout=entry["stdout"], stderr=entry["stderr"])
    for entry in json.loads((Path(__file__).parents[3] / "golden" / "slurm" / "sbatch-failed.json").read_text())
}
NOT_NOW = {
    "submit limit of the QoS",
    "submit limit of the association",
    "submit limit of the account",
    "partition draining",
    "partition inactive",
}
UNREACHED = {"no configuration", "controller down"}
UNCERTAIN = {"controller hangs"}


def answer(stderr: str, returncode: int = 1) -> Answer:
    return Answer(returncode=returncode, stdout="", stderr=stderr)


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_failures_are_distinguished(case: str) -> None:
    expected = (
        Meaning.NOT_NOW
        if case in NOT_NOW
        else Meaning.UNREACHED
        if case in UNREACHED
        else Meaning.UNCERTAIN
        if case in UNCERTAIN
        else Meaning.REFUSED
    )
    assert meaning_of(RECORDED[case]) is expected


def test_every_kind_of_failure_was_recorded() -> None:
    assert RECORDED.keys() >= NOT_NOW | UNREACHED | UNCERTAIN
    assert {meaning_of(recorded) for recorded in RECORDED.values()} == set(Meaning) - {Meaning.UNKNOWN}


@pytest.mark.parametrize("case", ["walltime too long", "too many nodes"])
def test_the_line_about_policy_alone_does_not_make_a_refusal_pass(case: str) -> None:
    assert "Job violates accounting/QOS policy" in RECORDED[case].stderr
    error = error_of(RECORDED[case])
    assert isinstance(error, SubmissionRejectedError)
    assert not error.is_transient


def test_a_refusal_has_slurms_whole_message_without_the_commands_name() -> None:
    error = error_of(RECORDED["unknown partition"])
    assert isinstance(error, SubmissionRejectedError)
    assert str(error) == (
        "invalid partition specified: nope; Batch job submission failed: Invalid partition name specified"
    )


def test_a_limit_on_submitted_jobs_may_pass() -> None:
    error = error_of(RECORDED["submit limit of the QoS"])
    assert isinstance(error, SubmissionRejectedError)
    assert error.is_transient
    assert str(error).startswith("QOSMaxSubmitJobPerUserLimit; Batch job submission failed: ")


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        (
            "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
            SubmissionUncertainError,
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)",
            SubmissionUncertainError,
        ),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", SubmissionUncertainError),
        ("sbatch: error: slurm_receive_msg: Connection reset by peer", SubmissionUncertainError),
        ("sbatch: error: Munge encode failed: Failed to access socket: No such file or directory", SchedulerError),
        ("sbatch: error: Batch job submission failed: Protocol authentication error", SchedulerError),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", SubmissionRejectedError),
        ("sbatch: error: ask for at most 2 nodes on this partition (site policy)", SubmissionRejectedError),
    ],
)
def test_failures_that_sites_have_reported(stderr: str, error: type[Exception]) -> None:
    assert type(error_of(answer(stderr))) is error


def test_after_an_sbatch_that_a_signal_ended_a_job_may_exist() -> None:
    assert meaning_of(answer("", returncode=-9)) is Meaning.UNCERTAIN
    assert "ended with exit code -9 and printed nothing" in str(error_of(answer("", returncode=-9)))


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        ("", "Traceback: the site's wrapper broke", "Traceback: the site's wrapper broke"),
        ("Your project has used up its hours.\n", "", "Your project has used up its hours."),
        ("banner\n", "jobs of this size run at night only\n", "jobs of this size run at night only"),
        ("", "sbatch: error: ask for at most 2 nodes (site policy)", "ask for at most 2 nodes (site policy)"),
        ("", "", "sbatch ended with exit code 1 and printed nothing"),
    ],
)
def test_a_sites_own_words_are_kept_from_both_streams_and_known_to_be_unknown(
    stdout: str, stderr: str, words: str
) -> None:
    error = error_of(Answer(returncode=1, stdout=stdout, stderr=stderr))
    assert isinstance(error, SubmissionRejectedError)
    assert (str(error), error.is_known) == (words, False)


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: I/O error writing script/environment to file",
        "The submit filter is busy, please try again later.",
    ],
)
@pytest.mark.parametrize("is_on_stdout", [True, False])
def test_words_that_are_known_to_pass_are_tried_again(words: str, is_on_stdout: bool) -> None:
    stdout, stderr = (words, "") if is_on_stdout else ("", words)
    error = error_of(Answer(returncode=1, stdout=stdout, stderr=stderr))
    assert isinstance(error, SubmissionRejectedError)
    assert error.is_transient


def test_an_sbatch_that_could_not_start_submitted_nothing() -> None:
    assert meaning_of(answer("sbatch: cannot execute: libslurm.so.38: not found", returncode=127)) is Meaning.UNREACHED


def test_an_accounts_limit_on_submitted_jobs_may_pass() -> None:
    message = answer(
        "sbatch: error: MaxSubmitJobsPerAccount\nsbatch: error: Batch job submission failed: Job violates policy"
    )
    assert meaning_of(message) is Meaning.NOT_NOW
