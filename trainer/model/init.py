"""Initial weights that depend on (seed, parameter name, position) only, so every layout starts from the same model.

Torch's own functions initialise every shard of a DTensor on a CPU alike. Here each element is a function of its
position in the full parameter, and a rank computes its shard only.
"""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from trainer.data.counter_rng import key_of, normal
from trainer.model.decoder import Llama
from trainer.torch_private.training import WRAPPERS, StridedShard

# Radford et al. (GPT-2, 2019): 0.02; projections into the residual stream are scaled down by its 2 L additions.
_STD = 0.02
_ONES = re.compile(r"(^|\.)(attention_norm|ffn_norm|norm)\.weight$")
_INTO_RESIDUAL = re.compile(r"\.(wo|w_down)\.weight$")
_WRAPPERS = re.compile(rf"(^|\.)({'|'.join(WRAPPERS)})(?=\.)")
# Elements drawn at a time: their int64 temporaries fit into a CPU's cache, and take little of a GPU's memory.
_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 24}


def plain_name(name: str) -> str:
    """Name of a parameter in the bare model, without the parts that wrappers add."""
    return _WRAPPERS.sub("", name).lstrip(".")


def materialize(model: Llama, device: torch.device, positions: torch.Tensor | None, *, seed: int) -> None:
    """Give a parallelised model, or a stage of one, its memory and initial weights.

    Args:
        model: Model on the meta device.
        device: Device of its memory.
        positions: Positions of this rank; None: all.
        seed: Seed of the weights.
    """
    model.to_empty(device=device)
    model.rebuild_buffers(device, positions)
    fill_parameters(model, seed=seed, n_layers=model.shape.n_layers)


@torch.no_grad()
def fill_parameters(model: nn.Module, *, seed: int, n_layers: int) -> None:
    """Give every parameter, or this rank's shard of it, its initial values."""
    for wrapped_name, parameter in model.named_parameters():
        name = plain_name(wrapped_name)
        local, offset = _local_part(parameter)
        if _ONES.search(name):
            local.fill_(1.0)
            continue
        residual = (2 * n_layers) ** -0.5 if _INTO_RESIDUAL.search(name) else 1.0
        _fill(local, parameter.shape, offset, key_of(seed, name), _STD * residual)


def _local_part(parameter: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Return this rank's shard and its offset in the full parameter."""
    if not isinstance(parameter, DTensor):
        return parameter, (0,) * parameter.dim()
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None
    offset, size = [0] * parameter.dim(), list(parameter.shape)
    # FSDP shards the shards of tensor parallelism. If both shard one dimension, FSDP's mesh dimension comes first in
    # the mesh, but it shards second; torch calls that a strided shard.
    cuts = zip(parameter.placements, coordinate, parameter.device_mesh.shape, strict=True)
    for placement, rank, degree in sorted(cuts, key=lambda cut: isinstance(cut[0], StridedShard)):
        if isinstance(placement, Shard | StridedShard):
            first, last = _chunk(size[placement.dim], degree, rank)
            offset[placement.dim] += first
            size[placement.dim] = last - first
    local = parameter.to_local()
    assert tuple(local.shape) == tuple(size) or not local.numel()
    return local, tuple(offset)


def _chunk(size: int, degree: int, rank: int) -> tuple[int, int]:
    """Begin and end of a rank's chunk, as in torch.chunk: equal chunks but for the last ones, which may be empty."""
    step = -(-size // degree)
    return min(rank * step, size), min((rank + 1) * step, size)


def _fill(local: torch.Tensor, full_shape: torch.Size, offset: tuple[int, ...], key: int, std: float) -> None:
    """Draw a matrix, or a rectangle of one, some rows at a time."""
    n_rows, n_columns = local.shape
    columns = torch.arange(offset[1], offset[1] + n_columns, device=local.device)
    rows_at_once = max(1, _CHUNK.get(local.device.type, 1 << 18) // max(1, n_columns))
    for first in range(0, n_rows, rows_at_once):
        last = min(first + rows_at_once, n_rows)
        rows = torch.arange(offset[0] + first, offset[0] + last, device=local.device)
        local[first:last] = normal(key, rows[:, None] * full_shape[1] + columns, std)
