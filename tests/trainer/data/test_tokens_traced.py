"""A number can be traced to its tokens: the result says which file, and the fingerprint tells two files apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from sweep.core.cells.parallelism import Parallelism
from sweep.core.records.layout import RESULT_FILE
from sweep.core.records.result import Result
from tests.trainer.cells import write_cell
from tests.trainer.processes import alone, torchrun
from tests.trainer.tokens import NEEDED, counted, on
from trainer.data import tokens_file
from trainer.data.tokens_file import identify

pytestmark = pytest.mark.slow


def test_a_file_is_traced_by_the_hash_that_sha256sum_prints(tmp_path: Path) -> None:
    path = counted(tmp_path / "t.bin")
    assert identify(path) == {
        "path": str(path),
        "dtype": "uint16",
        "n_tokens": NEEDED,
        "n_bytes": 32 + 2 * NEEDED,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "hashed": "all",
    }
    np.save(tmp_path / "t.npy", np.arange(9, dtype="<u4"))
    found = identify(tmp_path / "t.npy")
    assert (found["dtype"], found["n_tokens"], found["hashed"]) == ("uint32", 9, "all")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_file, "HASHED_WHOLE_BYTES", 1000)
    monkeypatch.setattr(tokens_file, "N_HASHED_PIECES", 4)
    monkeypatch.setattr(tokens_file, "HASHED_PIECE_BYTES", 64)


@pytest.mark.usefixtures("small_pieces")
def test_of_a_huge_file_its_size_and_pieces_from_begin_to_end_are_hashed(tmp_path: Path) -> None:
    path = counted(tmp_path / "t.bin")
    content = path.read_bytes()
    last = len(content) - 64
    picked = b"".join(content[at : at + 64] for at in (0, last // 3, 2 * last // 3, last))
    found = identify(path)
    assert found["hashed"] == "the size, and 4 pieces of 64 bytes evenly from the first byte to the last"
    assert found["sha256"] == hashlib.sha256(str(len(content)).encode() + picked).hexdigest()


@pytest.mark.parametrize("at", [40, -1])
@pytest.mark.usefixtures("small_pieces")
def test_a_change_at_either_end_of_a_huge_file_is_seen(at: int, tmp_path: Path) -> None:
    path = counted(tmp_path / "t.bin")
    before, content = identify(path)["sha256"], bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert identify(path)["sha256"] != before


@pytest.mark.torchrun
def test_a_result_names_its_tokens_and_other_tokens_are_another_fingerprint(tmp_path: Path) -> None:
    found: dict[str, Result] = {}
    path = tmp_path / "t.bin"
    for name, n_tokens, n_ranks in (("first", NEEDED, 1), ("again", NEEDED, 2), ("longer", NEEDED + 1, 1)):
        counted(path, n_tokens)
        made = on(path, steps=2)
        folder = tmp_path / name
        file = write_cell(folder, made)
        if n_ranks == 1:
            done = alone("--cell", str(file), "--out", str(folder))
        else:
            shared = dataclasses.replace(made, gpus_per_node=2, micro_batch=4, parallelism=Parallelism(dp_replicate=2))
            file = write_cell(folder, shared)
            done = torchrun(2, "-m", "trainer", "--cell", str(file), "--out", str(folder))
        assert done.returncode == 0, done.stderr
        found[name] = Result.parse((folder / RESULT_FILE).read_text())
        assert found[name].extra["data"] == json.loads(json.dumps(identify(path)))
        assert found[name].fingerprint_fields["data"] == f"sha256:{identify(path)['sha256']}"
    assert found["first"].fingerprint == found["again"].fingerprint != found["longer"].fingerprint


def test_a_preflight_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    for n_tokens, words in ((NEEDED, ""), (NEEDED - 1, f"has {NEEDED - 1} tokens; 5 steps of 8 x 32 need {NEEDED}")):
        folder = tmp_path / str(n_tokens)
        folder.mkdir()
        file = write_cell(folder, on(counted(folder / "t.bin", n_tokens)))
        done = alone("--preflight", "--cell", str(file), "--json")
        assert done.returncode == (2 if words else 0), done.stderr
        assert words in json.loads(done.stdout)["problem"]
        assert bool(words) == bool(json.loads(done.stdout)["problem"])
