"""Makes the command that starts on one node of a job, with its port and its environment."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.environment import scrubbed
from sweep.core.jobs.submission import Submission, shared_id
from sweep.core.records.layout import attempt_dir, restart_dir
from sweep.core.settings.spec import Runner

MARKER = "SWEEP_ATTEMPT"
"""Variable that every process of an attempt inherits; by it they are found when their launcher is gone."""
RUN_DIR = "SWEEP_RUN_DIR"
"""Variable with the run directory, in every process of a job on this machine: a record that a stranger wrote may hold
the marker of another run's job."""
NODE_RANK = "SWEEP_NODE_RANK"
"""Variable with the node's place in the job's node list; torchrun's GROUP_RANK may differ where nodes meet by files."""
STORE_FILE = "SWEEP_STORE_FILE"
"""Variable with the file over which ranks of one machine meet; on a cluster it is unset, and they meet over TCP."""
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variables of the compilers' caches, and the folder of each in a job's scratch folder.

By default they lie below the system's temporary folder under a name that others know. What is read from them is
unpickled and run, so another user who made the folder first would run code as the job's user.
"""
EXITS_FILE = "exits.json"
"""In the folder of torchrun's copies: how the ranks ended that failed (:mod:`sweep.launch.exits`)."""

# What an enclosing torchrun leaves, beyond what a job inherits: PET_NNODES is the default of --nnodes, and so on.
_TORCHRUN = re.compile(r"^PET_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node's part in one run of one job.

    Attributes:
        submission: What the job belongs to.
        index: Its array index: which task.
        node_rank: Which of its nodes.
        job_id: The scheduler's id.
        hosts: The job's nodes, by node rank; a machine that plays several nodes is named as often.
        restart: How often this job id has run before.
        meeting_dir: Folder of mode 0700 in which all nodes and ranks meet by files, for a job that stays on one
            machine; empty: they meet over TCP at :attr:`head`.
    """

    submission: Submission
    index: int
    node_rank: int
    job_id: str
    hosts: tuple[str, ...]
    restart: int = 0
    meeting_dir: str = ""

    def __post_init__(self) -> None:
        """Refuse a place that the submission does not have."""
        asked = self.submission.nodes
        if not 0 <= self.index < len(self.submission.tasks):
            raise ValueError(f"array index {self.index} is none of the {len(self.submission.tasks)} tasks.")
        if not all(self.hosts) or len(self.hosts) != asked:
            # Never a default: two jobs that both take "localhost" would join each other's rendezvous.
            raise ValueError(f"the job has the nodes [{','.join(self.hosts)}]; {asked} are needed.")
        if not 0 <= self.node_rank < asked:
            raise ValueError(f"node rank {self.node_rank} is not below {asked}, the nodes of the job.")

    @property
    def shared_job_id(self) -> str:
        """The id that all tasks of the submission share."""
        return shared_id(self.job_id)

    @property
    def key(self) -> AttemptKey:
        """The attempt."""
        return self.submission.tasks[self.index]

    @property
    def attempt(self) -> PurePosixPath:
        """The attempt's folder, relative to the run directory."""
        return attempt_dir(self.key)

    @property
    def folder(self) -> PurePosixPath:
        """Folder of this run of the job id, relative to the run directory."""
        return restart_dir(self.attempt, self.restart)

    @property
    def head(self) -> str:
        """Address of node 0."""
        return self.submission.launch.rendezvous_host or self.hosts[0]

    @property
    def rendezvous_id(self) -> str:
        """A name that no other run of any job has."""
        return f"{self.job_id}-{self.restart}-{self.key.attempt}"

    @property
    def port(self) -> int:
        """Rendezvous port, the same on every node without asking anyone, and another for every run."""
        first, last = self.submission.launch.port_range
        digest = hashlib.sha256(self.rendezvous_id.encode()).digest()
        return first + int.from_bytes(digest[:8], "big") % (last - first + 1)

    def command(self, *, python: str, cell_file: str, out_dir: str, log_dir: str) -> tuple[str, ...]:
        """The command to start.

        Args:
            python: The interpreter.
            cell_file: Path of ``cell.json``.
            out_dir: Folder for the records.
            log_dir: Folder for torchrun's copies of what the ranks print and for how they ended; to be removed
                afterwards.
        """
        launch = self.submission.launch
        entry = (*launch.entry, "--cell", cell_file, "--out", out_dir)
        if launch.runner is Runner.DIRECT:
            return (python, *entry)
        agent = ("-m", "sweep.launch.agent", f"{log_dir}/{EXITS_FILE}")
        return (python, *agent, *self._torchrun_arguments(log_dir), *entry)

    def _torchrun_arguments(self, log_dir: str) -> tuple[str, ...]:
        return (
            *("--nnodes", str(self.submission.nodes)),
            *("--nproc-per-node", str(self.submission.gpus_per_node)),
            *self._rendezvous_arguments(),
            *("--rdzv-id", self.rendezvous_id),
            *("--max-restarts", "0"),
            *("--tee", "3"),
            *("--log-dir", log_dir),
        )

    def _rendezvous_arguments(self) -> tuple[str, ...]:
        """Where torchrun's agents meet, safe from other users (docs/adr/0023).

        torchrun's ``c10d`` backend unpickles a key of its store, and its TCP store listens on all interfaces: whoever
        reaches the port runs code as the job's user. ``static`` unpickles nothing. Over files only the job's user can
        write what ``c10d`` unpickles.
        """
        timeout_s = self.submission.launch.join_timeout_s
        if self.meeting_dir:
            return (
                *("--rdzv-backend", "c10d"),
                *("--rdzv-endpoint", f"{self.meeting_dir}/agents"),
                *("--rdzv-conf", f"store_type=file,join_timeout={timeout_s},read_timeout={timeout_s}"),
            )
        return (
            *("--rdzv-backend", "static"),
            *("--node-rank", str(self.node_rank)),
            *("--rdzv-endpoint", f"{self.head}:{self.port}"),
            *("--rdzv-conf", f"timeout={timeout_s}"),
        )

    def environment(self, environ: Mapping[str, str], *, cores: int, scratch_dir: str) -> dict[str, str]:
        """The environment of what is started, from the launcher's own.

        Args:
            environ: The launcher's environment; this very job's ``SLURM_*`` variables stay.
            cores: Cores that the launcher may use.
            scratch_dir: Folder of the job alone, where compilers keep their caches unless the user names others.
        """
        launch = self.submission.launch
        clean = scrubbed(environ)
        kept = {name: value for name, value in environ.items() if name in clean or name.startswith("SLURM_")}
        made = {name: value for name, value in kept.items() if name != STORE_FILE and not _TORCHRUN.match(name)}
        made |= {
            "PYTHONUNBUFFERED": "1",
            **self._meeting_environment(),
            **launch.environment,
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # or the next job's snapshot would be an altered one
            NODE_RANK: str(self.node_rank),
        }
        paths = (self.submission.sources_dir, *made.get("PYTHONPATH", "").split(os.pathsep))
        made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
        for name, folder in CACHES.items():
            made.setdefault(name, f"{scratch_dir}/{folder}")
        made.setdefault(MARKER, f"{self.rendezvous_id}@{self.submission.name}")
        # Torchrun's own names ranks by their place on the node, from 0 on each.
        made.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")
        # torchrun forces 1 where nothing is said, and says so in every log.
        made.setdefault("OMP_NUM_THREADS", str(max(1, cores // self.ranks_on_host)))
        if launch.runner is Runner.DIRECT:
            made |= {"NODE_RANK": str(self.node_rank), "NNODES": str(self.submission.nodes)}
        return made

    def _meeting_environment(self) -> dict[str, str]:
        """Variables that keep all sockets of a job on one machine away from the network."""
        if not self.meeting_dir:
            return {}
        return {
            STORE_FILE: f"{self.meeting_dir}/ranks",
            # torchrun would serve a TCP store to the ranks, on all interfaces.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }

    @property
    def ranks_on_host(self) -> int:
        """The job's ranks that share this machine's cores."""
        return self.submission.gpus_per_node * self.hosts.count(self.hosts[self.node_rank])
