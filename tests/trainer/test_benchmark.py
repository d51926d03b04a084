"""The benchmark of steps: what it makes of its arguments, and a tiny run on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.loops import ours, plain, titan
from tests.trainer.cells import UNEVEN
from tests.trainer.processes import ROOT, environment
from trainer.model.decoder import build_on_meta
from trainer.model.init import materialize

SCRIPT = ROOT / "benchmarks" / "trainer_vs_plain_fsdp2.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


@pytest.mark.torchrun
@pytest.mark.slow
def test_a_tiny_run_compares_both_loops_and_says_on_what_and_what_was_left_out() -> None:
    pytest.importorskip("transformers")
    done = run("--shape", "tiny", "--precision", "fp32", "--rounds", "1", "--ranks", "2", "--torchtitan", "/nowhere")
    # Who is faster in so little does not matter.
    assert done.returncode in (0, 1), done.stderr
    machine, mine, other, left_out = done.stdout.splitlines()
    assert "2 ranks, gloo; no GPU" in machine
    assert "medians of 4 steps" in machine
    assert mine.startswith("tiny (0.0 M parameters, 16 tokens) fp32: ours takes ")
    assert "plain FSDP2: " in other
    # Both do the same work.
    assert mine.rsplit(" ", 1)[1] == other.rsplit(" ", 1)[1]
    assert left_out == "torchtitan: not run; /nowhere is no checkout of its release 0.2.2"


def test_an_unknown_shape_is_refused() -> None:
    done = run("--shape", "huge")
    assert done.returncode == 2
    assert "invalid choice: 'huge'" in done.stderr


def test_torchtitan_takes_part_only_where_a_checkout_is_named(tmp_path: Path) -> None:
    assert "TORCHTITAN" in str(titan.lacking(None))
    assert f"{tmp_path} is no checkout" in str(titan.lacking(tmp_path))
    arguments = tmp_path / "torchtitan" / "models" / "llama3" / "model" / "args.py"
    arguments.parent.mkdir(parents=True)
    arguments.touch()
    assert titan.lacking(tmp_path) is None


@pytest.mark.parametrize(("hidden", "ffn_hidden"), [(256, 704), (2048, 8192), (4096, 14_336), (32, 48)])
def test_torchtitans_rule_gives_the_width_that_was_asked_for(hidden: int, ffn_hidden: int) -> None:
    found = titan.ffn_arguments(hidden, ffn_hidden)
    # torchtitan 0.2.2, models/llama3/model/model.py, FeedForward.
    width = int(found["ffn_dim_multiplier"] * int(2 * 4 * hidden / 3))
    assert found["multiple_of"] * -(-width // found["multiple_of"]) == ffn_hidden


def test_pairs_of_a_rotation_become_neighbours_in_each_head() -> None:
    rows = torch.arange(12).unsqueeze(-1)
    assert titan.interleaved(rows, 6).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


@pytest.mark.parametrize("other", [plain, titan], ids=["plain", "titan"])
def test_every_weight_has_a_name_in_the_other_models(other: object) -> None:
    model = build_on_meta(UNEVEN, 8)
    materialize(model, torch.device("cpu"), None, seed=1)
    ours_by_name = [name.removesuffix(".weight") for name, _ in model.named_parameters()]
    theirs = {ours.renamed(name, other.NAMES, other.LAYERS) for name in ours_by_name}  # type: ignore[attr-defined]
    assert len(theirs) == len(ours_by_name)
    assert any(name.startswith(f"{other.LAYERS}.2.") for name in theirs)  # type: ignore[attr-defined]
