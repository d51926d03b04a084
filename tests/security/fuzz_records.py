"""Mutates records of run directories, by bytes, structure and size, and runs the verbs on them; nothing may crash.

``python -m tests.security.fuzz_records --mutations N --seed S RUN_DIR...`` prints what crashed, and then exits with 1.
A verb may refuse a run directory with a message of its own; any other exception is a finding. ``--readers`` runs no
verb: it reads the mutated record by every function of the tool that reads its kind, and writes it again, which is a
hundred times faster.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.attempt_files import read_attempt
from analysis.export import to_csv, to_markdown, to_text
from analysis.load import LoadError, load
from analysis.table import build
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.cli import main as command_line
from sweep.cli.verbs.cancel import _cluster
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.history import fold
from sweep.core.attempts.ledger import render_event
from sweep.core.encoding.record import RecordError
from sweep.core.records.preflight_record import Preflight
from sweep.core.records.sweep_file import SweepFile, extended
from sweep.files import RunDirError, read_text
from sweep.ports import ClusterView, SchedulerError
from sweep.usecases.orchestrate import Orchestrator
from sweep.usecases.session import Order, Origin, RunPorts, Session
from tests.fakes import FakeClock, FakeScheduler, ListReporter, MemoryBlameBook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REFUSALS = (RunDirError, LoadError, SchedulerError)
"""Errors by which a verb refuses a run directory."""
VALUES: Sequence[Any] = (
    *(None, True, -1, 0, 3, 10**18, 10**30, 10**400, 0.5, 1e300, float("inf"), float("nan")),
    *("", "x", "../../x", "/etc/passwd", "\ud800", "\0", "\x1b[2J", "9" * 5000, "x" * 100_000, "é", "nan", "9" * 16),
    *([], {}, [[]], {"x": {}}, [None] * 1000, {"cell_id": "a" * 16, "repeat": 1, "attempt": 1}),
)
BYTES = (b"\xff", b"\0", b"[" * 200_000, b"1e400", b'"\\ud800"', b"{", b"}", b"\n", b"-", b"9" * 400, b"\xc3\x28", b",")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A record with a change or a few: of its bytes, of its structure, or of its size."""
    kind = rng.randrange(8)
    if kind == 0:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 1:
        return data * rng.choice([2, 50]) if len(data) < 100_000 else data * 2
    if kind <= 3:
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice([*BYTES, bytes([rng.randrange(256)])]) + data[at + rng.randrange(3) :]
        return data
    lines = data.split(b"\n") if data.startswith(b'{"') else [data]
    index = rng.randrange(len(lines))
    with contextlib.suppress(ValueError):
        lines[index] = json.dumps(_changed(json.loads(lines[index]), rng)).encode("utf-8", errors="surrogatepass")
    return b"\n".join(lines)


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one of its parts replaced, dropped, repeated or buried deep."""
    inner = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    if not inner or rng.random() < 0.15:
        if rng.random() < 0.1:
            for _ in range(rng.choice([5, 60, 900])):
                value = [value]
            return value
        return rng.choice(VALUES)
    at = rng.choice(list(inner))
    copy = dict(value) if isinstance(value, dict) else list(value)
    what = rng.random()
    if what < 0.1:
        del copy[at]
    elif what < 0.15 and isinstance(copy, list):
        copy.append(copy[at])
    elif what < 0.2 and isinstance(copy, dict):
        copy[str(rng.choice(VALUES))] = copy.pop(at)
    else:
        copy[at] = _changed(value[at], rng)
    return copy


def _status(run_dir: Path, _: SweepFile) -> None:
    for words in (["status"], ["status", "--json"]):
        command_line.main([*words, f"run_dir={run_dir}"])
    cells = list(getattr(RunDir(run_dir).sweep_file(), "cells", ()))[:2]
    command_line.main(["status", *cells, f"run_dir={run_dir}"])
    command_line.main(["status", "--json", *cells, f"run_dir={run_dir}"])


def _tables(run_dir: Path, _: SweepFile) -> None:
    table = build(load(run_dir), mix_fingerprints=False)
    for text in (to_csv(table), to_markdown(table), to_text(table)):
        text.encode()


class _Scheduler(FakeScheduler):
    """One that does not know the jobs of a record."""

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        return super().cancel({job: name for job, name in jobs.items() if job in self.keys}, only_pending=only_pending)


def _session(run_dir: Path, content: SweepFile) -> Session:
    scheduler, clock = _Scheduler(), FakeClock()
    order = Order(
        cells=content.cells,
        known=content.cells,
        repeats=content.repeats,
        devices=content.devices,
        cluster=_cluster(content),
        policy=content.policy,
        canary_helps=False,
    )
    names = iter(f"{number:06x}" for number in range(1_000_000))
    origin = Origin(
        run_name="fuzz", sources_dir="/s", sources_hash="0", provenance={}, new_token=lambda: next(names)
    )  # fmt: skip
    ports = RunPorts(
        scheduler=scheduler,
        view=ClusterView(reports=scheduler, accounting=scheduler, facts=scheduler, diagnosis=scheduler),
        ledger=LedgerFile(run_dir / "ledger.jsonl"),
        run_dir=RunDir(run_dir),
        clock=clock,
        reporter=ListReporter(),
        blame=MemoryBlameBook(),
        check_lease=lambda: None,
    )
    return Session(order=order, origin=origin, ports=ports)


def _cancel(run_dir: Path, _: SweepFile) -> None:
    content = RunDir(run_dir).sweep_file()
    if content is not None:
        executor = Orchestrator(_session(run_dir, content)).executor
        executor.cancel(list(content.cells)[:2])
        executor.settle()


def _resume(run_dir: Path, asked: SweepFile) -> None:
    held = RunDir(run_dir)
    old = held.sweep_file()
    with contextlib.suppress(ValueError):  # the pin: another grid's or cluster's
        held.publish_sweep_file(asked if old is None else extended(old, asked))
    Orchestrator(_session(run_dir, asked)).step()
    if (run_dir / "local").exists():
        scheduler = LocalScheduler(run_dir, environ={}, cores=1, is_ours=lambda submission: False)
        scheduler.poll(["x.0"], since=0.0)


def _plan(run_dir: Path, asked: SweepFile) -> None:
    old = RunDir(run_dir).sweep_file()
    with contextlib.suppress(ValueError):
        content = asked if old is None else extended(old, asked)
        Orchestrator(_session(run_dir, content)).snapshot()


VERBS: dict[str, Callable[[Path, SweepFile], None]] = {
    "status": _status,
    "tables": _tables,
    "plan": _plan,
    "cancel": _cancel,
    "resume": _resume,
}


def _read(name: Path, run_dir: Path, content: SweepFile) -> None:
    """Read a record in every way in which the tool does, and write it again where it can be read."""
    held, (top, *below) = RunDir(run_dir), name.parts
    with contextlib.suppress(OSError, RecordError):  # its readers name it
        if top == "sweep.json":
            _written(held.sweep_file())
        elif top == "ledger.jsonl":
            events, problems = LedgerFile(run_dir / name).read()
            fold(events)
            _written([events, problems], [render_event(event) for event in events])
        elif top == "submissions":
            _written(held.job_that_began(name.stem) if name.suffix == ".claim" else held.submission(name.stem))
        elif top == "cells":
            key = AttemptKey(cell_id=below[0], repeat=int(below[1][-2:]), attempt=int(below[2][-2:]))
            _written(held.launches(key), held.result(key), held.errors(key), held.progress(key))
            found = read_attempt(run_dir, key, content.cells[key.cell_id])
            _written([getattr(found, item.name) for item in dataclasses.fields(found)])
        elif top == "local":
            scheduler = LocalScheduler(run_dir, environ={}, cores=1, is_ours=lambda submission: False)
            _written(scheduler.poll([name.stem], since=0.0))
        elif top == "preflight":
            _written(Preflight.parse(read_text(run_dir / name)))


def _written(*values: Any) -> None:
    """Write values as a table or a terminal needs them; what was read must not be what cannot be written."""
    for value in values:
        json.dumps(_plain(value), ensure_ascii=False, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def fuzz_readers(runs: Sequence[Path], *, mutations: int, seed: int) -> list[str]:
    """Mutate so many records and read each; gives what crashed: the record and the end of its traceback."""
    rng, findings = random.Random(seed), dict[str, str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        copies = {run: Path(shutil.copytree(run, Path(folder) / run.name)) for run in runs}
        contents = {run: SweepFile.parse((run / "sweep.json").read_text()) for run in runs}
        kinds: dict[str, list[tuple[Path, Path]]] = {}
        for run in runs:
            for path in sorted(path for path in run.rglob("*") if path.is_file()):
                kinds.setdefault(_kind(path), []).append((run, path.relative_to(run)))
        for number in range(mutations):
            run, name = rng.choice(kinds[rng.choice(list(kinds))])
            (copies[run] / name).write_bytes(mutated((run / name).read_bytes(), rng))
            problem = _crash(partial(_read, name), copies[run], contents[run])
            if problem:
                findings.setdefault(problem, f"mutation {number} of {name}: {problem}")
            shutil.copyfile(run / name, copies[run] / name)
    return list(findings.values())


def _kind(path: Path) -> str:
    """The kind of a record, by its place and name: each is mutated as often as any other."""
    inside = {"local", "submissions", "preflight"} & {path.parent.name}
    return f"{path.parent.name}/{path.suffix}" if inside else re.sub(r"\d+", "N", path.name)


def fuzz(runs: Sequence[Path], *, mutations: int, seed: int, one_verb: bool = False) -> list[str]:
    """Mutate so many records; gives what crashed: verb, record and the end of its traceback."""
    rng, findings = random.Random(seed), dict[str, str]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        copies = {run: Path(shutil.copytree(run, Path(folder) / run.name)) for run in runs}
        contents = {run: SweepFile.parse((run / "sweep.json").read_text()) for run in runs}
        files = {run: sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()) for run in runs}
        for number in range(mutations):
            run = rng.choice(list(runs))
            run_dir = copies[run]
            (run_dir / "submissions" / "logs").mkdir(parents=True, exist_ok=True)
            # Half of the records are results and cells: the few that a whole run rests on are not to be missed.
            roots = [name for name in files[run] if len(name.parts) < 3]
            name = rng.choice(roots if rng.random() < 0.5 else files[run])
            (run_dir / name).write_bytes(mutated((run / name).read_bytes(), rng))
            for verb in [rng.choice(list(VERBS))] if one_verb else VERBS:
                problem = _crash(VERBS[verb], run_dir, contents[run])
                if problem:
                    findings.setdefault(problem, f"mutation {number} of {name}: {verb}: {problem}")
            if one_verb and verb in ("status", "tables", "plan"):
                shutil.copyfile(run / name, run_dir / name)
            else:
                shutil.rmtree(run_dir)
                shutil.copytree(run, run_dir)
    return list(findings.values())


def _crash(verb: Callable[[Path, SweepFile], None], run_dir: Path, asked: SweepFile) -> str:
    """The end of the traceback where a verb crashes; empty where it works or refuses."""
    quiet = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            verb(run_dir, asked)
    except REFUSALS:
        return ""
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        return f"{type(error).__name__}: {str(error)[:200]} ({where})"
    return ""


def main() -> int:
    """Fuzz, and print what was found and how long it took."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz_records", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-verb", action="store_true", help="one verb for each mutation, chosen by chance")
    parser.add_argument("--readers", action="store_true", help="no verb: only what reads a record of its kind")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    asked = parser.parse_args()
    began = time.perf_counter()
    if asked.readers:
        findings = fuzz_readers(asked.runs, mutations=asked.mutations, seed=asked.seed)
    else:
        findings = fuzz(asked.runs, mutations=asked.mutations, seed=asked.seed, one_verb=asked.one_verb)
    print(*findings, sep="\n")
    print(f"{asked.mutations:,} mutations in {time.perf_counter() - began:.0f} s; {len(findings)} kinds of crash")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
