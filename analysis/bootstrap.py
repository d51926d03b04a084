"""Block bootstrap of step times, which are autocorrelated: resampled medians and means of one cell's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]

N_DRAWS = 1000
CONFIDENCE = 0.95
MIN_STEPS = 8
"""Fewer steps than this give no interval: a resample of so few says nothing about those that were not seen."""
_CHUNK = 2_000_000  # numbers held at once, so that long runs with many repeats stay within tens of megabytes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draws:
    """Bootstrap draws of one cell, paired by index.

    Attributes:
        medians: Median step time of each draw, seconds.
        relative_means: Mean step time of each draw over that of the steps themselves.
        n_blocks: Blocks in all the steps: the independent pieces that a draw is made of.
    """

    medians: FloatArray
    relative_means: FloatArray
    n_blocks: float


def interval(draws: FloatArray, n_blocks: float) -> Interval:
    """The expanded percentile interval of :data:`CONFIDENCE` (Hesterberg 2015, section 5.3).

    The plain one is too narrow for few independent pieces: it uses the normal distribution where Student's belongs,
    and a resample varies by (n - 1) / n of what it should. Its tails are moved out by just that.
    """
    tail = (1 - CONFIDENCE) / 2
    if n_blocks > 1:
        student = stats.t.ppf(tail, n_blocks - 1)
        tail = stats.norm.cdf(student * math.sqrt(n_blocks / (n_blocks - 1)))
    low, high = np.quantile(draws, (tail, 1 - tail))
    return float(low), float(high)


def block_length(steps: FloatArray) -> int:
    """Length of the blocks in which these steps are resampled.

    The automatic choice for the circular block bootstrap (Politis and White 2004, corrected by Patton, Politis and
    White 2009), but never below the cube root of the number of steps: on some 50 steps the estimate is noisy, and
    blocks that are too short make intervals too narrow.
    """
    n = len(steps)
    floor, cap = math.ceil(math.cbrt(n)), math.ceil(min(3 * math.sqrt(n), n / 3))
    return max(1, min(max(floor, math.ceil(_optimal_length(steps))), cap))


def _optimal_length(steps: FloatArray) -> float:
    n = len(steps)
    run = max(5, math.ceil(math.sqrt(math.log10(n)))) if n > 1 else 1
    longest = min(math.ceil(math.sqrt(n)) + run, n - 1)
    centred = steps - steps.mean()
    covariances = np.array([centred[: n - lag] @ centred[lag:] for lag in range(longest + 1)]) / n
    if covariances[0] <= 0:
        return 1.0
    # The bandwidth is twice the last lag before `run` correlations in a row that cannot be told from none.
    is_small = np.abs(covariances[1:] / covariances[0]) < 2 * math.sqrt(math.log10(n) / n)
    last = next((lag for lag in range(longest) if is_small[lag : lag + run].all()), longest)
    bandwidth = min(2 * max(last, 1), longest)
    lags = np.arange(1, bandwidth + 1)
    weights = np.clip(2 * (1 - lags / bandwidth), 0, 1)
    spread = 2 * float(weights * lags @ covariances[1 : bandwidth + 1])
    long_run_variance = float(covariances[0] + 2 * (weights @ covariances[1 : bandwidth + 1]))
    if long_run_variance <= 0:
        return 1.0
    return float((2 * spread**2 / (4 / 3 * long_run_variance**2)) ** (1 / 3) * n ** (1 / 3))


def draw(repeats: Sequence[FloatArray], *, seed: int, n_draws: int = N_DRAWS) -> Draws | None:
    """Resample the steps of a cell.

    Each draw takes as many repeats as there are, with replacement, and from each of them circular blocks of steps up
    to its own number of steps: what two runs differ by is in the interval as well as what two steps differ by.

    Args:
        repeats: Step times of the window of each repeat, in order.
        seed: The same seed gives the same draws.
        n_draws: How many.

    Returns:
        The draws; None for fewer than :data:`MIN_STEPS` steps.
    """
    repeats = [steps for steps in repeats if len(steps)]
    if sum(len(steps) for steps in repeats) < MIN_STEPS:
        return None
    rng = np.random.default_rng(seed)
    size = len(repeats) * max(len(steps) for steps in repeats)
    chunk = max(1, _CHUNK // size)
    length = max(block_length(steps) for steps in repeats)
    parts = [_draw(repeats, length, rng, min(chunk, n_draws - done)) for done in range(0, n_draws, chunk)]
    medians, means = (np.concatenate(found) for found in zip(*parts, strict=True))
    steps = np.concatenate(repeats)
    return Draws(medians=medians, relative_means=means / steps.mean(), n_blocks=len(steps) / length)


def _draw(
    repeats: Sequence[FloatArray], length: int, rng: np.random.Generator, n_draws: int
) -> tuple[FloatArray, FloatArray]:
    """Median and mean of each draw of blocks of this length."""
    sizes = np.array([len(steps) for steps in repeats])
    # Every repeat is followed by its own first steps, so that a block that begins near its end goes on there.
    circles = [np.resize(steps, len(steps) + length - 1) for steps in repeats]
    offsets = np.concatenate(([0], np.cumsum([len(circle) for circle in circles])[:-1]))
    positions = np.arange(sizes.max())
    n_blocks = -(-len(positions) // length)
    # Shapes: draw x repeat x position in the repeat; what is beyond the end of a shorter repeat does not count.
    groups = rng.integers(len(repeats), size=(n_draws, len(repeats)))
    size = sizes[groups][:, :, None]
    first = offsets[groups][:, :, None] + (rng.random(size=(n_draws, len(repeats), n_blocks)) * size).astype(np.int64)
    samples = np.concatenate(circles)[first[:, :, positions // length] + positions % length]
    counts = size.sum(axis=(1, 2))
    means = np.where(positions < size, samples, 0.0).sum(axis=(1, 2)) / counts
    # A full sort is several times faster than numpy's median on rows this short; infinities gather at the end.
    ordered = np.sort(np.where(positions < size, samples, np.inf).reshape(n_draws, -1), axis=1)
    rows = np.arange(n_draws)
    return (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2, means
