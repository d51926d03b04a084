"""Number formats narrower than bf16: loss scaling for fp16, float8 and mxfp8 through torchao, the check of a node.

float8 is a thin layer over torchao (extra ``float8``). Not yet run on a GPU: tests build and emulate it on a CPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.formats import lacking
from trainer.model import mxfp8
from trainer.model.decoder import Llama
from trainer.process.refusal import Refusal
from trainer.torch_private.training import amp_update_scale_, foreach_mul_, has_mxfp8_kernels

COMPUTE_DTYPE: Mapping[Precision, torch.dtype] = {
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    # Activations between the products, and accumulation.
    Precision.FLOAT8: torch.bfloat16,
    Precision.MXFP8: torch.bfloat16,
}
# The module of torchao that implements a format.
_TORCHAO_MODULES: Mapping[Precision, str] = {Precision.FLOAT8: "torchao.float8", Precision.MXFP8: mxfp8.MODULE}


def check(cell: Cell, devices: Iterable[tuple[str, tuple[int, int]]]) -> None:
    """Compare a cell's number format with the GPUs and packages of this node, before anything starts.

    Args:
        cell: What to run.
        devices: Name and compute capability of each GPU; empty on a CPU.

    Raises:
        Refusal: If a device lacks the format, or torchao is missing or too old.
    """
    for name, capability in devices:
        if reason := lacking(cell.precision, capability, name):
            raise Refusal(reason)
    needed = _TORCHAO_MODULES.get(cell.precision)
    if needed is not None and not _is_installed(needed):
        raise Refusal(
            f"precision={cell.precision} needs {needed}, which is not installed here. Install the extra `float8` with "
            "a recent torchao, or choose another precision."
        )
    if cell.precision is Precision.MXFP8 and not has_mxfp8_kernels():
        raise Refusal(
            f"precision=mxfp8 needs torchao's kernels, which are for CUDA 12.8 or newer; torch here is "
            f"{torch.__version__}. Install a torch for it, or choose another precision."
        )


def uses_torchao(cell: Cell) -> bool:
    """True if torchao computes the cell's matrix products."""
    return cell.precision in _TORCHAO_MODULES


def keeps_casts(cell: Cell) -> bool:
    """True if compiled blocks must round wherever the code does.

    Otherwise a fused kernel computes a row's scale from values more precise than the bf16 values it divides by that
    scale, and float8 can overflow to NaN (pytorch issue 150859; torchtitan sets the same).
    """
    return cell.compile and cell.precision is Precision.FLOAT8 and cell.trainer.float8_recipe == "rowwise"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def convert(model: Llama, cell: Cell, *, is_sharded: bool, is_emulated: bool) -> None:
    """Convert the projections of all blocks to float8 or mxfp8 if the cell says so; the head is not converted.

    Args:
        model: Model on the meta device, before any other transformation.
        cell: ``trainer.float8_recipe`` is its recipe.
        is_sharded: True if FSDP all-gathers the weights; with one scale for all shards it gathers them as float8.
        is_emulated: True if products are computed in high precision from rounded values, as on a CPU.
    """
    if cell.precision is Precision.MXFP8:
        mxfp8.convert(model, is_emulated=is_emulated)
    if cell.precision is not Precision.FLOAT8:
        return
    float8: Any = importlib.import_module("torchao.float8")
    config = float8.Float8LinearConfig.from_recipe_name(cell.trainer.float8_recipe)
    config = dataclasses.replace(
        config,
        emulate=is_emulated,
        enable_fsdp_float8_all_gather=is_sharded and cell.trainer.float8_recipe == "tensorwise",
    )
    float8.convert_to_float8_training(model, config=config, module_filter_fn=_is_converted)


def _is_converted(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and name.startswith("blocks.")


def with_float8_scales(
    run: Callable[[torch.Tensor], torch.Tensor | None], stages: Sequence[nn.Module], cell: Cell
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Compute the scales of all weights in one reduction before each step, instead of one reduction for each weight."""
    if cell.precision is not Precision.FLOAT8 or cell.trainer.float8_recipe != "tensorwise":
        return run
    float8: Any = importlib.import_module("torchao.float8")
    linear: type[nn.Module] = importlib.import_module("torchao.float8.float8_linear").Float8Linear
    # Found once, over all stages: torchao walks through all modules that it is given, every time.
    converted = nn.ModuleList(part for stage in stages for part in stage.modules() if isinstance(part, linear))

    def prepared(tokens: torch.Tensor) -> torch.Tensor | None:
        float8.precompute_float8_dynamic_scale_for_fsdp(converted)
        return run(tokens)

    return prepared


class LossScale:
    """Loss scaling: multiplies fp16 gradients by a factor, so that small ones do not vanish.

    Micikevicius et al., arXiv 1710.03740, with the rule of torch.amp: if a gradient is not finite, halve the scale and
    skip the step; after 2000 steps without that, double it. All of it runs on the device, without waiting for it.
    """

    INITIAL = 65536.0
    GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), self.INITIAL, dtype=torch.float32, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self._n_skipped = torch.zeros((), dtype=torch.float32, device=device)

    @classmethod
    def of(cls, cell: Cell, device: torch.device) -> LossScale | None:
        """The scale of a cell; None if its format has the range of fp32."""
        return cls(device) if cell.precision is Precision.FP16 else None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss unchanged, but with a scaled gradient."""
        return cast("torch.Tensor", _ScaledGradient.apply(loss, self.scale))  # type: ignore[no-untyped-call]  # torch does not annotate it

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide the gradients, in place."""
        if gradients:
            foreach_mul_(gradients, self.scale.reciprocal())

    def step(self, optimizer: torch.optim.Optimizer, norm: torch.Tensor) -> None:
        """Update the parameters unless the global norm, and so some gradient on some rank, is not finite."""
        found_inf = (~norm.isfinite()).float()
        # A fused optimiser reads this attribute, which torch.amp.GradScaler sets too, and then updates nothing.
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]  # not declared by torch
        optimizer.step()
        self._n_skipped += found_inf
        amp_update_scale_(self.scale, self._growth_tracker, found_inf, self.GROWTH, self.BACKOFF, self.INTERVAL)

    def readings(self) -> dict[str, float]:
        """Values for the record; waits for the device."""
        return {"final_scale": float(self.scale), "skipped_steps": float(self._n_skipped)}


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, loss: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(scale)
        # A copy and no view: a pipeline detaches the loss in place.
        return loss.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (scale,) = context.saved_tensors
        return gradient * scale, None
