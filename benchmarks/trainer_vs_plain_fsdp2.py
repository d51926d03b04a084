"""Our trainer's step against a plain, well-written FSDP2 loop over transformers' Llama, alike in all settings.

In one run two ranks on gloo build both models from one shape and the same weights, then take steps in turn: some of
ours, some of the other's, and so on, so that whatever else the machine does meets both alike. Compared are the
medians over all steps, each the slower rank's, by the clock and by the processor's time, which a busy machine disturbs
less; that the losses agree shows that both do the same work. The other loop is what one would write today: fully_shard
per block and around all, bf16 with fp32 reduction, parameters kept after the forward pass, fused AdamW, gradient
clipping, scaled dot-product attention, logits and loss in the same formats. It is given our synthetic tokens.

Three shapes: a small one; one with a vocabulary as real models have it; one with longer sequences.

python benchmarks/trainer_vs_plain_fsdp2.py [--shape small|vocabulary|long] [--precision fp32|bf16] [--rounds N]
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
# Vocabulary, tokens of a sequence.
SHAPES = {"small": (4096, 128), "vocabulary": (32_000, 128), "long": (4096, 512)}
PRECISIONS = ("fp32", "bf16")


def _cell(name: str, precision: str) -> Any:
    from sweep.core.cell import Cell, Parallelism, Precision, TrainerSettings
    from sweep.core.model import ModelShape

    vocab_size, seq_len = SHAPES[name]
    shape = ModelShape(
        name=name, n_layers=4, hidden=256, n_heads=4, n_kv_heads=2, ffn_hidden=704, vocab_size=vocab_size
    )
    return Cell(
        model=shape,
        device="cpu",
        nodes=1,
        gpus_per_node=N_RANKS,
        parallelism=Parallelism(dp_shard=N_RANKS),
        global_batch=4,
        micro_batch=2,
        seq_len=seq_len,
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


def _in_turn(cell: Any, rank: int, rounds: int) -> dict[str, Any]:
    """Both models, steps in turn; of each step the slower rank's seconds, by the clock and of its processor."""
    import torch
    import torch.distributed as dist

    from trainer.data import Share, source_of, stream

    share = Share.of(data_rank=rank, data_ranks=N_RANKS, global_batch=cell.global_batch)
    loops: dict[str, Callable[[torch.Tensor], Any]] = {"ours": _ours(cell, rank), "plain": _plain(cell)}
    tokens = {name: stream(source_of(cell), share, 10_000, pin=False) for name in loops}
    times: dict[str, list[list[float]]] = {name: [] for name in loops}
    losses: dict[str, float] = {}
    for turn in range(rounds + 1):
        # Which one is first alternates too.
        for name in sorted(loops, reverse=bool(turn % 2)):
            gc.collect()
            gc.disable()
            for _ in range(STEPS_A_TURN):
                rows = next(tokens[name])
                dist.barrier()
                began = time.perf_counter(), time.process_time()
                loss = loops[name](rows)
                ended = time.perf_counter(), time.process_time()
                took = torch.tensor([end - begin for begin, end in zip(began, ended, strict=True)])
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                # The first turn connects, allocates and makes the optimiser's state.
                times[name] += [took.tolist()] if turn else []
                losses[name] = float(loss)
            gc.enable()
    return {"times": times, "losses": losses, "n_params": cell.model.n_params}


def _rank(cases: list[list[str]], rounds: int, out: Path) -> None:
    """One rank: all cases, one after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = [_in_turn(_cell(*case), dist.get_rank(), rounds) for case in cases]
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _compare(name: str, precision: str, found: dict[str, Any]) -> float:
    """Print one case; returns our time over the other's."""
    clock, processor = (
        {loop: [step[kind] for step in steps] for loop, steps in found["times"].items()} for kind in (0, 1)
    )
    ours, plain = (statistics.median(clock[loop]) for loop in ("ours", "plain"))
    of_processor = statistics.median(processor["ours"]) / statistics.median(processor["plain"])
    pairs = list(zip(clock["ours"], clock["plain"], strict=True))
    wins = sum(a < b for a, b in pairs)
    losses = found["losses"]
    print(
        f"{name} ({found['n_params'] / 1e6:.1f} M parameters, {SHAPES[name][1]} tokens) {precision}: "
        f"ours {ours * 1e3:.1f} ms, plain FSDP2 {plain * 1e3:.1f} ms a step; ours takes {ours / plain:.3f} of its time "
        f"and {of_processor:.3f} of its processor time; ahead in {wins} of {len(pairs)} pairs; "
        f"losses at the end {losses['ours']:.4f} and {losses['plain']:.4f}"
    )
    return ours / plain


def main() -> int:
    """Print the ratios of the medians and what they were measured on; exit status 1 where ours is behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [[s, p] for s in arguments.shape or SHAPES for p in arguments.precision or PRECISIONS]
    if arguments.out is not None:
        _rank(cases, arguments.rounds, arguments.out)
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS)]
        subprocess.run(
            [*agent, __file__, *sys.argv[1:], "--out", str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True
        )
        results = json.loads(out.read_text())
    print(
        f"{_processor()}, {os.cpu_count()} cores, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"{N_RANKS} ranks, gloo, FSDP2; medians of {arguments.rounds * STEPS_A_TURN} steps"
    )
    ratios = [_compare(*case, found) for case, found in zip(cases, results, strict=True)]
    print("GPU: not run")
    return int(max(ratios) > 1)


if __name__ == "__main__":
    sys.exit(main())
