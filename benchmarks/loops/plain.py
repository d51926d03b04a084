"""A plain, well-written FSDP2 loop over transformers' Llama: what one would write today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

# Of our parts.
NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.w_gate": "mlp.gate_proj",
    "ffn.w_up": "mlp.up_proj",
    "ffn.w_down": "mlp.down_proj",
}
LAYERS = "model.layers"


def loop(cell: Any, weights: dict[str, torch.Tensor], device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that takes one optimiser step on a step's tokens; ``weights`` are by transformers' names."""
    import torch
    import torch.nn.functional as F
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, settings = cell.model, cell.trainer
    with torch.device(device):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=shape.vocab_size,
                hidden_size=shape.hidden,
                intermediate_size=shape.ffn_hidden,
                num_hidden_layers=shape.n_layers,
                num_attention_heads=shape.n_heads,
                num_key_value_heads=shape.n_kv_heads,
                rms_norm_eps=shape.norm_eps,
                rope_theta=shape.rope_theta,
                max_position_embeddings=cell.seq_len,
                tie_word_embeddings=False,
                use_cache=False,
                attn_implementation="sdpa",
            )
        ).float()
    model.load_state_dict(weights)
    mesh = init_device_mesh(device.type, (cell.gpus,))
    dtype = torch.bfloat16 if cell.precision == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if cell.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )

    def step(rows: torch.Tensor) -> torch.Tensor:
        tokens = rows.to(device, non_blocking=True).long()
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
