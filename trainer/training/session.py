"""One rank's whole run: device, process group, model, steps, records, in this order."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from sweep.core.cells.trainer_settings import SYNTHETIC
from sweep.core.jobs.environment import relevant
from trainer.data import tokens_file
from trainer.data.batches import Share, source_of, stream
from trainer.device import devices, versions
from trainer.device.placement import bind
from trainer.device.telemetry import NvmlProbe, WindowTelemetry, open_probe
from trainer.failure.error_report import RankProgress
from trainer.failure.hang_watcher import HangWatcher
from trainer.model import compilation, precision
from trainer.parallel.mesh import build_mesh, data_rank, sizes
from trainer.parallel.parallelize import parallelize
from trainer.training import console, records
from trainer.training.loop import Trainee, train
from trainer.training.optimizer import ShardedAdamW
from trainer.training.progress import ProgressWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep.core.cells.cell import Cell
    from sweep.core.records.cell_file import CellFile
    from trainer.device.placement import Binding
    from trainer.failure.error_report import ErrorReporter
    from trainer.parallel.parallelize import Parallelized
    from trainer.process.ranks import Ranks
    from trainer.training.loop import Measurements

names_on_node = devices.names_on_node
uuids_on_node = devices.uuids_on_node
check_precision = precision.check
capabilities_on_node = devices.capabilities_on_node


def run(file: CellFile, folder: Path, ranks: Ranks, reporter: ErrorReporter, *, started_at: float) -> None:
    """Train the cell and write its records.

    Args:
        file: What to run; it has been checked.
        folder: Where the records go.
        ranks: This process's place.
        reporter: Writes an error file; its progress are kept up to date.
        started_at: Unix time at which the process began.
    """
    cell, progress = file.cell, reporter.progress
    compute = devices.open_compute(file.device.type, ranks.local_rank)
    # Early: memory lies beside the cores that first touch it.
    binding = bind(cell.trainer.bind, compute.pci_bus_id())
    if compute.device.type == "cuda":
        progress.memory_bytes = lambda: torch.cuda.memory_allocated(compute.device)
    watch = DeviceMonitor(compute, progress)
    # Around the process group too: NCCL forms its groups, and closes them, with as little to say as in a step.
    with _hang_watcher(cell, ranks, compute, reporter, watch):
        progress.begins("forming the process group")
        with process_group(compute, ranks, cell.trainer.comm_timeout_s):
            n_threads = _share_cores(cell, compute, ranks)
            model = build(cell, compute, ranks, progress)
            if ranks.rank == 0:
                _announce(cell, compute, model, ranks)
            progress.begins("reading the token file")
            data = _data(cell, ranks)
            progress.begins("training")
            observed = fit(cell, ranks, compute, model, watch, folder if ranks.rank == 0 else None)
            if error := compute.communication_error():
                # What waited for an aborted communicator went on without its data.
                raise dist.DistBackendError(error)
            progress.begins("gathering what the ranks saw")
            facts = gather(_facts(ranks, compute, observed, watch.telemetry, binding), ranks)
            progress.begins("writing the records")
            if facts is not None:
                found = versions.versions(watch.driver_version())
                described = records.RunFacts(
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
                        "emulate_precision_casts": cell.compile and compilation.casts_are_kept(),
                        "pipeline_split": [str(part) for part in model.split],
                    },
                )
                _write(folder, described, facts)
            progress.is_done = True
            progress.begins("closing the process group")


def _write(folder: Path, described: records.RunFacts, facts: list[records.RankFacts]) -> None:
    steps = records.merge_steps(described.file, facts)
    result = records.build_result(described, facts, steps)
    records.write_records(folder, steps, result)
    console.say(console.ending(result, steps))


def _data(cell: Cell, ranks: Ranks) -> dict[str, str | int] | None:
    """What the token file is, read once and before the first step, while it is what the steps will see."""
    if cell.trainer.data == SYNTHETIC or ranks.rank != 0:
        return None
    return tokens_file.identify(Path(cell.trainer.data))


def _announce(cell: Cell, compute: devices.Compute, model: Parallelized, ranks: Ranks) -> None:
    host, name = socket.gethostname(), compute.name()
    described = console.beginning(
        cell, n_params=model.n_params, world_size=ranks.world_size, device_name=name, host=host
    )  # fmt: skip
    console.say(described)
    if model.split:
        console.say("; ".join(map(str, model.split)))


@contextlib.contextmanager
def process_group(compute: devices.Compute, ranks: Ranks, timeout_s: float) -> Iterator[None]:
    """The process group of all ranks; a lone process needs none. After an error it is not torn down, only left."""
    if ranks.world_size == 1:
        yield
        return
    dist.init_process_group(
        compute.backend,
        timeout=timedelta(seconds=timeout_s),
        device_id=compute.device if compute.device.type == "cuda" else None,
    )
    yield
    dist.destroy_process_group()


def build(cell: Cell, compute: devices.Compute, ranks: Ranks, progress: RankProgress | None = None) -> Parallelized:
    """The model of the cell over the mesh of all ranks; says where it is meanwhile."""
    sizes(cell.parallelism, ranks.world_size)
    progress = progress or RankProgress()
    progress.begins("forming the mesh's groups")
    mesh = build_mesh(cell.parallelism, ranks.world_size, compute.device.type) if ranks.world_size > 1 else None
    progress.begins("building the model")
    return parallelize(cell, mesh, compute.device)


class DeviceMonitor:
    """The clock of the steps, telemetry at the window's edges, and the running step for an error file."""

    def __init__(self, compute: devices.Compute, progress: RankProgress) -> None:
        self._compute = compute
        self._whereabouts = progress
        self.clock = compute.clock()
        self.telemetry = WindowTelemetry()
        self._probe: NvmlProbe | None = None
        if isinstance(compute, devices.CudaCompute):
            self._probe = open_probe(compute.uuid())

    def synchronize(self) -> None:
        """Wait for the device."""
        self._compute.synchronize()

    def step_begins(self, step: int) -> None:
        """Note the step."""
        self._whereabouts.step = step

    def window_opens(self) -> None:
        """Read the counters."""
        if self._probe is not None:
            self._probe.window_opens()

    def window_closes(self) -> None:
        """Read what a busy device shows."""
        if self._probe is not None:
            self._probe.window_closes()

    def window_closed(self, window_time_s: float) -> None:
        """Read the counters again."""
        if self._probe is not None:
            self.telemetry = self._probe.window_closed(window_time_s)

    def driver_version(self) -> str | None:
        """Version of the GPU's driver."""
        return None if self._probe is None else self._probe.driver_version()


def _hang_watcher(
    cell: Cell, ranks: Ranks, compute: devices.Compute, reporter: ErrorReporter, watch: DeviceMonitor
) -> contextlib.AbstractContextManager[object]:
    """Gloo raises an exception at its time-out; NCCL needs a watcher."""
    if compute.raises_timeouts:
        return contextlib.nullcontext()
    limit_s = hang_limit_s(cell, ranks)
    return HangWatcher(reporter, watch.clock.n_ended, limit_s=limit_s, error=compute.communication_error)


def hang_limit_s(cell: Cell, ranks: Ranks) -> float:
    """Seconds without progress that mean a hang; none do for a lone rank, which waits for no peer."""
    return math.inf if ranks.world_size == 1 else HangWatcher.SHARE_OF_TIMEOUT * cell.trainer.comm_timeout_s


def _share_cores(cell: Cell, compute: devices.Compute, ranks: Ranks) -> int:
    """Set this rank's CPU threads; ranks of several agents may share one host, so hosts are counted."""
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
    watch: DeviceMonitor,
    progress_folder: Path | None,
) -> Measurements:
    """Run the cell's steps on its model; the rank that is given a folder notes its progress there."""
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
    with contextlib.ExitStack() as stack:
        if progress_folder is not None:
            progress = ProgressWriter(
                progress_folder,
                steps=settings.steps,
                tokens_per_step=cell.tokens_per_step,
                n_done=watch.clock.n_ended,
            )
            stack.enter_context(progress)
        return train(cell, trainee, batches, watch.clock, watch)


def _facts(
    ranks: Ranks, compute: devices.Compute, observed: Measurements, telemetry: WindowTelemetry, binding: Binding
) -> records.RankFacts:
    allocated, reserved = compute.peak_bytes()
    return records.RankFacts(
        host=socket.gethostname(),
        node_rank=ranks.node_rank,
        places=compute.places(),
        device_name=compute.name(),
        observed=observed,
        telemetry=telemetry,
        peak_memory_bytes=allocated,
        peak_reserved_bytes=reserved,
        binding=binding,
    )


def gather(facts: records.RankFacts, ranks: Ranks) -> list[records.RankFacts] | None:
    """All ranks' facts, by rank, on rank 0; None on the others. The one collective after the last step."""
    if ranks.world_size == 1:
        return [facts]
    every: list[records.RankFacts] | None = [facts] * ranks.world_size if ranks.rank == 0 else None
    dist.gather_object(facts, every, dst=0)
    return every
