"""Judges the reports that compute nodes write about themselves (``sweep.launch.probe``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweep.core.encoding.frozen import dataclass
from sweep.usecases.doctor.checks import Finding, not_checked, ok, problem, warning
from sweep.usecases.doctor.probe_job import ProbeResult

LARGEST_SKEW_S = 2.0
"""Where clocks differ by more, the first of several errors and the age of a lease are doubtful."""
LEAST_OPEN_FILES = 1024
_GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The values that each node should report."""

    token: str | None
    """The content of the token file in the run directory; None where the probe runs on this machine."""
    python: str
    """Version of the interpreter here."""
    gpus_per_node: int
    """Ranks on each node."""
    uses_gpus: bool
    needs_torch: bool
    """True if torchrun starts the trainer."""
    slurm_gives_gpus: bool = False
    """True if jobs ask Slurm for GPUs."""
    ahead_of_files_s: float | None = None
    """Seconds by which this machine's clock is ahead of the time stamps of new files; None where unknown."""


def judge(probe: ProbeResult, expected: Expected) -> list[Finding]:
    """Return one finding for each subject of the reports."""
    if not probe.reports:
        return [not_checked("nodes", "no node has reported")]
    reports = [probe.reports[rank] for rank in sorted(probe.reports)]
    return [
        *([] if expected.token is None else [_shared(reports, expected.token)]),
        _file_system(reports),
        _python(reports, expected.python),
        _trainer(reports),
        _torch(reports, expected),
        _gpus(reports, expected),
        *([] if expected.token is None else [_port(reports), _rendezvous(reports), _clocks(probe, reports)]),
        _limits(reports, expected),
    ]


def _hosts(reports: Sequence[Mapping[str, Any]], bad: Callable[[Mapping[str, Any]], object]) -> str:
    return ", ".join(dict.fromkeys(str(report.get("host")) for report in reports if bad(report)))


def _shared(reports: Sequence[Mapping[str, Any]], token: str) -> Finding:
    blind = _hosts(reports, lambda report: report.get("token") != token)
    if blind:
        return problem(
            "run directory on the nodes",
            f"{blind} does not see what is written here",
            "Give a run_dir on a file system that login and compute nodes share.",
        )
    return ok("run directory on the nodes", f"seen by {_hosts(reports, lambda _: True)}")


def _file_system(reports: Sequence[Mapping[str, Any]]) -> Finding:
    lacking = [report for report in reports if report.get("file_system")]
    if lacking:
        fact = "; ".join(f"{report.get('host')}: {report['file_system']}" for report in lacking)
        return problem("file system on the nodes", fact, "Give a run_dir on a file system with rename and hard links.")
    return ok("file system on the nodes", "atomic rename and hard links work")


def _python(reports: Sequence[Mapping[str, Any]], here: str) -> Finding:
    found = ", ".join(sorted({f"{report.get('python')} ({report.get('executable')})" for report in reports}))
    minor = here.rpartition(".")[0]
    if any(str(report.get("python")).rpartition(".")[0] != minor for report in reports):
        return warning(
            "Python on the nodes", f"{found}; here {here}", "Set cluster.launch.python to the same environment as here."
        )
    return ok("Python on the nodes", found)


def _trainer(reports: Sequence[Mapping[str, Any]]) -> Finding:
    unsafe = _hosts(reports, lambda report: not report.get("safe_path"))
    if unsafe:
        return problem(
            "trainer on the nodes",
            f"{unsafe}: PYTHONSAFEPATH has no effect: a trainer.py in the working directory would replace the trainer",
            "Use Python 3.11 or later in cluster.launch.python, and do not unset PYTHONSAFEPATH in a wrapper.",
        )
    lost = _hosts(reports, lambda report: not report.get("trainer"))
    if lost:
        return problem("trainer on the nodes", f"{lost} finds no trainer", "Install the project anew.")
    return ok("trainer on the nodes", ", ".join(sorted({str(report["trainer"]) for report in reports})))


def _torch(reports: Sequence[Mapping[str, Any]], expected: Expected) -> Finding:
    errors = {str(report["torch_error"]) for report in reports if report.get("torch_error")}
    if errors:
        what = problem if expected.needs_torch else warning
        where = _hosts(reports, lambda report: report.get("torch_error"))
        return what(
            "torch on the nodes",
            f"{where}: {'; '.join(sorted(errors))}",
            "Install the extra 'trainer' where cluster.launch.python is, or load torch in cluster.slurm.setup.",
        )
    versions = sorted({str(report.get("torch")) for report in reports})
    if len(versions) > 1:
        return problem(
            "torch on the nodes", f"versions differ: {', '.join(versions)}", "Use one environment everywhere."
        )
    return ok("torch on the nodes", versions[0])


def _gpus(reports: Sequence[Mapping[str, Any]], expected: Expected) -> Finding:
    if not expected.uses_gpus:
        return ok("GPUs on the nodes", "the device is a CPU: none are needed")
    if any("devices" not in report for report in reports):
        return not_checked("GPUs on the nodes", "needs torch there")
    few = [report for report in reports if len(report["devices"]) < expected.gpus_per_node]
    if few:
        fact = "; ".join(f"{report.get('host')} gives torch {len(report['devices'])}" for report in few)
        return problem(
            "GPUs on the nodes",
            f"{fact}; the cluster's file says {expected.gpus_per_node}",
            "Set cluster.gpus_per_node, cluster.slurm.gpu_flag (gpus_per_node, gres, none) or the driver right.",
        )
    names = sorted({str(name) for report in reports for name in report["devices"]})
    return ok("GPUs on the nodes", f"{expected.gpus_per_node} x {', '.join(names)}")


def _port(reports: Sequence[Mapping[str, Any]]) -> Finding:
    first = reports[0]
    if "port_free" not in first:
        return not_checked("rendezvous port", "node 0 has not reported")
    if not first["port_free"]:
        return warning(
            "rendezvous port",
            f"{first.get('port')} on {first.get('host')}: {first.get('port_error')}",
            "Another job may listen there; give ports that nobody uses with cluster.launch.port_range=[A,B].",
        )
    return ok("rendezvous port", f"{first.get('port')} was free on {first.get('host')}")


def _rendezvous(reports: Sequence[Mapping[str, Any]]) -> Finding:
    peers = [report for report in reports if "connected" in report]
    if not peers:
        return not_checked("rendezvous", "needs two nodes")
    lost = [peer for peer in peers if not peer["connected"]]
    if lost:
        return problem(
            "rendezvous",
            "; ".join(f"{peer.get('host')} -> {peer.get('head')}: {peer.get('connect_error')}" for peer in lost),
            "Set cluster.launch.rendezvous_host to an address of node 0 that its peers reach, or have ports "
            "cluster.launch.port_range opened between compute nodes.",
        )
    peer = peers[0]
    return ok("rendezvous", f"{peer.get('host')} reached {peer.get('head')} ({', '.join(peer.get('resolved', []))})")


def _clocks(probe: ProbeResult, reports: Sequence[Mapping[str, Any]]) -> Finding:
    """Compare the nodes' clocks with node 0's, as they measured it, and with this machine's.

    The second comparison uses the time stamps of files, and two facts: no node reports before the job was submitted,
    nor after its report was seen.
    """
    between = [abs(float(report["clock_offset_s"])) for report in reports if "clock_offset_s" in report]
    ahead = max(float(report.get("time", 0)) - probe.seen_at for report in reports)
    behind = max(probe.began_at - float(report.get("time", 0)) for report in reports)
    here = _to_here(probe, reports)
    worst = max([*between, ahead, behind, *here])
    if worst > LARGEST_SKEW_S:
        least = "" if here and worst == max(here) else "at least "
        return warning(
            "clocks", f"they differ by {least}{worst:.1f} s", "Have time synchronisation (chrony, ntpd) mended."
        )
    nodes = f"nodes agree within {max(between):.3f} s, and " if between else ""
    return ok("clocks", nodes + (f"with this machine within {max(here):.2f} s" if here else "nothing contradicts ours"))


def _to_here(probe: ProbeResult, reports: Sequence[Mapping[str, Any]]) -> list[float]:
    if probe.ahead_of_files_s is None:
        return []
    seen = [report.get("ahead_of_files_s") for report in reports]
    return [abs(float(value) - probe.ahead_of_files_s) for value in seen if value is not None]


def _limits(reports: Sequence[Mapping[str, Any]], expected: Expected) -> Finding:
    low_files = _hosts(reports, lambda report: (report.get("open_files") or LEAST_OPEN_FILES) < LEAST_OPEN_FILES)
    if low_files:
        return warning(
            "limits on the nodes",
            f"{low_files}: fewer than {LEAST_OPEN_FILES} open files allowed",
            "Add `ulimit -n 65536` to cluster.slurm.setup, or have the node's limit raised.",
        )
    locked = _hosts(reports, lambda report: report.get("memlock_bytes") is not None and len(reports) > 1)
    if locked and expected.uses_gpus:
        return warning(
            "limits on the nodes",
            f"{locked}: locked memory is limited, which keeps NCCL from InfiniBand",
            "Have `ulimit -l unlimited` set for jobs (PropagateResourceLimitsExcept=MEMLOCK).",
        )
    free = min((report["memory_bytes"] for report in reports if report.get("memory_bytes")), default=None)
    cores = min((report["cores"] for report in reports if report.get("cores")), default=None)
    memory = "unknown" if free is None else f"{free / _GIB:.0f} GiB"
    return ok("limits on the nodes", f"{memory} of memory free, {cores} cores for the job's task")
