"""The flight recorder: switched on into the attempt's folder, and kept when communication failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass
from trainer.failure import error_report as flight
from trainer.failure.error_report import ErrorReporter, RankProgress
from trainer.process.ranks import Ranks


def test_dumps_land_in_the_attempts_folder(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    flight.enable(tmp_path, environ)
    assert environ == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/flight-rank-",
    }


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_what_the_user_set_stays(name: str, tmp_path: Path) -> None:
    environ = {name: "0", "TORCH_FR_DUMP_TEMP_FILE": "/elsewhere/"}
    flight.enable(tmp_path, environ)
    assert (environ[name], environ["TORCH_FR_DUMP_TEMP_FILE"]) == ("0", "/elsewhere/")
    assert {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & environ.keys() == {name}


def test_without_a_process_group_there_is_nothing_to_keep(tmp_path: Path) -> None:
    assert flight.dump(tmp_path, 0) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error_class", ErrorClass)
def test_only_an_error_of_communication_keeps_the_record(error_class: ErrorClass, tmp_path: Path) -> None:
    kept: list[str] = []
    reporter = ErrorReporter(tmp_path, Ranks(), RankProgress(), keep_flight=lambda: kept.append("kept"))
    reporter.report(error_class, "as it happens")
    assert bool(kept) == (error_class is ErrorClass.COMMUNICATION)
