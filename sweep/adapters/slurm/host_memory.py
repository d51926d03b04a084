"""Host memory by accounting: a job that Slurm killed for its memory and yet calls FAILED.

Where Slurm polls memory instead of confining it (``JobAcctGatherParams=OverMemoryKill``) the job ends FAILED, its batch
script by 137, and OUT_OF_MEMORY is never said; only the job's log has the reason, in words that are not for machines.
Accounting has it in numbers: the step was ended by SIGKILL, and held more than the job had asked for on a node.
"""

from __future__ import annotations

import re

from sweep.adapters.slurm.job_ids import parse_row_id

MEMORY_FORMAT = "JobID,ExitCode,MaxRSS,ReqMem,NNodes"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


def over_memory(text: str) -> dict[str, str]:
    """Of the jobs in ``sacct -P -n -o MEMORY_FORMAT``, steps included: those killed above their memory, in words."""
    limits: dict[str, float] = {}
    held: dict[str, float] = {}
    for line in text.splitlines():
        row_id, exit_code, max_rss, req_mem, nodes, *_ = [*line.split("|"), *[""] * 5]
        job, _, step = row_id.partition(".")
        if step:
            if exit_code.endswith(":9"):
                held[job] = max(held.get(job, 0.0), _bytes(max_rss) or 0.0)
            continue
        named, limit = parse_row_id(job), _limit_bytes(req_mem, nodes)
        if named is not None and limit is not None:
            limits.update(dict.fromkeys(named[1], limit))
    return {
        job: f"a step was killed holding {most / 2**20:,.0f} MiB, of {limits[job] / 2**20:,.0f} MiB a node"
        for job, most in held.items()
        if most > limits.get(job, float("inf"))
    }


def _limit_bytes(req_mem: str, nodes: str) -> float | None:
    """Bytes that a job asked for on each node; before Slurm 21.08 ``n`` marked that, since then it is the job's sum."""
    size, match = _bytes(req_mem), _SIZE.fullmatch(req_mem.strip())
    if not size or match is None or match[3] == "c":
        return None
    if match[3] == "n":
        return size
    return size / int(nodes) if nodes.strip().isdecimal() and int(nodes) else None


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2]]
