"""Token files, which a run can train on instead of synthetic tokens; they are memory-mapped.

``.npy``: one-dimensional uint16 or uint32. ``.bin``, little-endian: a header of 32 bytes (``sweeptok``; the format's
version and the bytes of a token, 4 bytes each; the number of tokens, 8 bytes; zeros), then the tokens.

Sequence i of step s begins at token (s x global batch + i) x seq_len, so the global batch does not depend on the
layout and no token is read twice.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweep.core.cells.trainer_settings import SYNTHETIC
from trainer.process.refusal import Refusal

if TYPE_CHECKING:
    from sweep.core.cells.cell import Cell

    Tokens = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"sweeptok"
VERSION = 1
HEADER = struct.Struct("<8sIIQ8x")
DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
# Tokens that are checked at a time: their copy stays small.
_PIECE = 1 << 24
# A file up to this size is hashed as a whole (about a second); of a larger one only some pieces are.
HASHED_WHOLE_BYTES = 1 << 28
N_HASHED_PIECES, HASHED_PIECE_BYTES = 256, 1 << 20


def header(*, token_bytes: int, n_tokens: int) -> bytes:
    """Header of a ``.bin`` file."""
    return HEADER.pack(MAGIC, VERSION, token_bytes, n_tokens)


def open_tokens(path: Path) -> Tokens:
    """Map all tokens of a file.

    Raises:
        Refusal: If the file is missing, truncated or no token file.
    """
    try:
        if path.suffix == ".npy":
            return _open_npy(path)
        if path.suffix == ".bin":
            return _open_bin(path)
    except OSError as error:
        raise Refusal(f"trainer.data: cannot read {path}: {error.strerror or error}.") from error
    raise Refusal(f"trainer.data: {path} is neither .bin nor .npy. Make one with python -m trainer.tokenize.")


def _open_npy(path: Path) -> Tokens:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Refusal(f"trainer.data: {path} is no whole .npy file: {error}") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype not in DTYPES.values():
        found = f"{getattr(tokens, 'dtype', 'no')} of shape {getattr(tokens, 'shape', ())}"
        raise Refusal(f"trainer.data: {path} holds {found}; tokens are one-dimensional uint16 or uint32.")
    return tokens


def _open_bin(path: Path) -> Tokens:
    with path.open("rb") as stream:
        begin, size = stream.read(HEADER.size), os.fstat(stream.fileno()).st_size
    if len(begin) < HEADER.size or begin[: len(MAGIC)] != MAGIC:
        raise Refusal(
            f"trainer.data: {path} does not begin as a token file does, so the type of its tokens is unknown. "
            "Make one with python -m trainer.tokenize, or save uint16 or uint32 as .npy."
        )
    _, version, token_bytes, n_tokens = HEADER.unpack(begin)
    if version != VERSION or token_bytes not in DTYPES:
        raise Refusal(
            f"trainer.data: {path} is of version {version} with {token_bytes} bytes a token; "
            f"this trainer reads version {VERSION} with 2 or 4."
        )
    wanted = HEADER.size + token_bytes * n_tokens
    if size != wanted:
        raise Refusal(f"trainer.data: {path} has {size} bytes, and by its header {wanted}: it was cut or added to.")
    if n_tokens == 0:  # which cannot be mapped
        return np.empty(0, dtype=DTYPES[token_bytes])
    return np.memmap(path, dtype=DTYPES[token_bytes], mode="r", offset=HEADER.size, shape=(n_tokens,))


def check(cell: Cell, *, reads_tokens: bool = True) -> None:
    """Check before anything starts that the cell's token file, if any, has all tokens that its steps read.

    Args:
        cell: The cell.
        reads_tokens: False for a rank that checks the header and the length only, since another one reads all tokens.

    Raises:
        Refusal: If it is no token file, too short, or has a token outside the model's vocabulary.
    """
    if cell.trainer.data == SYNTHETIC:
        return
    path = Path(cell.trainer.data)
    tokens = open_tokens(path)
    needed = cell.trainer.steps * cell.tokens_per_step + 1
    if len(tokens) < needed:
        raise Refusal(
            f"trainer.data: {path} has {len(tokens)} tokens; {cell.trainer.steps} steps of {cell.global_batch} x "
            f"{cell.seq_len} need {needed}. Give a longer file, or fewer steps, sequences or tokens."
        )
    if not reads_tokens:
        return
    largest = max(int(tokens[at : min(at + _PIECE, needed)].max()) for at in range(0, needed, _PIECE))
    if largest >= cell.model.vocab_size:
        raise Refusal(
            f"trainer.data: {path} holds token {largest}; {cell.model.name} has vocab_size={cell.model.vocab_size}. "
            "Use the model's own tokenizer, or a model with a larger vocabulary."
        )


def identify(path: Path) -> dict[str, str | int]:
    """Identify a token file by path, type, sizes and a hash of its content.

    Up to 256 MiB the hash is that of ``sha256sum``. Of a larger file it covers the size, in decimal digits, and 256
    pieces of 1 MiB at equal distances from the first byte to the last; ``hashed`` says so.
    """
    tokens, digest = open_tokens(path), hashlib.sha256()
    with path.open("rb") as stream:
        size, hashed = os.fstat(stream.fileno()).st_size, "all"
        if size <= HASHED_WHOLE_BYTES:
            while piece := stream.read(HASHED_PIECE_BYTES):
                digest.update(piece)
        else:
            hashed = (
                f"the size, and {N_HASHED_PIECES} pieces of {HASHED_PIECE_BYTES} bytes evenly from the first byte to "
                "the last"
            )
            digest.update(str(size).encode())
            for number in range(N_HASHED_PIECES):
                stream.seek((size - HASHED_PIECE_BYTES) * number // (N_HASHED_PIECES - 1))
                digest.update(stream.read(HASHED_PIECE_BYTES))
    return {
        "path": str(path),
        "dtype": tokens.dtype.name,
        "n_tokens": len(tokens),
        "n_bytes": size,
        "sha256": digest.hexdigest(),
        "hashed": hashed,
    }
