"""A cell that breaks no rule."""

from __future__ import annotations

from sweep.core.cells.cell import Cell
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism

SHAPE = ModelShape(name="m", n_layers=12, hidden=384, n_heads=24, n_kv_heads=12, ffn_hidden=960, vocab_size=4800)
CELL = Cell(
    model=SHAPE,
    device="h100",
    nodes=2,
    gpus_per_node=8,
    parallelism=Parallelism(dp_shard=16),
    global_batch=32,
    micro_batch=2,
    seq_len=4096,
)
