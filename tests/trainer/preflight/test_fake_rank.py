"""Preflight: one rank on fake tensors finds what real ranks hold, need and send, and what would go wrong.

What is held (parameters, gradients, optimiser) is exact. The peak is compared with that of torch's own memory tracker
around real steps on real ranks (seen: to the byte, but for what is still being sent; allowed 1 %).
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import RecordError
from sweep.core.records.preflight_record import MEMORY_KINDS, Preflight, Traffic
from tests.trainer.cells import cell, write_cell
from tests.trainer.models import EVEN
from tests.trainer.preflights import SERVED, examine
from tests.trainer.processes import ROOT, alone, torchrun

pytestmark = pytest.mark.slow

DRIVER = ROOT / "tests" / "trainer" / "programs" / "measured_memory.py"
PEAK_TOLERANCE = 0.01


def _examine_after_a_whole_step(made: Cell, rank: int) -> Preflight:
    from trainer.preflight import fake_rank as preflight

    preflight._first_backward = lambda cell, model, tokens, tracker: model.run(tokens)
    return preflight.examine(made, rank=rank, is_cuda=True)


def even(layout: Parallelism, **changes: object) -> Cell:
    values = {"model": EVEN, "seq_len": 64, "micro_batch": 1, **changes}
    return cell(gpus=layout.world_size, parallelism=layout, **values)


TWO = {
    "fsdp": even(Parallelism(dp_shard=2), micro_batch=4),
    "fsdp accumulated": even(Parallelism(dp_shard=2)),
    "fsdp bf16 resharded checkpointed": even(
        Parallelism(dp_shard=2),
        precision=Precision.BF16,
        reshard_after_forward=True,
        activation_checkpointing=Checkpointing.FULL,
    ),
    "tp": even(Parallelism(tp=2)),
    "cp": even(Parallelism(cp=2), micro_batch=4),
    "pp": even(Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B)),
    "ddp": even(Parallelism(dp_replicate=2)),
}


@pytest.mark.torchrun
def test_what_two_real_ranks_hold_and_send_is_found_exactly_and_their_peak_nearly(tmp_path: Path) -> None:
    given, out = tmp_path / "cells.json", tmp_path / "out.json"
    given.write_text(json.dumps({name: plain(made) for name, made in TWO.items()}))
    done = torchrun(2, str(DRIVER), str(given), str(out), TORCH_FR_BUFFER_SIZE="20000")
    assert done.returncode == 0, done.stderr
    for rank, measured in enumerate(json.loads(out.read_text())):
        for name, made in TWO.items():
            found, real = examine(made, rank=rank), measured[name]
            assert found.problem == "", name
            assert found.state_by_kind == {kind: real[kind] for kind in found.state_by_kind}, (name, rank)
            assert found.peak_memory_bytes == pytest.approx(real["peak"], rel=PEAK_TOLERANCE), (name, rank)
            assert_sent(found, real["sent"], name)


def assert_sent(found: Preflight, recorded: dict[str, list[int]], name: str) -> None:
    """Compare a step's collectives with what torch's flight recorder saw of a real one; it does not see p2p on gloo."""
    reduced = [item for item in found.collectives if item.op in ("all_reduce", "reduce_scatter")]
    gathered = [item for item in found.collectives if item.op == "all_gather"]
    # gloo scatters by reducing everything; FSDP's gradients are exchanged there
    # (trainer/parallel/data_parallel.py).
    exchanged = recorded.get("all_to_all", [0, 0])
    assert (exchanged[0] > 0) == (name.startswith("fsdp") or name == "cp"), name
    really = [sum(pair) for pair in zip(recorded["all_reduce"], exchanged, strict=True)]
    assert [sum(item.count for item in reduced), sum(item.bytes for item in reduced)] == really, name
    n_gathers, n_bytes = recorded.get("all_gather", [0, 0])
    assert sum(item.count for item in gathered) == n_gathers, name
    if name.startswith("fsdp"):
        # Of a gather into a list, as tp and cp make it, the recorder keeps the size of one part.
        assert sum(item.bytes for item in gathered) == n_bytes, name


LAYOUTS = {
    "one process": Parallelism(),
    "hsdp": Parallelism(dp_replicate=2, dp_shard=2),
    "replicas of tp": Parallelism(dp_replicate=2, tp=2),
    "fsdp x tp without sequence parallelism": Parallelism(dp_shard=2, tp=2, sequence_parallel=False),
    "gpipe": Parallelism(pp=4, schedule=Schedule.GPIPE),
    "interleaved": Parallelism(pp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2),
    "zbv": Parallelism(pp=2, schedule=Schedule.ZBV, virtual_stages=2),
    "interleaved zero-bubble": Parallelism(pp=2, schedule=Schedule.INTERLEAVED_ZERO_BUBBLE, virtual_stages=2),
    "four dimensions": Parallelism(dp_shard=2, tp=2, pp=2, cp=2, schedule=Schedule.ONE_F_ONE_B),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_can_be_examined(name: str) -> None:
    made = even(LAYOUTS[name])
    found = examine(made, rank=made.gpus - 1, is_cuda=True)
    assert found.problem == ""
    assert found.peak_memory_bytes == sum(found.peak_by_kind.values())
    assert tuple(found.peak_by_kind) == MEMORY_KINDS
    assert all(item.group != "other" for item in found.collectives)


@pytest.mark.parametrize(
    "made",
    [
        TWO["fsdp accumulated"],
        even(LAYOUTS["interleaved"]),
        even(LAYOUTS["four dimensions"], activation_checkpointing=Checkpointing.FULL),
    ],
    ids=["accumulated", "interleaved", "four dimensions"],
)
def test_a_step_after_a_short_first_one_is_that_after_a_whole_one(made: Cell) -> None:
    with SERVED.Pool(1) as pool:
        whole = pool.apply(_examine_after_a_whole_step, (made, made.gpus - 1))
    short = examine(made, rank=made.gpus - 1, is_cuda=True)
    assert short.problem == ""
    assert dataclasses.replace(short, time_s=None) == dataclasses.replace(whole, time_s=None)


def traffic_of(made: Cell, *, rank: int = 0) -> dict[tuple[str, str], Traffic]:
    return {(item.op, item.group): item for item in examine(made, rank=rank).collectives}


def test_fsdp_gathers_and_scatters_each_group_of_parameters_once_a_step() -> None:
    made = dataclasses.replace(even(Parallelism(dp_shard=8)), nodes=2, gpus_per_node=4)
    found = traffic_of(made)
    n_groups = EVEN.n_layers + 2
    n_bytes = 4 * EVEN.n_params
    shard = {"group": "dp_shard", "ranks": 8, "nodes": 2}
    assert found["all_gather", "dp_shard"] == Traffic(op="all_gather", **shard, count=n_groups, bytes=n_bytes)
    assert found["reduce_scatter", "dp_shard"] == Traffic(op="reduce_scatter", **shard, count=n_groups, bytes=n_bytes)
    assert found["all_reduce", "dp_shard"].bytes == 4
    assert len(found) == 3


def test_resharding_gathers_the_blocks_once_more() -> None:
    made = even(Parallelism(dp_shard=8), reshard_after_forward=True)
    # All groups in the forward pass; in the backward pass all but those that stay gathered: norm and head.
    assert traffic_of(made)["all_gather", "dp_shard"].count == (EVEN.n_layers + 2) + (EVEN.n_layers + 1)


def test_a_pipeline_sends_one_activation_a_micro_batch_each_way() -> None:
    made = even(Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B))
    sent = 8 * 64 * EVEN.hidden * 4
    for rank in (0, 1):
        found = traffic_of(made, rank=rank)
        assert (found["send", "pp"].count, found["send", "pp"].bytes) == (8, sent)
        assert (found["recv", "pp"].count, found["recv", "pp"].bytes) == (8, sent)


def test_ranks_without_resharding_hold_what_they_gathered_at_the_peak() -> None:
    kept, freed = (
        examine(even(Parallelism(dp_shard=8), reshard_after_forward=is_freed)).peak_by_kind["gathered_parameters"]
        for is_freed in (False, True)
    )
    assert kept == 4 * EVEN.n_params
    assert 0 < freed < kept


def test_checkpointing_needs_less_for_activations() -> None:
    one, two = (
        examine(even(Parallelism(dp_shard=2), micro_batch=4, activation_checkpointing=mode)).peak_memory_bytes
        for mode in (Checkpointing.NONE, Checkpointing.FULL)
    )
    assert one is not None
    assert two is not None
    assert two < 0.7 * one


# Bytes that a bf16 block keeps for its backward pass, by token, on a GPU. D hidden, K width of keys, F feed-forward
# width, H heads. With tensor and sequence parallelism what flows between the layers is split over the sequence and
# gathered for the projections.
D, K, F, H = EVEN.hidden, EVEN.kv_hidden, EVEN.ffn_hidden, EVEN.n_heads
NORMS = 2 * (2 * D + 4)  # both inputs, both rstd
GATHERED = 2 * (2 * D)  # both results, which the projections read
ATTENTION = 2 * (D + 2 * K + D) + 4 * H  # q, k, v, the result (which the last projection reads too), its log-sum-exp
FFN = 2 * (4 * F)  # gate, its silu, up, the product of both
KEPT = {
    "all": (Parallelism(dp_shard=2), Checkpointing.NONE, NORMS + GATHERED + ATTENTION + FFN),
    "all under tp": (Parallelism(tp=2), Checkpointing.NONE, GATHERED + (NORMS + ATTENTION + FFN) // 2),
    "its input": (Parallelism(dp_shard=2), Checkpointing.FULL, 2 * D),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_bf16_block_on_a_gpu_keeps_what_its_operations_keep_there(name: str) -> None:
    layout, checkpointing, bytes_by_token = KEPT[name]
    n_tokens = 8 * 64
    by_layers = []
    for n_layers in (4, 5):
        made = even(
            layout,
            model=dataclasses.replace(EVEN, n_layers=n_layers),
            global_batch=8 * layout.data_ranks,
            micro_batch=8,
            precision=Precision.BF16,
            activation_checkpointing=checkpointing,
        )
        by_layers.append(examine(made, is_cuda=True).peak_by_kind)
    kept = {kind: by_layers[1][kind] - by_layers[0][kind] for kind in ("activations", "temporary", "communication")}
    # Without FSDP a layer also keeps the bf16 form of its weights: of two norms, which fill a block of CUDA's allocator
    # each, and of this rank's half of the matrices.
    weights = 0 if layout.tp == 1 else 2 * 512 + 2 * (2 * D * D + 2 * D * K + 3 * D * F) // 2
    assert kept == {"activations": n_tokens * bytes_by_token + weights, "temporary": 0, "communication": 0}


@pytest.mark.parametrize(
    ("precision", "cp", "expected"),
    [
        (Precision.BF16, 2, "cp: gathered keys and values stand in for ring attention"),
        (Precision.FP32, 2, "attention: for grouped heads in fp32 CUDA is given keys and values repeated"),
        (Precision.FP16, 1, "attention: for grouped heads in fp16 CUDA before sm80 is given keys and values repeated"),
    ],
)
def test_what_attention_is_on_a_gpu_and_not_here_is_noted(precision: Precision, cp: int, expected: str) -> None:
    made = even(Parallelism(dp_shard=2 // cp, cp=cp), precision=precision)
    assert any(note.startswith(expected) for note in examine(made, is_cuda=True).notes)
    assert not any(note.startswith(expected) for note in examine(made).notes)


def test_a_peak_that_a_stand_in_raises_is_reported_to_be_at_most_that() -> None:
    assert not examine(even(Parallelism(dp_shard=2), precision=Precision.BF16), is_cuda=True).is_overstated
    assert examine(even(Parallelism(dp_shard=2), compile=True), is_cuda=True).is_overstated


@pytest.mark.parametrize("pp", [1, 2])
def test_what_torch_refuses_is_a_problem_and_no_exception(pp: int) -> None:
    # The rule book would not let it through: 4 heads over 8 ranks.
    found = examine(even(Parallelism(tp=8, pp=pp, schedule=Schedule.GPIPE if pp > 1 else None)))
    assert found.problem.startswith("RuntimeError: unflatten: ")
    assert "\n" not in found.problem
    assert (found.peak_memory_bytes, found.collectives) == (None, ())


def test_thousands_of_ranks_are_one_process() -> None:
    made = dataclasses.replace(even(Parallelism(dp_shard=2048), global_batch=2048), nodes=256, gpus_per_node=8)
    found = examine(made, rank=2047)
    assert (found.problem, found.world_size) == ("", 2048)


def test_a_record_reads_back_as_it_was_written() -> None:
    found = examine(TWO["fsdp"], rank=1)
    assert Preflight.parse(found.render()) == found
    with pytest.raises(RecordError):
        Preflight.parse(found.render().replace('"rank": 1', '"rank": "one"'))


def test_the_command_line_prints_the_record_of_a_cell_that_can_run(tmp_path: Path) -> None:
    path = write_cell(tmp_path, even(Parallelism(dp_shard=2, tp=2)))
    done = alone("--preflight", "--cell", str(path), "--rank", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = Preflight.parse(done.stdout)
    assert (found.rank, found.world_size, found.problem) == (1, 4, "")
    examined = alone("--preflight", "--cell", str(path))
    assert (examined.returncode, examined.stderr) == (0, "")
    assert "rank 0 of 4: can run" in examined.stdout
    assert "over tp (2 ranks on 1 node)" in examined.stdout
    assert {item.name for item in tmp_path.iterdir()} == {"cell.json"}


def test_a_cell_that_cannot_run_ends_with_2_and_one_line(tmp_path: Path) -> None:
    path = write_cell(tmp_path, even(Parallelism(tp=8)))
    done = alone("--preflight", "--cell", str(path), "--json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "[heads_by_tp]" in done.stderr
    assert "[heads_by_tp]" in Preflight.parse(done.stdout).problem


def test_a_cell_that_does_not_fit_on_its_device_ends_with_2_and_names_need_and_device(tmp_path: Path) -> None:
    wide = ModelShape(
        name="wide", n_layers=2, hidden=4096, n_heads=32, n_kv_heads=8, ffn_hidden=14336, vocab_size=32000
    )
    made = even(Parallelism(dp_shard=2, tp=2), model=wide)
    path = write_cell(tmp_path, made, Device(name="small", type="cpu", memory_gib=2))
    done = alone("--preflight", "--cell", str(path))
    assert done.returncode == 2
    assert "rank 0 of 4: can be built, and does not fit on its device" in done.stdout
    assert re.fullmatch(
        r"trainer: refused: the tensors of rank 0 alone peak at [3-9]\.\d GiB; small has 2 GiB\n", done.stderr
    )
    assert Preflight.parse(alone("--preflight", "--cell", str(path), "--json").stdout).problem == ""


def test_a_rank_that_the_cell_does_not_have_is_refused(tmp_path: Path) -> None:
    path = write_cell(tmp_path, TWO["tp"])
    done = alone("--preflight", "--cell", str(path), "--rank", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ranks 0 to 1" in done.stderr
