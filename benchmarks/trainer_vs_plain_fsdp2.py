"""Our trainer's step against a plain, well-written FSDP2 loop over transformers' Llama, alike in all settings.

In one run two ranks on gloo build both models from one shape and the same weights, then take steps in turn: some of
ours, some of the other's, and so on, so that whatever else the machine does meets both alike. Compared are the
medians over all steps, each the slower rank's; that the losses agree shows that both do the same work. The other
loop is what one would write today: fully_shard per block and around all, bf16 with fp32 reduction, parameters kept
after the forward pass, fused AdamW, gradient clipping, scaled dot-product attention, logits and loss in the same
formats. It is given our synthetic tokens.

python benchmarks/trainer_vs_plain_fsdp2.py [--precision fp32|bf16] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

N_RANKS = 2
STEPS_A_TURN = 4


def _cell(precision: str) -> Any:
    from sweep.core.cell import Cell, Parallelism, Precision, TrainerSettings
    from sweep.core.model import ModelShape

    shape = ModelShape(
        name="bench_5m", n_layers=4, hidden=256, n_heads=4, n_kv_heads=2, ffn_hidden=704, vocab_size=4096
    )
    return Cell(
        model=shape,
        device="cpu",
        nodes=1,
        gpus_per_node=N_RANKS,
        parallelism=Parallelism(dp_shard=N_RANKS),
        global_batch=4,
        micro_batch=2,
        seq_len=128,
        precision=Precision(precision),
        trainer=TrainerSettings(steps=10_000, warmup_steps=1, threads_per_rank=1),
    )


def _ours(cell: Any, rank: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    from trainer import devices, session
    from trainer.loop import Trainee
    from trainer.optimizer import ShardedAdamW
    from trainer.ranks import Ranks

    compute = devices.claim("cpu", rank)
    model = session.build(cell, compute, Ranks(rank=rank, world_size=N_RANKS, local_world_size=N_RANKS))
    optimizer = ShardedAdamW(model.parameters(), cell.trainer, model.distinct, model.tp)
    trainee = Trainee(model=model, optimizer=optimizer, device=compute.device)
    return lambda rows: trainee.step(rows)[0]


_NAMES = {
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


def _starting_weights(cell: Any) -> dict[str, torch.Tensor]:
    """Ours, under the names that transformers gives them."""
    import torch

    from trainer.init import materialize
    from trainer.model import build_on_meta

    model = build_on_meta(cell.model, cell.seq_len)
    materialize(model, torch.device("cpu"), None, seed=cell.trainer.seed)
    found = {}
    for name, value in model.state_dict().items():
        name = name.removesuffix(".weight")
        layer, inner = name.split(".", 2)[1:] if name.startswith("blocks.") else ("", name)
        prefix = f"model.layers.{layer}." if layer else ""
        found[f"{prefix}{_NAMES[inner]}.weight"] = value
    return found


def _plain(cell: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch
    import torch.nn.functional as F
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape, settings = cell.model, cell.trainer
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden,
            intermediate_size=shape.ffn_hidden,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            rms_norm_eps=shape.norm_eps,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
    ).float()
    model.load_state_dict(_starting_weights(cell))
    mesh = init_device_mesh("cpu", (N_RANKS,))
    dtype = torch.bfloat16 if cell.precision == "bf16" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.model.layers:
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
        tokens = rows.long()
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _rank(precision: str, rounds: int, out: Path) -> None:
    """One rank: both models, steps in turn, the slower rank's times to a file."""
    import torch
    import torch.distributed as dist

    from trainer.data import Share, source_of, stream

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, cell = dist.get_rank(), _cell(precision)
    share = Share.of(data_rank=rank, data_ranks=N_RANKS, global_batch=cell.global_batch)
    loops: dict[str, Callable[[torch.Tensor], Any]] = {"ours": _ours(cell, rank), "plain": _plain(cell)}
    tokens = {name: stream(source_of(cell), share, 100_000, pin=False) for name in loops}
    times: dict[str, list[float]] = {name: [] for name in loops}
    losses: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds + 1):
        # Which one is first alternates too.
        for name in sorted(loops, reverse=bool(turn % 2)):
            gc.collect()
            gc.disable()
            for _ in range(STEPS_A_TURN):
                rows = next(tokens[name])
                dist.barrier()
                began = time.perf_counter()
                loss = loops[name](rows)
                took = torch.tensor(time.perf_counter() - began)
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                # The first turn connects, allocates and makes the optimiser's state.
                times[name] += [float(took)] if turn else []
                losses[name].append(float(loss))
            gc.enable()
    if rank == 0:
        out.write_text(json.dumps({"times": times, "losses": losses, "n_params": cell.model.n_params}))
    dist.barrier()
    os._exit(0)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    """Print the ratio of the medians and what it was measured on; exit status 1 where ours is behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out is not None:
        _rank(arguments.precision, arguments.rounds, arguments.out)
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS)]
        given = ["--precision", arguments.precision, "--rounds", str(arguments.rounds), "--out", str(out)]
        subprocess.run([*agent, __file__, *given], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        found = json.loads(out.read_text())
    ours, plain = (statistics.median(found["times"][name]) for name in ("ours", "plain"))
    pairs = list(zip(found["times"]["ours"], found["times"]["plain"], strict=True))
    wins = sum(a < b for a, b in pairs)
    print(
        f"{_processor()}, {os.cpu_count()} cores, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{N_RANKS} ranks, gloo, FSDP2, {arguments.precision}, {found['n_params'] / 1e6:.1f} M parameters\n"
        f"ours {ours * 1e3:.1f} ms, plain FSDP2 {plain * 1e3:.1f} ms a step (medians of {len(pairs)}): "
        f"ours takes {ours / plain:.3f} of its time; ahead in {wins} of {len(pairs)} pairs\n"
        f"losses at the end: ours {found['losses']['ours'][-1]:.4f}, plain {found['losses']['plain'][-1]:.4f}\n"
        "GPU: not run"
    )
    return int(ours > plain)


if __name__ == "__main__":
    sys.exit(main())
