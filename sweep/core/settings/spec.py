"""The specification of one command: the frozen form of a composed configuration."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.core.encoding.frozen import dataclass
from sweep.core.settings.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.attempt import Outcome
    from sweep.core.cells.device import Device
    from sweep.core.cells.model_shape import FlopConvention
    from sweep.core.grids.grid import Grid
    from sweep.core.grids.series import SeriesSpec


class SchedulerKind(StrEnum):
    """The scheduler that runs the jobs."""

    SLURM = "slurm"
    LOCAL = "local"


class GpuFlag(StrEnum):
    """How a site wants GPUs to be asked for."""

    GPUS_PER_NODE = "gpus_per_node"
    GRES = "gres"
    NONE = "none"


class Runner(StrEnum):
    """The launcher starts this on each node: a torchrun agent, or the entry itself once a node (no torch needed)."""

    TORCHRUN = "torchrun"
    DIRECT = "direct"


class RunOrder(StrEnum):
    """The order in which cells are submitted."""

    SHUFFLED = "shuffled"
    GRID = "grid"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """How a job is started on its nodes.

    Attributes:
        runner: torchrun, or the entry itself.
        entry: Arguments to Python that name what runs, for example ``("-m", "trainer")``.
        python: Interpreter on the compute nodes; empty: the one that runs this command.
        environment: Variables set for the job; values are data, never shell text.
        rendezvous_host: Address of node 0 as its peers reach it; empty: the first name of the job's node list.
        port_range: Ports that rendezvous may use, first and last (below the ephemeral range).
        join_timeout_s: How long torchrun waits for all nodes.
        stop_grace_s: Seconds between asking the trainer to stop and killing it.
    """

    runner: Runner = Runner.TORCHRUN
    entry: tuple[str, ...] = ("-m", "trainer")
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    rendezvous_host: str = ""
    port_range: tuple[int, int] = (20000, 29999)
    join_timeout_s: int = 600
    stop_grace_s: float = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSpec:
    """A site's own settings; a parameter that is None or empty is not passed to Slurm.

    Attributes:
        partition: ``--partition``.
        account: ``--account``.
        qos: ``--qos``.
        reservation: ``--reservation``.
        constraint: ``--constraint``.
        exclude: Nodes never to be used.
        exclusive: ``--exclusive``.
        mem: ``--mem``, for example ``0`` for all of a node's memory.
        gpu_flag: How GPUs are asked for.
        gpu_type: Type of GPU that is asked for, as the site's gres names it, for example ``h100``; None: any.
        cpus_per_task: Cores of the one task on each node.
        max_concurrent_jobs: Jobs of one run that may be in the queue at once; None: no limit.
        signal_delay_s: Seconds before the walltime at which the job is told to stop.
        sbatch: Any further sbatch parameters, by long name without dashes.
        srun_args: Further arguments of srun, as written.
        setup: Lines of the site's own shell text run before srun (module load, conda activate), as written. A job ends
            at the first that fails. A local cluster runs them, too.
        container: Words put before the Python command on every node (a container's exec), as written.
        sacct: True if accounting is asked; false on a cluster that has none.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    exclusive: bool = False
    mem: str | None = None
    gpu_flag: GpuFlag = GpuFlag.GPUS_PER_NODE
    gpu_type: str | None = None
    cpus_per_task: int | None = None
    max_concurrent_jobs: int | None = None
    signal_delay_s: int = 60
    sbatch: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    srun_args: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    sacct: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """One cluster (``conf/cluster``).

    Attributes:
        name: Its name; run directories are pinned to it.
        scheduler: The scheduler that runs the jobs.
        scale: Which of a grid's scales it is meant for.
        gpus_per_node: Default of the axis of that name.
        device: Default of the ``device`` axis.
        walltime_min: Minutes that a job may take.
        poll_interval_s: Seconds between two looks at the scheduler.
        result_grace_s: Seconds for which a result may be missing after its job has ended (file systems lag).
        lost_after_s: Seconds of unbroken absence after which a job counts as lost.
        hang_grace_s: Seconds that a job may go on after its result is there, before it is cancelled.
        max_concurrent_cells: Cells that a local cluster runs at once; None: as many as cores and memory allow.
        launch: How jobs are started.
        slurm: Site settings.
    """

    name: str
    scheduler: SchedulerKind
    scale: str
    gpus_per_node: int
    device: str
    walltime_min: int = 60
    poll_interval_s: float = 15.0
    result_grace_s: float = 120.0
    lost_after_s: float = 300.0
    hang_grace_s: float = 60.0
    max_concurrent_cells: int | None = None
    launch: LaunchSpec = field(default_factory=LaunchSpec)
    slurm: SlurmSpec = field(default_factory=SlurmSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """Everything one command asks for.

    Attributes:
        grid: The grid at its scale, overrides applied.
        cluster: The cluster.
        scale: ``laptop`` or ``paper``.
        series: How the table is read.
        repeats: Independent runs of each cell.
        flop_convention: How FLOPs are counted.
        devices: Profiles that the grid's device axis can name.
        run_dir: The run directory, as given or ``runs/<grid>-<cluster>``.
        watch: True if the command stays until every cell is measured or explained.
        tables: True if the tables are made at the end.
        retry: Outcomes whose repeats are to be tried again, although they were given up.
        mix_fingerprints: True if one series may span two software fingerprints.
        overrides: The overrides as typed, for the record.
        policy: What is retried, held back and allowed to cost.
        preflight: True if every cell is examined on one fake rank before anything is submitted.
        order: In rounds and shuffled, or as the grid's file has the cells.
        notify: Words of a command that is told when a watched run ends; empty: nobody.
    """

    grid: Grid
    cluster: ClusterSpec
    scale: str
    series: SeriesSpec
    repeats: int
    flop_convention: FlopConvention
    devices: Mapping[str, Device]
    run_dir: str
    watch: bool = True
    tables: bool = True
    retry: tuple[Outcome, ...] = ()
    mix_fingerprints: bool = False
    overrides: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)
    notify: tuple[str, ...] = ()
    preflight: bool = False
    order: RunOrder = RunOrder.SHUFFLED
