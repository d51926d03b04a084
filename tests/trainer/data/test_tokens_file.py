"""Token files: made from text, mapped, the same batch for every layout, and refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.attempts.verdict import is_consequence
from sweep.core.cells.cell import cell_id
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.records.attempt_record import parse_error
from sweep.core.records.layout import ERROR_GLOB, RESULT_FILE
from sweep.core.records.progress import Step
from sweep.core.records.result import Result
from tests.trainer.cells import cell, write_cell
from tests.trainer.processes import ROOT, environment, torchrun
from tests.trainer.tokens import NEEDED, bin_file, counted, on
from trainer import tokenize
from trainer.data.batches import Share, source_of, stream
from trainer.data.tokens_file import HEADER, check, open_tokens
from trainer.process.refusal import Refusal


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_both_kinds_of_file_hold_the_same_tokens(dtype: str, tmp_path: Path) -> None:
    tokens = np.arange(1000) % 106
    np.save(tmp_path / "t.npy", tokens.astype(dtype))
    bin_file(tmp_path / "t.bin", tokens, dtype)
    assert np.array_equal(open_tokens(tmp_path / "t.npy"), tokens)
    assert np.array_equal(open_tokens(tmp_path / "t.bin"), tokens)


def test_files_are_mapped_and_not_read(tmp_path: Path) -> None:
    assert isinstance(open_tokens(counted(tmp_path / "t.bin")), np.memmap)


def test_shares_of_any_size_make_up_consecutive_sequences_of_the_file(tmp_path: Path) -> None:
    source = source_of(on(counted(tmp_path / "t.bin")))
    whole = source.sequences(range(5), Share(first=0, count=8))
    assert (whole.shape, whole.dtype) == ((5, 8, 33), torch.int32)
    for data_ranks in (2, 4, 8):
        shares = [Share.of(data_rank=rank, data_ranks=data_ranks, global_batch=8) for rank in range(data_ranks)]
        assert torch.equal(torch.cat([source.sequences(range(5), share) for share in shares], dim=1), whole)
    expected = torch.arange(NEEDED) % 106
    assert torch.equal(whole[..., :-1].flatten().long(), expected[:-1])
    assert torch.equal(whole[..., 1:].flatten().long(), expected[1:])


def test_steps_come_one_after_the_other(tmp_path: Path) -> None:
    source = source_of(on(counted(tmp_path / "t.bin")))
    rows = list(stream(source, Share(first=2, count=2), 5, pin=False))
    assert torch.equal(torch.stack(rows), source.sequences(range(5), Share(first=2, count=2)))


def test_the_last_token_that_is_needed_may_be_the_files_last(tmp_path: Path) -> None:
    check(on(counted(tmp_path / "t.bin")))


def wrong(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    good = counted(folder / "good.bin").read_bytes()

    def file(name: str, content: bytes) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    np.save(folder / "floats.npy", np.zeros(NEEDED, dtype=np.float32))
    np.save(folder / "signed.npy", np.zeros(NEEDED, dtype=np.int64))
    np.save(folder / "square.npy", np.zeros((4, NEEDED), dtype=np.uint16))
    return {
        "missing": (folder / "none.bin", ("cannot read",)),
        "too short": (counted(folder / "short.bin", NEEDED - 1), (f"has {NEEDED - 1} tokens", f"need {NEEDED}")),
        "empty": (counted(folder / "empty.bin", 0), ("has 0 tokens",)),
        "floats": (folder / "floats.npy", ("float32", "uint16 or uint32")),
        "signed": (folder / "signed.npy", ("int64",)),
        "two dimensions": (folder / "square.npy", ("one-dimensional",)),
        "no npy": (file("text.npy", b"Call me Ishmael."), ("no whole .npy file",)),
        "no header": (file("raw.bin", good[HEADER.size :]), ("does not begin as a token file",)),
        "cut": (file("cut.bin", good[:-2]), ("cut or added to",)),
        "another version": (file("v2.bin", good[:8] + b"\x02" + good[9:]), ("version 2",)),
        "text": (file("book.txt", b"Call me Ishmael."), ("neither .bin nor .npy",)),
        "another vocabulary": (bin_file(folder / "large.bin", np.full(NEEDED, 106)), ("token 106", "vocab_size=106")),
    }


WRONG = [
    "missing",
    "too short",
    "empty",
    "floats",
    "signed",
    "two dimensions",
    "no npy",
    "no header",
    "cut",
    "another version",
    "text",
    "another vocabulary",
]


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_will_not_do_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path, words = wrong(tmp_path)[name]
    with pytest.raises(Refusal) as refused:
        check(on(path))
    assert "\n" not in str(refused.value)
    for word in (str(path), *words):
        assert word in str(refused.value)


def test_a_token_beyond_what_is_read_may_be_anything(tmp_path: Path) -> None:
    check(on(bin_file(tmp_path / "t.bin", np.append(np.zeros(NEEDED), 60000))))


def test_the_setting_is_a_word_or_an_absolute_path_and_keeps_old_ids() -> None:
    with pytest.raises(ValueError, match="absolute path"):
        TrainerSettings(data="tokens.bin")
    assert cell_id(cell(trainer={"data": "synthetic"})) == cell_id(cell())
    assert cell_id(cell(trainer={"data": "/tokens.bin"})) != cell_id(cell())


@pytest.mark.torchrun
def test_two_ranks_train_on_a_file_with_the_losses_of_one(tmp_path: Path) -> None:
    path = bin_file(tmp_path / "t.bin", np.random.default_rng(0).integers(0, 106, NEEDED))
    losses = []
    for n_ranks in (1, 2):
        made = cell(gpus=n_ranks, trainer={"data": str(path)})
        folder = tmp_path / str(n_ranks)
        file = write_cell(folder, made)
        done = torchrun(n_ranks, "-m", "trainer", "--cell", str(file), "--out", str(folder))
        assert done.returncode == 0, done.stderr
        Result.parse((folder / RESULT_FILE).read_text())
        losses.append([Step.parse(line).loss for line in (folder / "steps.jsonl").read_text().splitlines()])
    assert losses[0] == pytest.approx(losses[1], rel=5e-6)
    synthetic = [row for row in stream(source_of(cell()), Share(first=0, count=8), 1, pin=False)]
    from_file = [row for row in stream(source_of(on(path)), Share(first=0, count=8), 1, pin=False)]
    assert not torch.equal(synthetic[0], from_file[0])


@pytest.mark.torchrun
def test_of_two_ranks_with_too_short_a_file_one_says_so_before_any_process_group(tmp_path: Path) -> None:
    path = counted(tmp_path / "t.bin", NEEDED - 1)
    file = write_cell(tmp_path, cell(gpus=2, trainer={"data": str(path)}))
    done = torchrun(2, "-m", "trainer", "--cell", str(file), "--out", str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count("trainer: refused: trainer.data:") == 1
    assert [found.name for found in tmp_path.glob(ERROR_GLOB)] == ["error-rank-0.json"]


@pytest.mark.torchrun
def test_one_rank_reads_all_tokens_and_its_refusal_is_the_cause_of_the_end(tmp_path: Path) -> None:
    path = bin_file(tmp_path / "t.bin", np.arange(NEEDED) % 107)
    made = cell(gpus=2, trainer={"data": str(path)})
    check(made, reads_tokens=False)
    done = torchrun(2, "-m", "trainer", "--cell", str(write_cell(tmp_path, made)), "--out", str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count(f"trainer: refused: trainer.data: {path} holds token 106") == 1
    found = {path.name: parse_error(path.read_text()) for path in tmp_path.glob(ERROR_GLOB)}
    assert found.pop("error-rank-0.json").error_class is ErrorClass.REFUSED
    assert all(is_consequence(error) for error in found.values())


TEXT = "Call me Ishmael.\nSome years ago — never mind how long precisely …\n"


def made_from(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer.tokenize", *arguments],
        env=environment(HF_HUB_OFFLINE="1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_bytes_need_no_library_and_each_text_ends(tmp_path: Path) -> None:
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for text in texts:
        text.write_text(TEXT, encoding="utf-8")
    out = tmp_path / "t.bin"
    done = made_from(tmp_path, *map(str, texts), "--tokenizer", "bytes", "--out", str(out))
    assert done.returncode == 0, done.stderr
    one = [*TEXT.encode(), 256]
    assert open_tokens(out).tolist() == one + one
    assert f"{2 * len(one)} tokens of 2 bytes" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"one.txt", "two.txt", "t.bin"}


def test_a_text_is_encoded_in_pieces_that_leave_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "one.txt"
    text.write_text(TEXT * 7, encoding="utf-8")
    for piece in (1, 3, 1000):
        monkeypatch.setattr(tokenize, "_PIECE", piece)
        out = tmp_path / f"{piece}.bin"
        assert tokenize.main([str(text), "--tokenizer", "bytes", "--out", str(out)]) == 0
        assert open_tokens(out).tolist() == [*(TEXT * 7).encode(), 256]


def test_a_tokenizer_of_the_library_is_read_from_its_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "<|endoftext|>": 70000, "call": 65536, "me": 7}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    text, out = tmp_path / "one.txt", tmp_path / "t.bin"
    text.write_text("call me call ishmael")
    encoder = tokenize.LibraryEncoder(str(tmp_path / "tokenizer.json"))
    assert tokenize.main([str(text), "--tokenizer", str(tmp_path / "tokenizer.json"), "--out", str(out)]) == 0
    assert open_tokens(out).tolist() == [65536, 7, 65536, 0, 70000]
    assert encoder.vocab_size == 70001


BAD = {
    "no such text": (["none.txt", "--tokenizer", "bytes", "--out", "t.bin"], "none.txt"),
    "another suffix": (["one.txt", "--tokenizer", "bytes", "--out", "t.txt"], ".bin"),
    "no such folder": (["one.txt", "--tokenizer", "bytes", "--out", "nowhere/t.bin"], "folder that exists"),
    "not UTF-8": (["latin.txt", "--tokenizer", "bytes", "--out", "t.bin"], "not UTF-8"),
    "nothing but ends": (["empty.txt", "empty.txt", "--tokenizer", "bytes", "--out", "t.bin"], "the texts are empty"),
    "no such tokenizer": (["one.txt", "--tokenizer", "none.json", "--out", "t.bin"], "none.json"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_tokenized_is_refused_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments, word = BAD[name]
    with pytest.raises(SystemExit) as ended:
        tokenize.main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert word in printed
    assert printed.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"one.txt", "latin.txt", "empty.txt"}


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SystemExit):
        tokenize.LibraryEncoder("gpt2")
    assert "extra `tokenize`" in capsys.readouterr().err
