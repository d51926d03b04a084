"""Batches of tokens, synthetic by default; the global batch does not depend on the layout.

A synthetic sequence consists of runs. A run begins at a random token, more often a small one, and goes on by a constant
stride; each token begins a new run with probability 1/8. So frequencies are uneven, like those of words, and a token
mostly determines the next: the loss falls from ln(vocabulary) towards about 1 (the entropy of the jumps). Sequence i of
step s is a function of (seed, s, i) alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from sweep.core.cells.trainer_settings import SYNTHETIC
from trainer.data.counter_rng import key_of, random_bits, shift_right
from trainer.data.tokens_file import open_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from sweep.core.cells.cell import Cell
    from trainer.data.tokens_file import Tokens

# So few distinct tokens that some dozens of steps see each of them often.
_DISTINCT = 512
_STRIDE = 7
_JUMP_ONE_IN = 8
# Largest block of steps that is drawn ahead, in tokens: 4 bytes and some 50 nanoseconds each.
_BLOCK_TOKENS = 1 << 22
# Tokens whose 8-byte temporaries stay in a core's cache; larger pieces are slower.
_PIECE_TOKENS = 1 << 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The sequences of the global batch that one data-parallel rank works on."""

    first: int
    count: int

    @classmethod
    def of(cls, *, data_rank: int, data_ranks: int, global_batch: int) -> Share:
        """The contiguous share of a rank; a rule of the cell ensures that the batch divides."""
        count = global_batch // data_ranks
        return cls(first=data_rank * count, count=count)


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticTokens:
    """Synthetic tokens of a seed."""

    seed: int
    vocab_size: int
    seq_len: int

    def sequences(self, steps: range, share: Share) -> torch.Tensor:
        """Tokens of these steps, int32, shape (steps, sequences, seq_len + 1): inputs and, shifted by one, targets."""
        step = torch.arange(steps.start, steps.stop)[:, None]
        sequence = torch.arange(share.first, share.first + share.count)[None, :]
        keys = random_bits(key_of(self.seed, "tokens"), (step << 32) + sequence).flatten()
        at_once = max(1, _PIECE_TOKENS // (self.seq_len + 1))
        pieces = [self._runs(piece) for piece in torch.split(keys, at_once)]
        return torch.cat(pieces).view(len(steps), share.count, -1)

    def _runs(self, keys: torch.Tensor) -> torch.Tensor:
        distinct = min(self.vocab_size, _DISTINCT)
        position = torch.arange(self.seq_len + 1)
        drawn = random_bits(keys[:, None], position)
        begins = drawn & (_JUMP_ONE_IN - 1) == 0
        begins[..., 0] = True
        begin = torch.where(begins, position, 0).cummax(dim=-1).values
        # A uniform number, shifted right by 0 to 7 bits: half the token has twice the frequency, as in Zipf's law.
        start = shift_right(drawn, 8) % distinct >> (shift_right(drawn, 3) & 7)
        return ((start.gather(-1, begin) + _STRIDE * (position - begin)) % distinct).int()


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTokens:
    """Consecutive sequences of a token file (:mod:`trainer.data.tokens_file`)."""

    tokens: Tokens
    seq_len: int
    global_batch: int

    def sequences(self, steps: range, share: Share) -> torch.Tensor:
        """Tokens of these steps, as in :class:`SyntheticTokens`; only they are read from the file."""
        rows = [self._windows(step * self.global_batch + share.first, share.count) for step in steps]
        return torch.from_numpy(np.stack(rows))

    def _windows(self, first: int, count: int) -> Tokens:
        # Windows overlap: the last token of one is the first of the next.
        begin = first * self.seq_len
        run = self.tokens[begin : begin + count * self.seq_len + 1].astype(np.int32)
        return np.lib.stride_tricks.sliding_window_view(run, self.seq_len + 1)[:: self.seq_len]


TokenSource = SyntheticTokens | FileTokens


def source_of(cell: Cell) -> TokenSource:
    """Open the tokens that a cell trains on."""
    settings = cell.trainer
    if settings.data == SYNTHETIC:
        return SyntheticTokens(seed=settings.seed, vocab_size=cell.model.vocab_size, seq_len=cell.seq_len)
    tokens = open_tokens(Path(settings.data))
    return FileTokens(tokens=tokens, seq_len=cell.seq_len, global_batch=cell.global_batch)


def stream(source: TokenSource, share: Share, steps: int, *, pin: bool) -> Iterator[torch.Tensor]:
    """Yield this rank's tokens step by step, int32, shape (sequences, seq_len + 1), on the host.

    All steps of an ordinary run are one block that is drawn before the first step, so that no timed step waits for
    tokens. In a long run a thread draws the next block during the steps of the current one.
    """
    per_step = share.count * (source.seq_len + 1)
    length = max(1, _BLOCK_TOKENS // per_step)
    blocks = [range(first, min(first + length, steps)) for first in range(0, steps, length)]

    def draw(block: range) -> torch.Tensor:
        tokens = source.sequences(block, share)
        return tokens.pin_memory() if pin else tokens

    with ThreadPoolExecutor(max_workers=1) as thread:
        upcoming: Future[torch.Tensor] = thread.submit(draw, blocks[0])
        for following in [*blocks[1:], None]:
            tokens = upcoming.result()
            if following is not None:
                upcoming = thread.submit(draw, following)
            yield from tokens
