"""MXFP8: products of float8 values that share a power of two as their scale in blocks of 32 (OCP MX specification 1.0).

A thin layer over torchao (extra ``float8``), whose product of fp32 or bf16 tensors rounds them, forward and backward.
torchao's own conversion replaces parameters by tensors of a special class; here parameters, and so initial weights,
shards and the optimiser, stay as they are. Not yet run on a GPU: tests emulate it on a CPU.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.experimental import local_map

from trainer.model.decoder import Linear, Llama
from trainer.torch_private.training import mxfp8_product

if TYPE_CHECKING:
    from collections.abc import Callable

    Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MODULE = "torchao.prototype.moe_training.mxfp8_linear"
"""The module of torchao, from version 0.18 on."""


class MXFP8Linear(Linear):
    """A projection without bias that computes its three products (one forward, two backward) in MXFP8."""

    def __init__(self, n_in: int, n_out: int, product: Product) -> None:
        super().__init__(n_in, n_out)
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension; the result has the input's format."""
        weight = self.weight.to(x.dtype)
        if isinstance(x, DTensor) and isinstance(weight, DTensor):
            return _on_parts(self._product, x, weight)
        return self._product(x, weight)


def _on_parts(product: Product, x: DTensor, weight: DTensor) -> torch.Tensor:
    """Multiply each tp rank's shards: rows of the weight give columns of the result, its columns a partial sum."""
    (is_at,) = weight.placements
    by_rows = is_at == Shard(0)
    result = Shard(x.dim() - 1) if by_rows else Partial()
    local: Callable[..., Any] = local_map(
        product,
        out_placements=[result],
        in_placements=(list(x.placements), [is_at]),
        in_grad_placements=([Partial()] if by_rows else list(x.placements), [is_at]),
        device_mesh=x.device_mesh,
    )
    return cast("torch.Tensor", local(x, weight))


def convert(model: Llama, *, is_emulated: bool) -> None:
    """Replace the projections of all blocks by MXFP8 projections, which keep the parameters.

    Args:
        model: Model on the meta device.
        is_emulated: True if products are computed in high precision from rounded values, as on a CPU.
    """
    product = _product(is_emulated=is_emulated)
    for block in model.blocks.values():
        for name, module in [item for item in block.named_modules() if isinstance(item[1], Linear)]:
            with torch.device("meta"):
                converted = MXFP8Linear(module.in_features, module.out_features, product)
            converted.weight = module.weight
            block.set_submodule(name, converted)


def _product(*, is_emulated: bool) -> Product:
    """Torchao's product, with scales rounded up so that no value overflows, as in torchtitan."""
    ao: Any = importlib.import_module(MODULE)
    kernels = ao.KernelPreference.EMULATED if is_emulated else ao.KernelPreference.AUTO
    made = functools.partial(
        mxfp8_product(),
        kernel_preference=kernels,
        scale_calculation_mode=ao.ScaleCalculationMode.RCEIL,
    )
    return cast("Product", made)
