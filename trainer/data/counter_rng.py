"""A counter-based random number generator: element i of a stream is a function of (key, i).

A generator with a state would have to draw a whole parameter to know one shard of it, and draws differently on a CPU
and on each model of GPU. A hash of the counter is the same everywhere and costs a rank only its own share.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17 (mix64
# variant 13 of Stafford). Products wrap modulo 2**64 in torch's int64 on every device.
_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def key_of(seed: int, *names: str) -> int:
    """The 64-bit key (a signed integer) of the stream of a seed and name."""
    text = "\0".join((str(seed), *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def random_bits(key: int | torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """64 random bits, as int64, for each index of a stream; ``key`` may be a tensor of keys that broadcasts."""
    word = index * _GAMMA + key
    word = (word ^ shift_right(word, 30)) * _MIX_1
    word = (word ^ shift_right(word, 27)) * _MIX_2
    return word ^ shift_right(word, 31)


def shift_right(word: torch.Tensor, by: int) -> torch.Tensor:
    """Shift in zeros; torch's int64 has the arithmetic shift only, which copies the sign bit."""
    return (word >> by) & ((1 << (64 - by)) - 1)


_FIELD = 0xFFFF
_MEAN_OF_FOUR = 4 * _FIELD // 2
_STD_OF_FOUR = math.sqrt(4 * (65536**2 - 1) / 12)


def normal(key: int, index: torch.Tensor, std: float) -> torch.Tensor:
    """Nearly normal float32 numbers: the sum of four uniform 16-bit numbers, thus none beyond 3.47 ``std``.

    The sum is a small exact integer, and one float32 product follows: the same bits on every device, unlike with
    logarithms and cosines. A truncated normal initialisation has bounded tails too.
    """
    word = random_bits(key, index)
    total = (word & _FIELD) + ((word >> 16) & _FIELD) + ((word >> 32) & _FIELD) + ((word >> 48) & _FIELD)
    return (total - _MEAN_OF_FOUR).float() * (std / _STD_OF_FOUR)
