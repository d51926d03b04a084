"""Checks of a cell before any process group is formed; they need the standard library and ``sweep.core`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.cells.rules import violations
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import CellFile
from sweep.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from sweep.core.cells.cell import Cell
    from sweep.core.cells.device import Device
    from trainer.process.ranks import Ranks


class Refusal(ValueError):
    """The cell cannot run here; the message is one line that says what to change."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split()))


def read_cell(path: Path) -> CellFile:
    """Read the cell's file.

    Raises:
        Refusal: If it cannot be read, is damaged, or its cell breaks a rule.
    """
    try:
        file = CellFile.parse(read_text(path))
    except OSError as error:
        raise Refusal(f"cannot read {path}: {error}.") from error
    except RecordError as error:
        raise Refusal(f"{path}: {error}") from error
    broken = violations(file.cell, file.device)
    if broken:
        raise Refusal(" ".join(f"[{violation.rule}] {violation.reason}" for violation in broken))
    return file


def check_ranks(cell: Cell, ranks: Ranks) -> None:
    """Compare the cell with the number of processes.

    Raises:
        Refusal: If there are more or fewer processes than the cell needs.
    """
    if ranks.world_size != cell.gpus:
        raise Refusal(
            f"the cell needs {cell.gpus} ranks ({cell.nodes} x {cell.gpus_per_node}); there are {ranks.world_size}. "
            f"Start torchrun with --nnodes {cell.nodes} --nproc-per-node {cell.gpus_per_node}."
        )
    if ranks.local_world_size != cell.gpus_per_node:
        raise Refusal(
            f"the cell has gpus_per_node={cell.gpus_per_node}; this node runs {ranks.local_world_size} ranks. "
            f"Start torchrun with --nproc-per-node {cell.gpus_per_node}."
        )


def check_devices(device: Device, names: tuple[str, ...], ranks: Ranks) -> None:
    """Compare the cell's device profile with the devices of this node.

    Args:
        device: The profile.
        names: Names of the node's devices of that type, from the driver.
        ranks: This rank's place; each rank of the node needs a GPU of its own.

    Raises:
        Refusal: If there is no device, too few, or another kind: a number from another device would be wrong.
    """
    if not names:
        raise Refusal(
            f"device {device.name} needs a {device.type} device; torch finds none on this node. "
            "Run the cell where there is one, or choose another device."
        )
    if device.type == "cuda" and len(names) < ranks.local_world_size:
        raise Refusal(
            f"this node runs {ranks.local_world_size} ranks but shows {len(names)} GPU(s). "
            "Ask the scheduler for one GPU a rank, or lower gpus_per_node."
        )
    used = names[: ranks.local_world_size] if device.type == "cuda" else names
    strangers = sorted({name for name in used if not device.is_matched_by(name)})
    if strangers:
        raise Refusal(
            f"device {device.name} is recognised by {_recognised_by(device)}; this node has {', '.join(strangers)}. "
            "Run the cell on the right kind of node, or choose its device."
        )


def _recognised_by(device: Device) -> str:
    wanted = f"{' or '.join(map(repr, device.match))} in its name" if device.match else "any name"
    return f"{wanted} without {' or '.join(map(repr, device.unlike))}" if device.unlike else wanted
