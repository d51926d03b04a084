"""The needs of narrow number formats: a device that knows them, and matrix sizes that their products take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.device import Device

NEEDED_CAPABILITY: Mapping[Precision, tuple[int, int]] = {
    Precision.FP16: (7, 0),
    Precision.BF16: (8, 0),
    Precision.FLOAT8: (8, 9),
    Precision.MXFP8: (10, 0),
}
"""CUDA compute capability from which tensor cores know a format (CUDA programming guide; PTX ISA, mma and tcgen05):
float8 came with Ada (8.9), block scales with Blackwell (10.0). V100 (7.0) knows fp16 but not bf16, which it would
emulate."""
SIZE_MULTIPLE: Mapping[Precision, int] = {Precision.FLOAT8: 16, Precision.MXFP8: 32}
"""All sizes of a product are multiples of this: cuBLAS's for float8; the block that shares a scale (OCP MX 1.0)."""


_WIDTHS = ("hidden", "kv_hidden", "ffn_hidden")


def lacking(precision: Precision, capability: tuple[int, int], device_name: str) -> str | None:
    """Why a GPU of that compute capability does not do the format; None where it does."""
    needed = NEEDED_CAPABILITY.get(precision)
    if needed is None or capability >= needed:
        return None
    return (
        f"precision={precision} needs compute capability {_shown(needed)} or more; {device_name} has "
        f"{_shown(capability)}. Choose another precision, or a device that knows it."
    )


def precision_by_capability(cell: Cell, device: Device) -> str | None:
    """The rule that the device knows the format; where its profile does not tell, the run asks the device."""
    if device.type == "cpu":
        return on_cpu(cell.precision)
    if device.compute_capability is None:
        return None
    return lacking(cell.precision, device.compute_capability, f"device {device.name}")


def on_cpu(precision: Precision) -> str | None:
    """Why a CPU does not do the format; None where it does."""
    if precision in (Precision.FP32, Precision.BF16):
        return None
    return f"precision={precision} does not run on a CPU. Choose fp32 or bf16."


def matrix_sizes(cell: Cell) -> str | None:
    """The rule that every product of a block has sizes that the format takes: widths on a rank, and its tokens."""
    multiple = SIZE_MULTIPLE.get(cell.precision)
    if multiple is None:
        return None
    layout, shape = cell.parallelism, cell.model
    # The gradient of a weight is a product that sums over the tokens of a micro-batch.
    n_tokens = cell.micro_batch * cell.seq_len // layout.cp
    if n_tokens % multiple:
        return (
            f"precision={cell.precision} multiplies multiples of {multiple}; micro_batch={cell.micro_batch} x "
            f"seq_len={cell.seq_len} over cp={layout.cp} is {n_tokens} tokens. Change one of them, or the precision."
        )
    for what, size in _widths_on_a_rank(cell):
        if size % multiple:
            return (
                f"precision={cell.precision} multiplies multiples of {multiple}; {shape.name} has {what}={size} a rank "
                f"at tp={layout.tp}. Choose another model, tp or precision."
            )
    return None


def float8_gather(cell: Cell) -> str | None:
    """The rule that FSDP can gather weights as float8: torchao's form of it knows no padding, so parts are equal."""
    layout, shape = cell.parallelism, cell.model
    if cell.precision is not Precision.FLOAT8 or cell.trainer.float8_recipe != "tensorwise":
        return None
    n_shards = layout.dp_shard * layout.cp
    for what, size in _widths_on_a_rank(cell):
        if size % n_shards:
            return (
                f"float8 tensorwise gathers weights in equal parts; {shape.name} has {what}={size} a rank at "
                f"tp={layout.tp}, which does not divide by dp_shard x cp={n_shards}. Choose "
                "trainer.float8_recipe=rowwise, or other degrees."
            )
    return None


def _widths_on_a_rank(cell: Cell) -> Iterator[tuple[str, int]]:
    for what in _WIDTHS:
        yield what, getattr(cell.model, what) // cell.parallelism.tp


def _shown(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
