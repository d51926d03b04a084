"""Attention over cp ranks by itself, on real ranks: torch's ring with CUDA's kernel emulated, and what is gathered."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from sweep.core.cells.model_shape import ModelShape
from tests.trainer.emulated_flash import ring_on_cpu
from trainer.model.decoder import CausalAttention, build_on_meta
from trainer.parallel.context_parallel import (
    AttentionForm,
    _apply_gathered,
    apply_context_parallel,
    choose_attention,
    positions_of,
    repeats_heads,
)

HEADS, HEAD_DIM, SEQ_LEN = 4, 8, 48


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "form"),
    [
        (torch.bfloat16, 128, (9, 0), AttentionForm.RING),
        (torch.float16, 64, (8, 0), AttentionForm.RING),
        (torch.float16, 64, (7, 0), AttentionForm.GATHERED),
        (torch.bfloat16, 64, (7, 5), AttentionForm.GATHERED),
        (torch.float32, 64, (9, 0), AttentionForm.GATHERED),
        (torch.bfloat16, 160, (9, 0), AttentionForm.GATHERED),
        (torch.bfloat16, 20, (9, 0), AttentionForm.GATHERED),
        (torch.bfloat16, 64, None, AttentionForm.GATHERED),
    ],
)
def test_the_ring_is_used_where_its_kernels_run(
    dtype: torch.dtype, head_dim: int, capability: tuple[int, int] | None, form: AttentionForm
) -> None:
    assert choose_attention(dtype, head_dim, capability) is form


@pytest.mark.parametrize(
    ("dtype", "capability", "expected"),
    [
        (torch.bfloat16, (9, 0), False),
        (torch.float32, (9, 0), True),
        (torch.float16, (7, 0), True),
        (torch.float16, (8, 0), False),
        (torch.float32, None, False),
    ],
)
def test_grouped_heads_are_repeated_where_no_kernel_knows_them(
    dtype: torch.dtype, capability: tuple[int, int] | None, expected: bool
) -> None:
    assert repeats_heads(dtype, capability) is expected


def test_repeated_heads_attend_as_grouped_ones_do() -> None:
    results = []
    for repeats in (False, True):
        attention = CausalAttention(is_grouped=True)
        attention.repeats_heads = repeats
        *leaves, weights = attention_inputs(2)
        out = attention(*(leaf.requires_grad_() for leaf in leaves))
        (out * weights).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=5e-6)


def attention_inputs(n_kv_heads: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(n_kv_heads)
    sizes = (HEADS, n_kv_heads, n_kv_heads, HEADS)
    return tuple(torch.randn(2, heads, SEQ_LEN, HEAD_DIM, generator=random) for heads in sizes)


def around(rank: int, degree: int, n_kv_heads: int, rotate: str) -> list[torch.Tensor]:
    """Output of this rank's positions, and gradients of its queries, keys and values."""
    shape = ModelShape(
        name="ring",
        n_layers=1,
        hidden=HEADS * HEAD_DIM,
        n_heads=HEADS,
        n_kv_heads=n_kv_heads,
        ffn_hidden=8,
        vocab_size=8,
    )
    model, mesh = build_on_meta(shape, SEQ_LEN), init_device_mesh("cpu", (degree,))
    if rotate in ("alltoall", "allgather"):
        chosen = apply_context_parallel(model, mesh, torch.device("cpu"), torch.float32, rotate=rotate)
        assert chosen == {"attention": "ring", "rotate": rotate}
    else:
        _apply_gathered(model, mesh, torch.device("cpu"), repeats_heads=rotate == "gathered, heads repeated")
    *inputs, weights = (part[:, :, positions_of(SEQ_LEN, degree, rank)] for part in attention_inputs(n_kv_heads))
    leaves = [part.clone().requires_grad_() for part in inputs]
    with CommDebugMode() as seen:
        out = model.blocks["0"].get_submodule("attention.inner")(*leaves)
        (out * weights).sum().backward()
    counts = seen.get_comm_counts().items()
    # Around the ring in both passes; gradients always go from neighbour to neighbour.
    n_gathers, n_turns = {"alltoall": (0, 3 * degree - 2), "allgather": (2, degree)}.get(rotate, (1, 0))
    assert sum(count for op, count in counts if "all_gather" in str(op)) == n_gathers
    assert sum(count for op, count in counts if "to_all" in str(op)) == n_turns
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


# How keys and values go round; or that they are gathered instead.
WAYS = ("alltoall", "allgather", "gathered", "gathered, heads repeated")
CASES = [(n_kv_heads, way) for n_kv_heads in (4, 2) for way in WAYS]


def work(rank: int, degree: int, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=degree)
        found = []
        for n_kv_heads, way in CASES:
            with contextlib.nullcontext() if way.startswith("gathered") else ring_on_cpu():
                found.append([part.tolist() for part in around(rank, degree, n_kv_heads, way)])
        pipe.send(found)
        dist.destroy_process_group()
    except BaseException:
        pipe.send(traceback.format_exc())


@pytest.mark.parametrize("degree", [2, 4])
def test_each_rank_attends_as_one_process_does_around_the_ring_and_over_what_is_gathered(
    degree: int, tmp_path: Path
) -> None:
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(degree)]
    ranks = [
        fork.Process(target=work, args=(rank, degree, tmp_path / "store", pipe)) for rank, (_, pipe) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    answers = [pipe.recv() if pipe.poll(60) else "no answer" for pipe, _ in pipes]
    for process in ranks:
        process.kill()
    for rank, found in enumerate(answers):
        assert isinstance(found, list), found
        positions = positions_of(SEQ_LEN, degree, rank)
        for (n_kv_heads, _), parts in zip(CASES, found, strict=True):
            *leaves, weights = attention_inputs(n_kv_heads)
            q, k, v = (leaf.requires_grad_() for leaf in leaves)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n_kv_heads != HEADS)
            (out * weights).sum().backward()
            for part, whole in zip(parts, (out, q.grad, k.grad, v.grad), strict=True):
                assert whole is not None
                torch.testing.assert_close(torch.tensor(part), whole[:, :, positions], rtol=1e-5, atol=5e-6)
