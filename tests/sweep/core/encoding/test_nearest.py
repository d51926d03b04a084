from __future__ import annotations

import pytest

from sweep.core.encoding.message import did_you_mean, nearest

KEYS = ("nodes", "gpus_per_node", "seq_len", "tp", "cluster.slurm.partition")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("nodez", ["nodes"]),
        ("Nodes", ["nodes"]),
        ("cluster.slurm.partiton", ["cluster.slurm.partition"]),
        ("gpus", ["gpus_per_node"]),  # too far away, but the beginning of one
        ("colour", []),
        ("", []),
    ],
)
def test_a_mistyped_name_stands_for_the_nearest(word: str, found: list[str]) -> None:
    assert nearest(word, KEYS) == found


def test_names_that_are_about_as_near_are_all_named_and_at_most_three() -> None:
    assert nearest("trainer.beta", [f"trainer.beta{i}" for i in range(5)]) == [f"trainer.beta{i}" for i in range(3)]


def test_the_question_is_ready_for_a_message() -> None:
    assert did_you_mean("nodez", KEYS) == "Did you mean nodes? "
    assert did_you_mean("colour", KEYS) == ""
