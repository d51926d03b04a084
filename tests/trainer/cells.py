"""Small cells that run in a second, and their files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import Cell, Precision, cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.records.attempt_record import CellFile
from sweep.core.records.layout import CELL_FILE

CPU = Device(name="cpu", type="cpu")
# Grouped heads; two ranks divide every width, and share the halves of some unevenly: shards are padded.
UNEVEN = ModelShape(name="uneven", n_layers=3, hidden=40, n_heads=4, n_kv_heads=2, ffn_hidden=54, vocab_size=106)
SETTINGS = TrainerSettings(steps=5, warmup_steps=1, lr=3e-3, grad_clip=0.5, comm_timeout_s=60.0)


def cell(*, gpus: int = 1, nodes: int = 1, trainer: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """An fp32 FSDP cell of eight sequences; give ``parallelism`` for another layout."""
    values: dict[str, Any] = {
        "model": UNEVEN,
        "device": "cpu",
        "nodes": nodes,
        "gpus_per_node": gpus // nodes,
        "parallelism": Parallelism(dp_shard=gpus),
        "global_batch": 8,
        "micro_batch": 8 // gpus,
        "seq_len": 32,
        "precision": Precision.FP32,
        "trainer": dataclasses.replace(SETTINGS, **(trainer or {})),
    }
    return Cell(**{**values, **changes})


def cell_file(made: Cell, device: Device = CPU) -> CellFile:
    return CellFile(cell=made, device=device, key=AttemptKey(cell_id=cell_id(made), repeat=1, attempt=1))


def write_cell(folder: Path, made: Cell, device: Device = CPU) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CELL_FILE
    path.write_text(cell_file(made, device).render(), encoding="utf-8")
    return path
