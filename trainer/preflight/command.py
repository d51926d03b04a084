"""``python -m trainer --preflight``: prints the record of a preflight as JSON, or as a table for people."""

from __future__ import annotations

import sys
from pathlib import Path

from sweep.core.records.preflight_record import Preflight
from trainer.data import tokens_file
from trainer.failure.process_exit import EXIT_REFUSED
from trainer.process import refusal

_GIB = 1 << 30


def main(path: Path, *, rank: int, as_json: bool) -> int:
    """Examine one rank of the cell in a file; exit code 0 if it can run, 2 if it cannot be built or fit."""
    found, shortage = _examine(path, rank)
    if as_json:
        print(found.render(), end="")
    elif not found.problem:
        print(describe(found, fits=not shortage))
    if reason := found.problem or shortage:
        print(f"trainer: refused: {reason}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


def _examine(path: Path, rank: int) -> tuple[Preflight, str]:
    """Return the record, and what the cell's device lacks to hold the rank; empty where it may fit."""
    try:
        file = refusal.read_cell(path)
        tokens_file.check(file.cell)
    except refusal.Refusal as refused:
        return Preflight(cell_id="", rank=rank, world_size=0, problem=str(refused)), ""
    world_size = file.cell.gpus
    if not 0 <= rank < world_size:
        problem = f"--rank {rank}: the cell has ranks 0 to {world_size - 1}."
        return Preflight(cell_id=file.key.cell_id, rank=rank, world_size=world_size, problem=problem), ""
    # Only now: the import of torch takes seconds.
    from trainer.preflight.fake_rank import examine

    found = examine(file.cell, rank=rank, is_cuda=file.device.type == "cuda")
    return found, found.shortage(file.device)


def describe(found: Preflight, *, fits: bool = True) -> str:
    """Describe memory and communication, one item a line."""
    answer = "can run" if fits else "can be built, and does not fit on its device"
    lines = [f"cell {found.cell_id}, rank {found.rank} of {found.world_size}: {answer}"]
    lines += [f"  {stage}" for stage in found.stages]
    lines.append(
        f"peak memory {'at most ' if found.is_overstated else ''}{_gib(found.peak_memory_bytes or 0)}, of which"
    )
    lines += [f"  {_gib(size):>12}  {kind}" for kind, size in found.peak_by_kind.items() if size]
    lines.append("all state: " + ", ".join(f"{kind} {_gib(size)}" for kind, size in found.state_by_kind.items()))
    lines.append("collectives of a step:")
    lines += [
        f"  {_gib(item.bytes):>12}  {item.count} x {item.op} over {item.group} "
        f"({item.ranks} ranks on {item.nodes} node{'s' if item.nodes > 1 else ''})"
        for item in found.collectives
    ] or ["  none"]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.3f} GiB"
