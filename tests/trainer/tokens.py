"""Files of tokens for small cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sweep.core.cells.cell import Cell
from tests.trainer.cells import cell
from trainer.data.tokens_file import header

NEEDED = 5 * 8 * 32 + 1


def on(path: Path, **changes: object) -> Cell:
    return cell(trainer={"data": str(path), **changes})


def bin_file(path: Path, tokens: np.ndarray, dtype: str = "<u2") -> Path:
    values = tokens.astype(dtype)
    path.write_bytes(header(token_bytes=values.itemsize, n_tokens=len(values)) + values.tobytes())
    return path


def counted(path: Path, n_tokens: int = NEEDED) -> Path:
    """Tokens 0, 1, ... 105, 0, 1 ..."""
    return bin_file(path, np.arange(n_tokens) % 106)
