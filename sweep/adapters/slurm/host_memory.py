"""Finds in accounting the jobs that Slurm killed for their host memory and yet calls FAILED.

Where Slurm polls memory instead of confining it (``JobAcctGatherParams=OverMemoryKill``), such a job ends as FAILED,
its batch script with exit code 137, and nothing but a sentence in the job's log says why. Accounting has the numbers:
SIGKILL ended the step, and the step used more memory than the job had asked for on a node.
"""

from __future__ import annotations

import re

from sweep.adapters.slurm.fields import parse_row_id

MEMORY_FORMAT = "JobID,ExitCode,MaxRSS,ReqMem,NNodes"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


def killed_over_memory(text: str) -> dict[str, str]:
    """The jobs killed above their memory limit, with a sentence, by ``sacct -P -n -o MEMORY_FORMAT`` with steps."""
    limits: dict[str, float] = {}
    used: dict[str, float] = {}
    for line in text.splitlines():
        row_id, exit_code, max_rss, req_mem, nodes, *_ = [*line.split("|"), *[""] * 5]
        job, _, step = row_id.partition(".")
        if step:
            if exit_code.endswith(":9"):
                used[job] = max(used.get(job, 0.0), _bytes(max_rss) or 0.0)
            continue
        named, limit = parse_row_id(job), _limit_bytes(req_mem, nodes)
        if named is not None and limit is not None:
            limits.update(dict.fromkeys(named[1], limit))
    return {
        job: f"a step was killed that used {_mib(most)} of the job's {_mib(limits[job])} on each node"
        for job, most in used.items()
        if most > limits.get(job, float("inf"))
    }


def _limit_bytes(req_mem: str, nodes: str) -> float | None:
    """Bytes that a job asked for on each node: with ``n`` (before Slurm 21.08) as given, else the sum of all nodes."""
    size, match = _bytes(req_mem), _SIZE.fullmatch(req_mem.strip())
    if not size or match is None or match[3] == "c":
        return None
    if match[3] == "n":
        return size
    return size / int(nodes) if nodes.strip().isdecimal() and int(nodes) else None


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2]]
