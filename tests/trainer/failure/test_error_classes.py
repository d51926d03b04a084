"""The class of each error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.attempts.error_text import CLASSIFICATION, classify_text
from trainer.failure.error_report import classify

_GOLDEN = Path(__file__).parents[1] / "golden" / "error_messages.json"
MESSAGES = [
    (ErrorClass(name), text)
    for name, texts in json.loads(_GOLDEN.read_text(encoding="utf-8"))["messages"].items()
    for text in texts
]


@pytest.mark.parametrize(("expected", "text"), MESSAGES, ids=[text[:60] for _, text in MESSAGES])
def test_a_message_is_of_its_kind(expected: ErrorClass, text: str) -> None:
    assert classify_text(text) is expected


def test_every_line_of_the_table_decides_some_message() -> None:
    deciding = {next((i for i, line in enumerate(CLASSIFICATION) if line[1].search(text)), -1) for _, text in MESSAGES}
    assert deciding >= set(range(len(CLASSIFICATION)))


def test_torchs_own_exceptions_are_known_by_their_class() -> None:
    assert classify(torch.OutOfMemoryError("x")) is ErrorClass.OOM_DEVICE
    assert classify(MemoryError()) is ErrorClass.OOM_HOST
    for kind in (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError):
        assert classify(kind("x")) is ErrorClass.COMMUNICATION
    assert classify(KeyError("x")) is ErrorClass.EXCEPTION


def test_an_exception_is_of_the_kind_that_it_was_raised_from() -> None:
    def build() -> NoReturn:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except RuntimeError as error:
            raise ValueError("cannot build block 3") from error

    with pytest.raises(ValueError, match="block 3") as caught:
        build()
    assert classify(caught.value) is ErrorClass.OOM_DEVICE


def test_an_allocation_that_really_fails_is_a_lack_of_host_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert classify(caught.value) is ErrorClass.OOM_HOST
