"""Our trainer's step against a plain FSDP2 loop over transformers' Llama, and torchtitan's, alike in all settings.

In one run all ranks build the models from one shape and the same weights, then take steps in turn: some of ours, some
of each other's, and so on, so that whatever else the machine does meets all alike. Compared are the medians over all
steps, each the slowest rank's, by the clock (on GPUs by events in the device's queue) and by the host's processor time,
which on a busy machine disturbs less; that the losses agree shows that all do the same work. The plain loop is what one
would write today: fully_shard per block and around all, bf16 with fp32 reduction, parameters kept after the forward
pass, fused AdamW, gradient clipping, scaled dot-product attention, loss in fp32. torchtitan takes part where a checkout
of its release 0.2.2 is named, with what it needs installed; at one rank it uses autocast, as its own trainer does. All
are given our synthetic tokens.

With GPUs: one rank for each that is visible, NCCL, shapes worth a GPU. Without: two ranks on gloo.

python benchmarks/trainer_vs_plain_fsdp2.py [--shape NAME] [--precision fp32|bf16] [--compile] [--rounds N] [--ranks N]
  [--torchtitan PATH]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loops import ours, plain, titan

from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

STEPS_A_TURN = 4
RANKS_ON_CPU = 2
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama and what one rank is given in a step."""

    model: ModelShape
    seq_len: int = 128
    sequences: int = 2


SMALL = ModelShape(name="small", n_layers=4, hidden=256, n_heads=4, n_kv_heads=2, ffn_hidden=704, vocab_size=4096)
LLAMA_3_1B = ModelShape(
    name="1b", n_layers=16, hidden=2048, n_heads=32, n_kv_heads=8, ffn_hidden=8192, vocab_size=128_256
)
LLAMA_3_8B = ModelShape(
    name="8b-layers", n_layers=8, hidden=4096, n_heads=32, n_kv_heads=8, ffn_hidden=14_336, vocab_size=128_256
)
# On a CPU: a small one, one with a vocabulary as real models have it, one with longer sequences.
CPU_SHAPES = {
    "small": Shape(model=SMALL),
    "vocabulary": Shape(model=replace(SMALL, name="vocabulary", vocab_size=32_000)),
    "long": Shape(model=SMALL, seq_len=512),
}
# On GPUs: the width of Llama 3.2 1B (its embedding not tied), and eight layers of Llama 3 8B.
GPU_SHAPES = {
    "1b": Shape(model=LLAMA_3_1B, seq_len=4096),
    "8b-layers": Shape(model=LLAMA_3_8B, seq_len=4096, sequences=1),
}
TINY = {
    "tiny": Shape(
        model=replace(SMALL, name="tiny", n_layers=2, hidden=32, ffn_hidden=48, vocab_size=64), seq_len=16
    )
}  # fmt: skip
SHAPES = {**CPU_SHAPES, **GPU_SHAPES, **TINY}


def _cell(name: str, precision: str, *, n_ranks: int, device_type: str, is_compiled: bool) -> Cell:
    shape = SHAPES[name]
    return Cell(
        model=shape.model,
        device="cpu" if device_type == "cpu" else "gpu",
        nodes=1,
        gpus_per_node=n_ranks,
        parallelism=Parallelism(dp_shard=n_ranks),
        global_batch=shape.sequences * n_ranks,
        micro_batch=shape.sequences,
        seq_len=shape.seq_len,
        precision=Precision(precision),
        compile=is_compiled,
        trainer=TrainerSettings(steps=10_000, warmup_steps=1, threads_per_rank=1),
    )


def _loops(cell: Any, rank: int, device: torch.device, checkout: Path | None) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"ours": ours.loop(cell, rank, device.index or 0, device.type)}
    others: dict[str, Any] = {"plain FSDP2": plain}
    if checkout is not None:
        others["torchtitan"] = titan
    for name, other in others.items():
        weights = {
            ours.renamed(part, other.NAMES, other.LAYERS): value
            for part, value in ours.starting_weights(cell, device).items()
        }
        if other is titan:
            found[name] = titan.loop(Path(str(checkout)), cell, weights, device)
        else:
            found[name] = plain.loop(cell, weights, device)
    return found


def _turn_on_host(step: Callable[..., Any], batches: Iterable[torch.Tensor]) -> tuple[list[list[float]], Any]:
    """Steps one by one; of each, seconds by the clock and of the processor."""
    import torch.distributed as dist

    times, loss = [], None
    for rows in batches:
        dist.barrier()
        began = time.perf_counter(), time.process_time()
        loss = step(rows)
        ended = time.perf_counter(), time.process_time()
        times.append([end - begin for begin, end in zip(began, ended, strict=True)])
    return times, loss


def _turn_on_gpu(step: Callable[..., Any], batches: Iterable[torch.Tensor]) -> tuple[list[list[float]], Any]:
    """Steps in the device's queue without waiting between them; the host's seconds are shared out evenly."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    began, loss = time.process_time(), None
    for rows in batches:
        loss = step(rows)
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    processor = (time.process_time() - began) / (len(marks) - 1)
    torch.cuda.synchronize()
    return [[one.elapsed_time(following) / 1e3, processor] for one, following in itertools.pairwise(marks)], loss


def _in_turn(cell: Any, rank: int, device: torch.device, rounds: int, checkout: Path | None) -> dict[str, Any]:
    """All models, steps in turn; of each step the slowest rank's seconds, by the clock and of its processor."""
    import torch
    import torch.distributed as dist

    from trainer.data.batches import Share, source_of, stream

    is_gpu = device.type == "cuda"
    turn_of = _turn_on_gpu if is_gpu else _turn_on_host
    share = Share.of(data_rank=rank, data_ranks=cell.gpus, global_batch=cell.global_batch)
    loops = _loops(cell, rank, device, checkout)
    tokens = {name: stream(source_of(cell), share, 10_000, pin=is_gpu) for name in loops}
    times: dict[str, list[list[float]]] = {name: [] for name in loops}
    losses: dict[str, float] = {}
    for turn in range(rounds + 1):
        # Which one is first alternates too.
        for name in sorted(loops, reverse=bool(turn % 2)):
            batches = [next(tokens[name]) for _ in range(STEPS_A_TURN)]
            gc.collect()
            gc.disable()
            seen, loss = turn_of(loops[name], batches)
            gc.enable()
            took = torch.tensor(seen, device=device)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            # The first turn connects, compiles, allocates and makes the optimiser's state.
            times[name] += took.tolist() if turn else []
            losses[name] = float(loss)
    return {"times": times, "losses": losses, "n_params": cell.model.n_params}


def _rank(arguments: argparse.Namespace, cases: list[tuple[str, str]], device_type: str) -> None:
    """One rank: all cases, one after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    checkout = None if titan.lacking(arguments.torchtitan) else arguments.torchtitan
    found = []
    for case in cases:
        cell = _cell(
            *case, n_ranks=dist.get_world_size(), device_type=device_type, is_compiled=arguments.compile
        )  # fmt: skip
        found.append(_in_turn(cell, dist.get_rank(), device, arguments.rounds, checkout))
        torch.compiler.reset()
        gc.collect()
        if device_type == "cuda":
            torch.cuda.empty_cache()
    if dist.get_rank() == 0:
        arguments.out.write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _machine(device_type: str, n_ranks: int) -> str:
    import torch

    if device_type == "cuda":
        return f"{n_ranks} x {torch.cuda.get_device_name(0)}, NCCL"
    return f"{_processor()}, {os.cpu_count()} cores; {n_ranks} ranks, gloo; no GPU"


def _compare(name: str, precision: str, found: dict[str, Any]) -> float:
    """Print one case; returns our time over that of the fastest other."""
    clock, processor = (
        {loop: [step[kind] for step in steps] for loop, steps in found["times"].items()} for kind in (0, 1)
    )
    mine, losses = statistics.median(clock["ours"]), found["losses"]
    print(
        f"{name} ({found['n_params'] / 1e6:.1f} M parameters, {SHAPES[name].seq_len} tokens) {precision}: ours takes "
        f"{mine * 1e3:.1f} ms a step; loss at the end {losses['ours']:.4f}"
    )
    ratios = []
    for other in sorted(clock.keys() - {"ours"}):
        theirs = statistics.median(clock[other])
        of_processor = statistics.median(processor["ours"]) / statistics.median(processor[other])
        wins = sum(a < b for a, b in zip(clock["ours"], clock[other], strict=True))
        print(
            f"  {other}: {theirs * 1e3:.1f} ms; ours takes {mine / theirs:.3f} of its time and {of_processor:.3f} of "
            f"its processor time; ahead in {wins} of {len(clock['ours'])} pairs; its loss {losses[other]:.4f}"
        )
        ratios.append(mine / theirs)
    return max(ratios)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    parser.add_argument("--compile", action="store_true", help="compile the blocks of all")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--ranks", type=int, help="default: the visible GPUs, or two on a CPU")
    parser.add_argument("--torchtitan", type=Path, default=os.environ.get("TORCHTITAN"), metavar="CHECKOUT")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print the ratios of the medians and what they were measured on; exit status 1 where ours is behind."""
    arguments = _arguments()
    import torch
    import transformers

    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = arguments.shape or (GPU_SHAPES if device_type == "cuda" else CPU_SHAPES)
    precisions = arguments.precision or (("bf16",) if device_type == "cuda" else PRECISIONS)
    cases = [(shape, precision) for shape in shapes for precision in precisions]
    if arguments.out is not None:
        _rank(arguments, cases, device_type)
    n_ranks = arguments.ranks or (torch.cuda.device_count() if device_type == "cuda" else RANKS_ON_CPU)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
        subprocess.run(
            [*agent, __file__, *sys.argv[1:], "--out", str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True
        )
        results = json.loads(out.read_text())
    print(
        f"{_machine(device_type, n_ranks)}; torch {torch.__version__}, transformers {transformers.__version__}; FSDP2, "
        f"{'compiled' if arguments.compile else 'not compiled'}; medians of {arguments.rounds * STEPS_A_TURN} steps"
    )
    ratios = [_compare(*case, found) for case, found in zip(cases, results, strict=True)]
    if reason := titan.lacking(arguments.torchtitan):
        print(reason)
    return int(max(ratios) > 1)


if __name__ == "__main__":
    sys.exit(main())
