"""Torch's ring attention on real ranks, with CUDA's kernel emulated: outputs and gradients of attention to all."""

from __future__ import annotations

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

from sweep.core.model import ModelShape
from tests.trainer.emulated_flash import ring_on_cpu
from trainer.context import Form, form_of, positions_of, split_attention
from trainer.model import build_on_meta

HEADS, HEAD_DIM, SEQ_LEN = 4, 8, 48


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "form"),
    [
        (torch.bfloat16, 128, (9, 0), Form.RING),
        (torch.float16, 64, (8, 0), Form.RING),
        (torch.float16, 64, (7, 0), Form.GATHERED),
        (torch.bfloat16, 64, (7, 5), Form.GATHERED),
        (torch.float32, 64, (9, 0), Form.GATHERED),
        (torch.bfloat16, 160, (9, 0), Form.GATHERED),
        (torch.bfloat16, 20, (9, 0), Form.GATHERED),
        (torch.bfloat16, 64, None, Form.GATHERED),
    ],
)
def test_the_ring_is_used_where_its_kernels_run(
    dtype: torch.dtype, head_dim: int, capability: tuple[int, int] | None, form: Form
) -> None:
    assert form_of(dtype, head_dim, capability) is form


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
    told = split_attention(model, mesh, torch.device("cpu"), torch.float32, rotate=rotate)
    assert told == {"attention": "ring", "rotate": rotate}
    *inputs, weights = (part[:, :, positions_of(SEQ_LEN, degree, rank)] for part in attention_inputs(n_kv_heads))
    leaves = [part.clone().requires_grad_() for part in inputs]
    with CommDebugMode() as seen:
        out = model.blocks["0"].get_submodule("attention.inner")(*leaves)
        (out * weights).sum().backward()
    # Gradients always go from neighbour to neighbour.
    moved, n_gathers = 2 * (degree - 1), 0
    if rotate == "allgather":
        moved, n_gathers = 0, 2
    assert sum(count for op, count in seen.get_comm_counts().items() if "gather" in str(op)) == n_gathers
    assert sum(count for op, count in seen.get_comm_counts().items() if "to_all" in str(op)) == moved + degree
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


CASES = [(n_kv_heads, rotate) for n_kv_heads in (4, 2) for rotate in ("alltoall", "allgather")]


def work(rank: int, degree: int, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=degree)
        with ring_on_cpu():
            pipe.send([[part.tolist() for part in around(rank, degree, *case)] for case in CASES])
        dist.destroy_process_group()
    except BaseException:
        pipe.send(traceback.format_exc())


@pytest.mark.parametrize("degree", [2, 4])
def test_around_the_ring_each_rank_attends_as_one_process_does(degree: int, tmp_path: Path) -> None:
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
