"""Runs one rank: device, process group, model, steps, records, in this order."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from sweep.core.cells.cell import Cell
from sweep.core.cells.trainer_settings import SYNTHETIC
from sweep.core.jobs.environment import relevant
from sweep.core.jobs.node_command import STORE_FILE
from sweep.core.records.attempt_record import CellFile
from trainer.data import tokens_file
from trainer.data.batches import Share, source_of, stream
from trainer.device import devices, versions
from trainer.device.cpu_affinity import Binding, bind
from trainer.device.telemetry import WindowTelemetry
from trainer.failure.error_report import ErrorReporter, RankProgress
from trainer.failure.watchers import HangWatcher
from trainer.model import precision
from trainer.parallel.mesh import build_mesh, data_rank
from trainer.parallel.parallelize import Parallelized, parallelize
from trainer.process.ranks import Ranks
from trainer.torch_private.training import precision_casts_are_kept
from trainer.training import records
from trainer.training.loop import DeviceMonitor, Measurements, Trainee, train
from trainer.training.optimizer import ShardedAdamW
from trainer.training.records import ProgressWriter, first_line, last_line, log


def run(file: CellFile, folder: Path, ranks: Ranks, reporter: ErrorReporter, *, started_at: float) -> None:
    """Train the cell, which has been checked, write its records into the folder, and keep the reporter's progress.

    ``started_at`` is the Unix time at which the process began.
    """
    cell, progress = file.cell, reporter.progress
    compute = devices.open_compute(file.device.type, ranks.local_rank)
    # Early: memory lies beside the cores that first touch it.
    binding = bind(cell.trainer.bind, compute.pci_bus_id())
    if compute.device.type == "cuda":
        progress.memory_bytes = lambda: torch.cuda.memory_allocated(compute.device)
    monitor = DeviceMonitor(compute, progress)
    # Around the process group too: NCCL can hang while it forms or closes its groups.
    with _hang_watcher(cell, ranks, compute, reporter, monitor):
        progress.begins("forming the process group")
        with process_group(compute, ranks, cell.trainer.comm_timeout_s):
            n_threads = _share_cores(cell, compute, ranks)
            model = build(cell, compute, ranks, progress)
            if ranks.rank == 0:
                _announce(cell, compute, model, ranks)
            progress.begins("reading the token file")
            data = _data(cell, ranks)
            progress.begins("training")
            measurements = fit(cell, ranks, compute, model, monitor, folder if ranks.rank == 0 else None)
            if error := compute.communication_error():
                # Steps that waited for an aborted communicator went on without its data.
                raise dist.DistBackendError(error)
            progress.begins("gathering the ranks' measurements")
            facts = gather(_rank_facts(ranks, compute, measurements, monitor.telemetry, binding), ranks)
            progress.begins("writing the records")
            if facts is not None:
                found = versions.versions(monitor.driver_version())
                run_facts = _run_facts(file, ranks, started_at, model, found, facts, n_threads, data)
                steps = records.merge_steps(file, facts)
                result = records.build_result(run_facts, facts, steps)
                records.write_records(folder, steps, result)
                log(last_line(result, steps))
            progress.is_done = True
            progress.begins("closing the process group")


def _run_facts(
    file: CellFile,
    ranks: Ranks,
    started_at: float,
    model: Parallelized,
    found: dict[str, str | None],
    facts: list[records.RankFacts],
    n_threads: int,
    data: dict[str, str | int] | None,
) -> records.RunFacts:
    cell = file.cell
    return records.RunFacts(
        file=file,
        restart=ranks.restart,
        started_at=started_at,
        ended_at=time.time(),
        n_params=model.n_params,
        versions=found,
        fingerprint_fields=versions.fingerprint_fields(
            found,
            device_name=records.device_name(facts),
            sources=versions.source_hash(),
            data=f"sha256:{data['sha256']}" if data else None,
            uses_torchao=precision.uses_torchao(cell),
        ),
        environment=relevant(os.environ),
        extra={
            "threads_per_rank": n_threads,
            "data": data,
            "node_order": records.node_order(facts),
            "telemetry_by_rank": records.readings(facts),
            "binding_by_rank": records.bindings(facts),
            "loss_scale": None if model.loss_scale is None else model.loss_scale.readings(),
            "context_parallel": model.context,
            "emulate_precision_casts": cell.compile and precision_casts_are_kept(),
            "pipeline_split": [str(stage) for stage in model.split],
        },
    )


def _data(cell: Cell, ranks: Ranks) -> dict[str, str | int] | None:
    """Identify the token file, once and before the first step, so that the record names the file that is read."""
    if cell.trainer.data == SYNTHETIC or ranks.rank != 0:
        return None
    return tokens_file.identify(Path(cell.trainer.data))


def _announce(cell: Cell, compute: devices.Compute, model: Parallelized, ranks: Ranks) -> None:
    host, name = socket.gethostname(), compute.name()
    log(first_line(cell, n_params=model.n_params, world_size=ranks.world_size, device_name=name, host=host))
    if model.split:
        log("; ".join(map(str, model.split)))


@contextlib.contextmanager
def process_group(compute: devices.Compute, ranks: Ranks, timeout_s: float) -> Iterator[None]:
    """Form the process group of all ranks (a lone process needs none); after an error it is not torn down."""
    if ranks.world_size == 1:
        yield
        return
    store_file = os.environ.get(STORE_FILE)
    dist.init_process_group(
        compute.backend,
        # Over a file only the job's user can reach the store; a TCP store listens on all interfaces.
        init_method=f"file://{store_file}" if store_file else "env://",
        rank=ranks.rank,
        world_size=ranks.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=compute.device if compute.device.type == "cuda" else None,
    )
    yield
    dist.destroy_process_group()


def build(cell: Cell, compute: devices.Compute, ranks: Ranks, progress: RankProgress | None = None) -> Parallelized:
    """Build the cell's model over the mesh of all ranks, and note the phases in ``progress``."""
    progress = progress or RankProgress()
    progress.begins("forming the mesh's groups")
    mesh = build_mesh(cell.parallelism, ranks.world_size, compute.device.type)
    progress.begins("building the model")
    return parallelize(cell, mesh, compute.device)


def _hang_watcher(
    cell: Cell, ranks: Ranks, compute: devices.Compute, reporter: ErrorReporter, monitor: DeviceMonitor
) -> contextlib.AbstractContextManager[object]:
    """Return a watcher for NCCL; gloo raises an exception at its time-out and needs none."""
    if compute.raises_timeouts:
        return contextlib.nullcontext()
    limit_s = hang_limit_s(cell, ranks)
    return HangWatcher(reporter, monitor.clock.n_ended, limit_s=limit_s, error=compute.communication_error)


def hang_limit_s(cell: Cell, ranks: Ranks) -> float:
    """Seconds without progress that mean a hang; infinite for a lone rank, which waits for no peer."""
    return math.inf if ranks.world_size == 1 else HangWatcher.SHARE_OF_TIMEOUT * cell.trainer.comm_timeout_s


def _share_cores(cell: Cell, compute: devices.Compute, ranks: Ranks) -> int:
    """Set the number of CPU threads of this rank; it counts hosts, since ranks of several agents may share one."""
    host = socket.gethostname()
    hosts = [host]
    if ranks.world_size > 1 and compute.device.type == "cpu":
        every: list[str | None] = [None] * ranks.world_size
        dist.all_gather_object(every, host)
        hosts = [name for name in every if name is not None]
    n_threads = devices.threads_for(cell.trainer.threads_per_rank, compute.device.type, hosts.count(host))
    torch.set_num_threads(n_threads)
    return n_threads


def fit(
    cell: Cell,
    ranks: Ranks,
    compute: devices.Compute,
    model: Parallelized,
    monitor: DeviceMonitor,
    progress_folder: Path | None,
) -> Measurements:
    """Run the cell's steps on its model; a rank that is given a folder writes its progress there."""
    settings = cell.trainer
    trainee = Trainee(
        model=model,
        optimizer=ShardedAdamW(model.parameters(), settings, model.model_group, model.tp, model.loss_scale),
        device=compute.device,
    )
    batches = stream(
        source_of(cell),
        Share.of(
            data_rank=data_rank(cell.parallelism, ranks.rank),
            data_ranks=cell.parallelism.data_ranks,
            global_batch=cell.global_batch,
        ),
        settings.steps,
        pin=compute.device.type == "cuda",
    )
    compute.reset_peak()
    progress: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if progress_folder is not None:
        n_tokens, n_done = cell.tokens_per_step, monitor.clock.n_ended
        progress = ProgressWriter(progress_folder, steps=settings.steps, tokens_per_step=n_tokens, n_done=n_done)
    with progress:
        return train(cell, trainee, batches, monitor.clock, monitor)


def _rank_facts(
    ranks: Ranks, compute: devices.Compute, measurements: Measurements, telemetry: WindowTelemetry, binding: Binding
) -> records.RankFacts:
    allocated, reserved = compute.peak_bytes()
    return records.RankFacts(
        host=socket.gethostname(),
        node_rank=ranks.node_rank,
        places=compute.places(),
        device_name=compute.name(),
        measurements=measurements,
        telemetry=telemetry,
        peak_memory_bytes=allocated,
        peak_reserved_bytes=reserved,
        binding=binding,
    )


def gather(facts: records.RankFacts, ranks: Ranks) -> list[records.RankFacts] | None:
    """Return the facts of all ranks, by rank, on rank 0; None on the others. The one collective after the last step."""
    if ranks.world_size == 1:
        return [facts]
    every: list[records.RankFacts] | None = [facts] * ranks.world_size if ranks.rank == 0 else None
    dist.gather_object(facts, every, dst=0)
    return every
