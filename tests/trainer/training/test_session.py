"""A rank that hangs outside its steps is ended too, where no collective raises its time-out (as with NCCL)."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.records.attempt_record import parse_error
from sweep.core.records.layout import RESULT_FILE, rank_error
from tests.trainer.cells import cell, cell_file

pytestmark = pytest.mark.slow

# What hangs, and what the rank says that it was doing.
PHASES = {
    "process_group": "forming the process group",
    "build_mesh": "forming the mesh's groups",
    "parallelize": "building the model",
    "_data": "reading the token file",
    "fit": "training",
    "gather": "gathering the ranks' measurements",
    "write_records": "writing the records",
    "closing": "closing the process group",
}
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["trainer.training.session"])


def _hang(*_arguments: object, **_named: object) -> NoReturn:
    while True:
        time.sleep(60)


def _run(what: str, folder: Path) -> None:
    """One rank, on a CPU that pretends not to raise time-outs, in which one thing hangs."""
    from trainer.device import devices
    from trainer.failure.error_report import ErrorReporter, RankProgress
    from trainer.process.ranks import Ranks
    from trainer.training import session

    @contextlib.contextmanager
    def group(*_arguments: object) -> Iterator[None]:
        yield
        if what == "closing":
            _hang()

    module: Any = session
    module.process_group = group
    module._share_cores = lambda *_: 1
    module.gather = lambda facts, ranks: [facts]
    if what != "closing":
        owner = module.records if what == "write_records" else module
        assert hasattr(owner, what), f"{what} is no function that a run calls: nothing would hang"
        setattr(owner, what, _hang)
    devices.CpuCompute.raises_timeouts = False
    n_ranks = 2 if what == "build_mesh" else 1
    # A lone rank has no limit of its own; most of these are alone, and stand for one of several.
    peers = Ranks(world_size=2, local_world_size=2)
    limit_s = session.hang_limit_s
    module.hang_limit_s = lambda cell, ranks: limit_s(cell, peers)
    ranks = Ranks(world_size=n_ranks, local_world_size=n_ranks)
    file = cell_file(cell(gpus=n_ranks, trainer={"comm_timeout_s": 20.0}))
    session.run(file, folder, ranks, ErrorReporter(folder, ranks, RankProgress()), started_at=0.0)


def test_a_hang_in_any_phase_is_ended_and_named(tmp_path: Path) -> None:
    folders = {what: tmp_path / what for what in PHASES}
    running = {}
    for what, folder in folders.items():
        folder.mkdir()
        running[what] = PROCESSES.Process(target=_run, args=(what, folder))
        running[what].start()
    for what, process in running.items():
        process.join(240)
        assert process.exitcode == (0 if what == "closing" else 1), what
    for what in set(PHASES) - {"closing"}:
        error = parse_error((folders[what] / rank_error(0)).read_text())
        assert error.error_class is ErrorClass.COMMUNICATION
        assert error.message.startswith(f"{PHASES[what]}: nothing has ended for "), what
    assert {path.name for path in folders["closing"].iterdir()} >= {RESULT_FILE}
    assert not (folders["closing"] / rank_error(0)).exists()


def test_a_lone_rank_may_take_as_long_as_it_takes() -> None:
    from trainer.process.ranks import Ranks
    from trainer.training import session

    made = cell(trainer={"comm_timeout_s": 100.0})
    assert session.hang_limit_s(made, Ranks()) == math.inf
    assert session.hang_limit_s(made, Ranks(world_size=2)) == pytest.approx(95.0)
