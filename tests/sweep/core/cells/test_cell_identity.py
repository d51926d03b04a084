from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, make_dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.cells.batch import BatchKind, BatchRule
from sweep.core.cells.cell import Cell, Checkpointing, Precision, cell_id
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.codec import build
from sweep.core.encoding.plain import canonical, plain

GOLDEN = Path(__file__).parents[3] / "golden" / "cell_ids.json"
LLAMA2_7B = ModelShape(
    name="llama2_7b", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=32, ffn_hidden=11008, vocab_size=32000
)
LLAMA3_8B = ModelShape(
    name="llama3_8b",
    n_layers=32,
    hidden=4096,
    n_heads=32,
    n_kv_heads=8,
    ffn_hidden=14336,
    vocab_size=128256,
    rope_theta=500000.0,
)
CELL = Cell(
    model=LLAMA2_7B,
    device="h100-80gb-sxm",
    nodes=1,
    gpus_per_node=8,
    parallelism=Parallelism(dp_shard=8),
    global_batch=16,
    micro_batch=2,
    seq_len=4096,
)
INTERLEAVED = Parallelism(
    dp_shard=4, tp=2, pp=2, cp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2, async_tp=True
)
CELLS = {
    "defaults": CELL,
    "four nodes": replace(CELL, nodes=4, parallelism=Parallelism(dp_shard=32), global_batch=64),
    "ddp": replace(CELL, parallelism=Parallelism(dp_replicate=8)),
    "grouped-query attention, another rope": replace(CELL, model=LLAMA3_8B, seq_len=8192),
    "fp32": replace(CELL, precision=Precision.FP32),
    "compiled": replace(CELL, compile=True),
    "full checkpointing": replace(CELL, activation_checkpointing=Checkpointing.FULL),
    "reshard after forward": replace(CELL, reshard_after_forward=True),
    "tp, pp, cp": replace(CELL, nodes=4, parallelism=INTERLEAVED, micro_batch=1),
    "no sequence parallelism": replace(CELL, parallelism=Parallelism(dp_shard=4, tp=2, sequence_parallel=False)),
    "another seed": replace(CELL, trainer=TrainerSettings(seed=7)),
    "short run": replace(CELL, trainer=TrainerSettings(steps=20, warmup_steps=5)),
    "learning rate": replace(CELL, trainer=TrainerSettings(lr=1e-4)),
    "small learning rate": replace(CELL, trainer=TrainerSettings(lr=1e-8, weight_decay=0.0)),
    "no clipping": replace(CELL, trainer=TrainerSettings(grad_clip=0.0, threads_per_rank=1, comm_timeout_s=30.5)),
    "a name that is not ASCII": replace(CELL, device='größe "x"'),
}


def test_the_golden_list_covers_every_cell_here() -> None:
    assert [entry["name"] for entry in json.loads(GOLDEN.read_text())] == list(CELLS)


@pytest.mark.parametrize("entry", json.loads(GOLDEN.read_text()), ids=lambda entry: entry["name"])
def test_an_id_never_changes_between_versions(entry: dict[str, str]) -> None:
    cell = CELLS[entry["name"]]
    assert canonical(cell) == entry["canonical"]
    assert cell_id(cell) == entry["cell_id"]


def test_different_cells_have_different_ids() -> None:
    assert len({cell_id(cell) for cell in CELLS.values()}) == len(CELLS)


def test_an_id_is_sixteen_hex_digits() -> None:
    assert len(cell_id(CELL)) == 16
    assert set(cell_id(CELL)) <= set("0123456789abcdef")


def test_fields_at_their_default_are_left_out() -> None:
    found = json.loads(canonical(CELL))
    assert "precision" not in found
    assert "trainer" not in found
    assert found["parallelism"] == {"dp_shard": 8}


def test_settings_spelled_out_at_their_defaults_are_the_same_cell() -> None:
    spelled = replace(CELL, trainer=TrainerSettings(steps=60, lr=3e-4), precision=Precision.BF16)
    assert cell_id(spelled) == cell_id(CELL)


def test_adding_a_field_with_a_default_keeps_the_text_and_changing_it_does_not() -> None:
    added = ("fused", bool, field(default=False))
    newer = make_dataclass(
        "NewerParallelism", [added], bases=(Parallelism,), frozen=True, kw_only=True, namespace={"__module__": __name__}
    )
    assert canonical(newer(dp_shard=8)) == canonical(Parallelism(dp_shard=8))
    assert canonical(newer(dp_shard=8, fused=True)) == '{"dp_shard":8,"fused":true}'


@pytest.mark.parametrize(
    ("written", "same"),
    [
        (TrainerSettings(lr=1), TrainerSettings(lr=1.0)),
        (TrainerSettings(weight_decay=-0.0), TrainerSettings(weight_decay=0.0)),
    ],
    ids=["int for float", "minus zero"],
)
def test_equal_settings_have_one_text_however_their_numbers_came_in(
    written: TrainerSettings, same: TrainerSettings
) -> None:
    assert canonical(written) == canonical(same)
    assert canonical(same) == canonical(written)


def test_texts_do_not_depend_on_which_of_two_equal_cells_came_first() -> None:
    @dataclass(frozen=True)
    class Part:
        value: float = 0.0

    assert [canonical(Part(value)) for value in (7, 7.0, True, 1.0, False)] == [
        '{"value":7.0}',
        '{"value":7.0}',
        '{"value":1.0}',
        '{"value":1.0}',
        "{}",
    ]


def test_very_many_values_of_a_field_do_not_fill_the_memory_and_stay_right() -> None:
    @dataclass(frozen=True)
    class Seed:
        seed: int = 0

    texts = [canonical(Seed(seed)) for seed in range(70_000)]
    assert (texts[0], texts[1], texts[-1], canonical(Seed(1))) == (
        "{}",
        '{"seed":1}',
        '{"seed":69999}',
        '{"seed":1}',
    )


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_survives_json(name: str) -> None:
    text = json.dumps(plain(CELLS[name]))
    back = build(Cell, json.loads(text), "cell")
    assert back == CELLS[name]
    assert cell_id(back) == cell_id(CELLS[name])


def test_json_of_a_cell_has_every_field_defaults_included() -> None:
    data = plain(CELL)
    assert set(data) == {item.name for item in fields(Cell)}
    assert set(data["trainer"]) == {item.name for item in fields(TrainerSettings)}  # type: ignore[call-overload]


@given(
    lr=st.floats(min_value=1e-12, max_value=10),
    seed=st.integers(min_value=0, max_value=2**63),
    steps=st.integers(min_value=11, max_value=10**6),
    precision=st.sampled_from(Precision),
    compile=st.booleans(),
    device=st.text(),
)
def test_any_cell_survives_json_with_its_id(
    lr: float, seed: int, steps: int, precision: Precision, compile: bool, device: str
) -> None:
    cell = replace(
        CELL,
        device=device,
        precision=precision,
        compile=compile,
        trainer=TrainerSettings(lr=lr, seed=seed, steps=steps),
    )
    back = build(Cell, json.loads(json.dumps(plain(cell))), "cell")
    assert (back, cell_id(back)) == (cell, cell_id(cell))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": "one"}, "cell.nodes='one' is not a whole number"),
        ({"nodes": 1.5}, "cell.nodes=1.5 is not a whole number"),
        ({"compile": 1}, "cell.compile=1 is not true or false"),
        ({"compile": "true"}, "cell.compile='true' is not true or false"),
        ({"precision": "bf17"}, "cell.precision='bf17' is not one of fp32, bf16"),
        ({"precision": ["bf16"]}, "is not one of fp32"),
        ({"model": "llama2_7b"}, "cell.model='llama2_7b' is not a mapping"),
        ({"parallelism": {"dp_shard": True}}, "cell.parallelism.dp_shard=True is not a whole number"),
        ({"parallelism": {"dp_shard": [8]}}, r"cell.parallelism.dp_shard=\[8\] is not a whole number"),
        ({"parallelism": {"tp_degree": 2}}, "unknown field.*tp_degree.*known are.*'tp'"),
        ({"trainer": {"lr": float("nan")}}, "trainer.lr=nan is not a finite number"),
        ({"nodes": 0}, "nodes=0 is not a positive integer"),
    ],
)
def test_a_damaged_cell_is_refused_and_the_field_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(Cell, {**plain(CELL), **change}, "cell")


def test_equal_parts_of_another_type_are_refused_even_where_the_right_one_was_seen_before() -> None:
    data = plain(CELL)
    assert build(Cell, data, "cell") == CELL
    layout = {**data["parallelism"], "async_tp": 0}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="async_tp=0 is not true or false"):
        build(Cell, {**data, "parallelism": layout}, "cell")


def test_a_missing_field_is_named() -> None:
    data = plain(CELL)
    del data["seq_len"]
    with pytest.raises(ValueError, match="seq_len"):
        build(Cell, data, "cell")


@pytest.mark.parametrize("data", [None, 5, "cell", [1]])
def test_what_is_no_mapping_is_no_cell(data: object) -> None:
    with pytest.raises(ValueError, match="is not a mapping"):
        build(Cell, data, "cell")


@pytest.mark.parametrize("name", ["nodes", "gpus_per_node", "global_batch", "micro_batch", "seq_len"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_sizes_of_a_cell_are_positive_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* is not a positive integer. Give a whole number"):
        replace(CELL, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dp_replicate", "dp_shard", "tp", "pp", "cp", "virtual_stages"])
def test_degrees_are_positive_whole_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is not a positive integer"):
        Parallelism(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "trainer.steps=0 is not a positive integer"),
        ({"steps": 10, "warmup_steps": 10}, "trainer.warmup_steps=10 leaves no measured step of trainer.steps=10"),
        ({"warmup_steps": -1}, "trainer.warmup_steps=-1"),
        ({"steps": 20.0}, "trainer.steps=20.0 is not a whole number"),
        ({"lr": 0.0}, "trainer.lr=0.0 is out of range. Give a number above 0"),
        ({"lr": float("inf")}, "trainer.lr=inf is not a finite number"),
        ({"eps": -1e-8}, "trainer.eps=-1e-08 is out of range"),
        ({"comm_timeout_s": 0}, "trainer.comm_timeout_s=0 is out of range"),
        ({"weight_decay": -0.1}, "trainer.weight_decay=-0.1 is out of range. Give 0 or more"),
        ({"grad_clip": -1.0}, "trainer.grad_clip"),
        ({"threads_per_rank": -1}, "trainer.threads_per_rank"),
        ({"seed": -1}, "trainer.seed"),
        ({"grad_clip": True}, "trainer.grad_clip=True is not a finite number"),
        ({"seed": 1.5}, "trainer.seed=1.5 is not a whole number"),
        ({"beta1": 1.0}, "trainer.beta1=1.0 is out of range. Give 0 or more, and less than 1"),
        ({"cp_rotate": "ring"}, "trainer.cp_rotate='ring' is not known. Give alltoall or allgather"),
        ({"beta2": -0.1}, "trainer.beta2"),
    ],
)
def test_trainer_settings_that_mean_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerSettings(**settings)  # type: ignore[arg-type]


def test_the_effective_local_batch_of_512_sequences_on_256_gpus_is_2_whatever_the_layout() -> None:
    # arXiv 2411.13055, section 4.3.
    for layout in (Parallelism(dp_shard=256), Parallelism(dp_shard=64, tp=4), Parallelism(dp_shard=32, tp=4, pp=2)):
        cell = replace(CELL, nodes=32, parallelism=layout, global_batch=512, micro_batch=1)
        assert cell.sequences_per_gpu == 2


def test_a_gpu_may_hold_less_than_one_sequence() -> None:
    cell = replace(CELL, parallelism=Parallelism(dp_shard=2, cp=4), global_batch=4)
    assert cell.sequences_per_gpu == Fraction(1, 2)
    assert cell.sequences_per_data_rank == 2


def test_gradient_accumulation_follows_from_the_micro_batch() -> None:
    cell = replace(CELL, parallelism=Parallelism(dp_shard=4, tp=2), global_batch=32, micro_batch=2)
    assert cell.sequences_per_data_rank == 8
    assert cell.grad_accum == 4
    assert cell.tokens_per_step == 32 * 4096


def test_context_parallel_ranks_share_their_sequences() -> None:
    layout = Parallelism(dp_replicate=2, dp_shard=2, cp=2)
    assert (layout.data_ranks, layout.world_size) == (4, 8)


def test_a_layout_shows_the_degrees_that_multiply() -> None:
    assert Parallelism(tp=8, pp=2).equation() == "tp=8 x pp=2"
    assert Parallelism().equation() == "dp_shard=1"


@pytest.mark.parametrize("value", [0, -1])
def test_a_batch_of_nothing_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"sequences_per_gpu=.* is not positive\. Give"):
        BatchRule(kind=BatchKind.SEQUENCES_PER_GPU, value=Fraction(value))
