"""Every cell that breaks no rule can be built and stepped by the trainer, on any of its ranks.

The ranks are fake: on torch's fake process group collectives return at once with the present content of their buffers.
So these tests check shapes, schedules and placements, at any number of ranks; numbers are compared on
real ranks (:mod:`tests.trainer.parallel.test_layouts`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import view_to_reshape
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.testing._internal.distributed.fake_pg import FakeStore

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.rules import violations
from sweep.core.cells.trainer_settings import TrainerSettings
from trainer.device import devices
from trainer.failure.error_report import RankProgress
from trainer.model import blocks, mxfp8
from trainer.parallel import parallelize
from trainer.parallel.mesh import build_mesh
from trainer.process.ranks import Ranks
from trainer.training import session

pytestmark = pytest.mark.slow

SETTINGS = TrainerSettings(steps=2, warmup_steps=1)
DEGREES = st.sampled_from((1, 1, 2, 2, 3, 4))


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    """Cells that mostly run: sizes are made to divide, apart from a few."""
    layout = Parallelism(
        dp_replicate=draw(st.sampled_from((1, 1, 2))),
        dp_shard=draw(DEGREES),
        tp=draw(DEGREES),
        pp=draw(DEGREES),
        cp=draw(st.sampled_from((1, 1, 2, 4))),
        sequence_parallel=draw(st.booleans()),
    )
    if layout.pp > 1:
        schedule = draw(st.sampled_from(Schedule))
        stages = {Schedule.GPIPE: 1, Schedule.ONE_F_ONE_B: 1, Schedule.ZBV: 2}.get(schedule, draw(st.integers(2, 3)))
        layout = dataclasses.replace(layout, schedule=schedule, virtual_stages=stages)
    kv_heads = layout.tp * draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 2))
    model = ModelShape(
        name="drawn",
        n_layers=draw(st.integers(1, 4)) + layout.pp * layout.virtual_stages - draw(st.integers(0, 1)),
        hidden=heads * draw(st.sampled_from((2, 4))),
        n_heads=heads,
        n_kv_heads=kv_heads,
        ffn_hidden=layout.tp * draw(st.integers(1, 9)) + draw(st.sampled_from((0, 0, 0, 1))),
        vocab_size=layout.tp * draw(st.integers(1, 9)),
    )
    micro_batch = draw(st.integers(1, 2))
    n_micro_batches = draw(st.integers(1, 3)) * (layout.pp if draw(st.booleans()) else 1)
    return Cell(
        model=model,
        device="cpu",
        nodes=1,
        gpus_per_node=layout.world_size,
        parallelism=layout,
        global_batch=micro_batch * n_micro_batches * layout.data_ranks,
        micro_batch=micro_batch,
        seq_len=draw(st.integers(1, 3)) * 2 * layout.cp * layout.tp + draw(st.sampled_from((0, 0, 0, 1))),
        precision=draw(st.sampled_from((Precision.FP32, Precision.BF16))),
        compile=draw(st.sampled_from((False, False, False, False, True))),
        activation_checkpointing=draw(st.sampled_from(Checkpointing)),
        reshard_after_forward=draw(st.booleans()),
        trainer=dataclasses.replace(
            SETTINGS, forward_prefetch=draw(st.integers(0, 3)), backward_prefetch=draw(st.integers(0, 3))
        ),
    )


@contextmanager
def fake_ranks(rank: int, world_size: int) -> Iterator[None]:
    if world_size == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def agree_on_stated_shapes(schedule: Any, stages: list[Any], *args: object) -> None:
    """Let stages use static shapes: fake neighbours would vote no."""
    for stage in stages:
        assert not InferenceMode.needs_dynamic(stage._user_meta, True)
        stage._inference_mode = InferenceMode.STATIC


def step(cell: Cell, rank: int) -> tuple[list[float] | None, list[float]]:
    compute = devices.CpuCompute()
    ranks = Ranks(rank=rank, world_size=cell.gpus)
    with fake_ranks(rank, cell.gpus):
        model = session.build(cell, compute, ranks)
        measurements = session.fit(cell, ranks, compute, model, session.DeviceMonitor(compute, RankProgress()), None)
    return measurements.losses, measurements.grad_norms


def apart(doing: Callable[[], object]) -> Any:
    """Call a function in a child process: DTensor caches facts of a mesh that are true of one rank only."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # With one thread no parallel region waits for threads that a fork does not copy.
        torch.set_num_threads(1)
        try:
            found: object = (doing(),)
        except BaseException:
            found = traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    found = pickle.loads(answer)
    assert isinstance(found, tuple), found
    return found[0]


@pytest.fixture(autouse=True)
def stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_PipelineSchedule, "_warmup_p2p", agree_on_stated_shapes)
    # As far as inductor's input, which is where torch gives up on what it cannot compile.
    monkeypatch.setattr(blocks, "BACKEND", "aot_eager")


SEARCH = settings(
    derandomize=True,
    # A failing cell is printed as it was drawn: to shrink it takes minutes.
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)


@settings(SEARCH, max_examples=40)
@given(cell=cells(), data=st.data())
def test_a_cell_that_breaks_no_rule_is_built_and_stepped(cell: Cell, data: st.DataObject) -> None:
    assume(not violations(cell))
    # DDP's reducer needs more of a process group than the fake one does; test_layouts runs it.
    assume(cell.gpus == 1 or cell.parallelism.dp_replicate < cell.gpus)
    rank = data.draw(st.integers(0, cell.gpus - 1))
    note(f"rank {rank} of {cell.gpus}")
    losses, norms = apart(lambda: step(cell, rank))
    assert len(norms) == 2
    assert (losses is None) == (not holds_last_stage(cell, rank))


@settings(SEARCH, max_examples=12)
@given(
    cell=cells(),
    precision=st.sampled_from((Precision.FLOAT8, Precision.MXFP8, Precision.FP16)),
    recipe=st.sampled_from(("tensorwise", "rowwise")),
    data=st.data(),
)
def test_a_cell_of_a_narrow_format_that_breaks_no_rule_is_built_and_stepped(
    cell: Cell, precision: Precision, recipe: str, data: st.DataObject
) -> None:
    pytest.importorskip(mxfp8.MODULE)
    model = cell.model
    wide = dataclasses.replace(model, hidden=32 * model.n_heads, ffn_hidden=32 * model.ffn_hidden)
    trainer = dataclasses.replace(cell.trainer, float8_recipe=recipe)
    # The name of a GPU, so that the rules do not think of a CPU; it is emulated all the same.
    changes = {"device": "b200-180gb", "model": wide, "seq_len": 32 * cell.seq_len, "trainer": trainer}
    narrow = dataclasses.replace(cell, precision=precision, **changes)  # type: ignore[arg-type]  # a cell's fields
    assume(not violations(narrow))
    assume(cell.gpus == 1 or cell.parallelism.dp_replicate < cell.gpus)
    rank = data.draw(st.integers(0, cell.gpus - 1))
    note(f"rank {rank} of {cell.gpus}")
    assert len(apart(lambda: step(narrow, rank))[1]) == 2


def holds_last_stage(cell: Cell, rank: int) -> bool:
    pp_rank = rank // (cell.gpus // cell.parallelism.pp)
    return pp_rank == (0 if cell.parallelism.schedule is Schedule.ZBV else cell.parallelism.pp - 1)


FOUR_DIMENSIONS = Cell(
    model=ModelShape(name="drawn", n_layers=3, hidden=16, n_heads=4, n_kv_heads=2, ffn_hidden=8, vocab_size=10),
    device="cpu",
    nodes=2,
    gpus_per_node=16,
    parallelism=Parallelism(dp_replicate=2, dp_shard=2, cp=2, tp=2, pp=2, schedule=Schedule.ONE_F_ONE_B),
    global_batch=8,
    micro_batch=1,
    seq_len=16,
    trainer=SETTINGS,
)


@pytest.mark.parametrize("rank", [0, 13, 31])
def test_all_dimensions_at_once_are_built_and_stepped(rank: int) -> None:
    assert not violations(FOUR_DIMENSIONS)
    losses, norms = apart(lambda: step(FOUR_DIMENSIONS, rank))
    assert len(norms) == 2
    assert (losses is not None) == (rank >= 16)


@pytest.mark.parametrize("checkpointing", Checkpointing)
@pytest.mark.parametrize("pp", [1, 2])
def test_compiled_blocks_are_built_and_stepped_with_each_checkpointing(pp: int, checkpointing: Checkpointing) -> None:
    made = dataclasses.replace(
        FOUR_DIMENSIONS,
        nodes=1,
        gpus_per_node=8 * pp,
        parallelism=Parallelism(
            dp_shard=2, cp=2, tp=2, pp=pp, schedule=Schedule.INTERLEAVED_1F1B if pp > 1 else None, virtual_stages=pp
        ),
        model=dataclasses.replace(FOUR_DIMENSIONS.model, n_layers=4),
        compile=True,
        activation_checkpointing=checkpointing,
    )
    assert not violations(made)
    assert len(apart(lambda: step(made, 8 * pp - 1))[1]) == 2


def test_a_rank_without_any_parameter_takes_part() -> None:
    # 64 shards of at most 16 rows.
    many = dataclasses.replace(
        FOUR_DIMENSIONS, nodes=1, gpus_per_node=64, parallelism=Parallelism(dp_shard=64), global_batch=64
    )
    assert len(apart(lambda: step(many, 63))[1]) == 2


def mesh_ranks(rank: int) -> dict[str, list[int]]:
    with fake_ranks(rank, 32):
        mesh = build_mesh(FOUR_DIMENSIONS.parallelism, 32, "cpu")
        parts = {name: getattr(mesh, name) for name in ("pp", "replicate", "shard", "cp", "tp")}
        assert mesh.model_group is not None
        groups = {name: part.get_group() for name, part in parts.items()} | {"model_group": mesh.model_group}
        return {name: dist.get_process_group_ranks(group) for name, group in groups.items()}


def test_mesh_dimensions_follow_the_stated_order() -> None:
    found = apart(lambda: mesh_ranks(0))
    assert found["tp"] == [0, 1]
    assert found["cp"] == [0, 2]
    assert found["shard"] == [0, 2, 4, 6]
    assert found["replicate"] == [0, 8]
    assert found["pp"] == [0, 16]
    # One copy of the model: all but the replicas.
    assert found["model_group"] == [*range(8), *range(16, 24)]


def test_mesh_dimensions_follow_the_stated_order_in_the_second_half_too() -> None:
    found = apart(lambda: mesh_ranks(29))
    assert found["tp"] == [28, 29]
    assert found["cp"] == [29, 31]
    assert found["shard"] == [25, 27, 29, 31]
    assert found["model_group"] == [*range(8, 16), *range(24, 32)]


STATED_ORDER = (
    "convert",
    "pipeline.keep_stage",
    "apply_tensor_parallel",
    "apply_context_parallel",
    "checkpoint_blocks",
    "compile_blocks",
    "shard_or_replicate",
    "materialize",
)


def order_of_application(cell: Cell) -> list[str]:
    applied: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in STATED_ORDER[:-1]:
            owner = parallelize.pipeline if "." in name else parallelize
            original = getattr(owner, name.rpartition(".")[2])

            def noted(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
                applied.append(_name)
                return _original(*args, **kwargs)

            stack.enter_context(mock.patch.object(owner, original.__name__, noted))
        stack.enter_context(fake_ranks(0, cell.gpus))
        mesh = build_mesh(cell.parallelism, cell.gpus, "cpu")
        parallelize.parallelize(
            cell, mesh, torch.device("cpu"), materialize=lambda *_, **__: applied.append("materialize")
        )
    return applied


def test_parallelism_is_applied_in_the_stated_order() -> None:
    made = dataclasses.replace(FOUR_DIMENSIONS, compile=True, activation_checkpointing=Checkpointing.SELECTIVE)
    assert apart(lambda: order_of_application(made)) == list(STATED_ORDER)


def overlapped(micro_batch: int) -> list[Counter[str]]:
    """Of a block's forward and backward graph, what inductor fuses for async tensor parallelism."""
    made = dataclasses.replace(
        FOUR_DIMENSIONS,
        nodes=1,
        gpus_per_node=4,
        parallelism=Parallelism(dp_shard=2, tp=2, async_tp=True),
        micro_batch=micro_batch,
        precision=Precision.BF16,
        compile=True,
    )
    found: list[Counter[str]] = []

    def fused(graph: torch.fx.GraphModule, _: object) -> Any:
        copied = copy.deepcopy(graph)
        for node, original in zip(copied.graph.nodes, graph.graph.nodes, strict=True):
            node.meta = dict(original.meta)
        view_to_reshape(copied)
        with mock.patch.object(dist, "is_nccl_available", return_value=True):
            micro_pipeline_tp_pass(copied.graph)
        found.append(Counter(str(node.target) for node in copied.graph.nodes if "symm_mem" in str(node.target)))
        return make_boxed_func(graph.forward)

    blocks.BACKEND = aot_autograd(
        fw_compiler=fused,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    step(made, 0)
    assert torch._inductor.config._micro_pipeline_tp
    return found


# What attention and the feed-forward read is gathered, and what they return is scattered, beside their products. Before
# a gradient is scattered, those of several products are summed: torch knows no form for that.
GATHERED, SCATTERED = "symm_mem.fused_all_gather_matmul.default", "symm_mem.fused_matmul_reduce_scatter.default"


@pytest.mark.parametrize(
    ("micro_batch", "forward", "backward"),
    [
        (2, {GATHERED: 2, SCATTERED: 2}, {GATHERED: 2}),
        # Torch 2.13 gathers one sequence without copying it together, which its own search for gathers does not know.
        (1, {SCATTERED: 2}, {}),
    ],
)
def test_async_tensor_parallelism_finds_what_to_overlap_in_a_block(
    micro_batch: int, forward: dict[str, int], backward: dict[str, int]
) -> None:
    assert apart(lambda: overlapped(micro_batch)) == [forward, backward]
