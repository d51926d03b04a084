"""torchtitan's step on a Llama of our shape, built through its public interface: release 0.2.2, from a checkout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

# Of our parts.
NAMES = {
    "embedding": "tok_embeddings",
    "norm": "norm",
    "head": "output",
    "attention_norm": "attention_norm",
    "attention.wq": "attention.wq",
    "attention.wk": "attention.wk",
    "attention.wv": "attention.wv",
    "attention.wo": "attention.wo",
    "ffn_norm": "ffn_norm",
    "ffn.w_gate": "feed_forward.w1",
    "ffn.w_up": "feed_forward.w3",
    "ffn.w_down": "feed_forward.w2",
}
LAYERS = "layers"


def lacking(checkout: Path | None) -> str | None:
    """Why torchtitan cannot take part, in one line; None where it can be tried."""
    if checkout is None:
        return "torchtitan: not run; name a checkout of its release 0.2.2 by --torchtitan or TORCHTITAN"
    if not (checkout / "torchtitan" / "models" / "llama3" / "model" / "args.py").is_file():
        return f"torchtitan: not run; {checkout} is no checkout of its release 0.2.2"
    return None


def ffn_arguments(hidden: int, ffn_hidden: int) -> dict[str, float]:
    """What makes torchtitan's rounded rule (2/3 of 4 x hidden, times a factor, up to a multiple) give that width."""
    return {"multiple_of": ffn_hidden, "ffn_dim_multiplier": 0.9 * ffn_hidden / (8 * hidden / 3)}


def interleaved(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of a query or key projection for rotary pairs of neighbours, where ours turns channel i with i + E/2."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def loop(
    checkout: Path, cell: Any, weights: dict[str, torch.Tensor], device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that takes one optimiser step on a step's tokens; ``weights`` are by torchtitan's names."""
    import torch

    sys.path.insert(0, str(checkout))
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.components.optimizer import build_optimizers
    from torchtitan.distributed import utils
    from torchtitan.models.llama3 import Transformer, parallelize_llama

    job, dims = _job(cell), _dims(cell.gpus)
    with torch.device("meta"):
        model = Transformer(_arguments(cell))
    parallelize_llama(model, dims, job)
    if device.type == "cpu":
        _sum_plainly(model)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(buffer_device=device)
        _fill(model, weights, cell.model.head_dim)
    model.train()
    optimizers = build_optimizers([model], job.optimizer, dims)
    loss_of = build_cross_entropy_loss(job)
    precision = utils.maybe_enable_amp(dims, job.training.mixed_precision_param, device.type)
    parameters = list(model.parameters())

    def step(rows: torch.Tensor) -> torch.Tensor:
        tokens = rows.to(device, non_blocking=True).long()
        optimizers.zero_grad()
        with precision:
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:]) / cell.tokens_per_step
        loss.backward()
        utils.clip_grad_norm_(parameters, job.training.max_norm, foreach=True, pp_mesh=None)
        optimizers.step()
        # Of this rank's tokens, as the others tell it.
        return loss.detach() * cell.gpus

    return step


def _arguments(cell: Any) -> Any:
    from torchtitan.models.llama3 import TransformerModelArgs
    from torchtitan.models.llama3.model.args import RoPEScalingArgs

    shape = cell.model
    return TransformerModelArgs(
        dim=shape.hidden,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        vocab_size=shape.vocab_size,
        norm_eps=shape.norm_eps,
        rope_theta=shape.rope_theta,
        rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0),
        max_seq_len=cell.seq_len,
        **ffn_arguments(shape.hidden, shape.ffn_hidden),
    )


def _job(cell: Any) -> Any:
    from torchtitan.config import JobConfig

    job, settings = JobConfig(), cell.trainer
    job.training.seq_len, job.training.local_batch_size = cell.seq_len, cell.micro_batch
    job.training.max_norm = settings.grad_clip
    job.training.mixed_precision_param = "bfloat16" if cell.precision == "bf16" else "float32"
    job.parallelism.fsdp_reshard_after_forward = "never"
    job.activation_checkpoint.mode = "none"
    job.compile.enable = cell.compile
    job.optimizer.lr, job.optimizer.eps = settings.lr, settings.eps
    job.optimizer.beta1, job.optimizer.beta2 = settings.beta1, settings.beta2
    job.optimizer.weight_decay, job.optimizer.implementation = settings.weight_decay, "fused"
    return job


def _dims(n_ranks: int) -> Any:
    from torchtitan.distributed import ParallelDims

    return ParallelDims(dp_replicate=1, dp_shard=n_ranks, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=n_ranks)


def _sum_plainly(model: torch.nn.Module) -> None:
    """Gloo cannot scale while it reduces, which torchtitan asks of NCCL."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def _fill(model: torch.nn.Module, weights: dict[str, torch.Tensor], head_dim: int) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, parameter in model.named_parameters():
        plain_name = name.replace("_orig_mod.", "")
        whole = weights[plain_name]
        if plain_name.endswith(("wq.weight", "wk.weight")):
            whole = interleaved(whole, head_dim)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        parameter.copy_(whole)
