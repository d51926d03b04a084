"""This trainer's step, as `python -m trainer` runs it, without its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def loop(cell: Any, rank: int, local_rank: int, device_type: str) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """A function that takes one optimiser step on a step's tokens and returns their mean loss."""
    from trainer.device import devices
    from trainer.process.ranks import Ranks
    from trainer.training import session
    from trainer.training.loop import Trainee
    from trainer.training.optimizer import ShardedAdamW

    compute = devices.open_compute(device_type, local_rank)
    model = session.build(cell, compute, Ranks(rank=rank, world_size=cell.gpus, local_world_size=cell.gpus))
    optimizer = ShardedAdamW(model.parameters(), cell.trainer, model.model_group, model.tp)
    trainee = Trainee(model=model, optimizer=optimizer, device=compute.device)
    return lambda rows: trainee.step(rows)[0]


def starting_weights(cell: Any, device: torch.device) -> dict[str, torch.Tensor]:
    """The whole weights that our loop starts from, by our names without ``.weight``."""
    from trainer.model.decoder import build_on_meta
    from trainer.model.init import materialize

    model = build_on_meta(cell.model, cell.seq_len)
    materialize(model, device, None, seed=cell.trainer.seed)
    return {name.removesuffix(".weight"): value.detach() for name, value in model.named_parameters()}


def renamed(name: str, names: dict[str, str], layers: str) -> str:
    """One of our names as another model has it, given its names of parts and of the list of layers."""
    layer, inner = name.split(".", 2)[1:] if name.startswith("blocks.") else ("", name)
    prefix = f"{layers}.{layer}." if layer else ""
    return f"{prefix}{names[inner]}.weight"
