"""The block bootstrap: reproducible, honest about autocorrelation and about what repeats differ by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.bootstrap import MIN_STEPS, FloatArray, block_length, draw, interval


def autocorrelated(rng: np.random.Generator, n: int, phi: float) -> FloatArray:
    """An AR(1) series around 1, begun in its stationary distribution; its true median is 1."""
    noise = rng.normal(size=n)
    values = np.empty(n)
    values[0] = noise[0] / np.sqrt(1 - phi**2)
    for i in range(1, n):
        values[i] = phi * values[i - 1] + noise[i]
    return 1 + 0.01 * values


def test_same_seed_gives_the_same_draws_and_another_seed_others() -> None:
    steps = autocorrelated(np.random.default_rng(0), 50, 0.5)
    first, again, other = (draw([steps], seed=seed) for seed in (7, 7, 8))
    assert first is not None
    assert again is not None
    assert other is not None
    assert np.array_equal(first.medians, again.medians)
    assert np.array_equal(first.relative_means, again.relative_means)
    assert not np.array_equal(first.medians, other.medians)


def coverage(n: int, phi: float, trials: int = 200) -> tuple[float, float]:
    """How often the intervals of the median and of the mean of ``n`` steps contain the true ones."""
    rng = np.random.default_rng(20240607)
    of_median = of_mean = 0
    for trial in range(trials):
        steps = autocorrelated(rng, n, phi)
        found = draw([steps], seed=trial, n_draws=400)
        assert found is not None
        low, high = interval(found.medians, found.n_blocks)
        of_median += low <= 1 <= high
        low, high = interval(found.relative_means * steps.mean(), found.n_blocks)
        of_mean += low <= 1 <= high
    return of_median / trials, of_mean / trials


@pytest.mark.parametrize(("n", "phi", "least"), [(200, 0.0, 0.93), (200, 0.6, 0.9), (50, 0.0, 0.92), (50, 0.6, 0.84)])
def test_intervals_cover_the_true_value_about_as_often_as_they_say(n: int, phi: float, least: float) -> None:
    # The plain percentile interval: 0.90 of 50 independent steps, 0.78 of the mean at phi 0.6; single steps as
    # blocks 0.7 there.
    of_median, of_mean = coverage(n, phi)
    assert least <= of_median <= 0.995
    assert least <= of_mean <= 0.995


def test_few_blocks_widen_an_interval_and_many_leave_it_plain() -> None:
    draws = np.random.default_rng(6).normal(size=20_000)
    widths = [np.ptp(interval(draws, n_blocks)) for n_blocks in (4.0, 12.0, 1e6)]
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] == pytest.approx(2 * 1.96, rel=0.02)
    # Student's quantile of 11 degrees of freedom, and 12 / 11 for the variance that a resample lacks.
    assert widths[1] == pytest.approx(2 * 2.201 * np.sqrt(12 / 11), rel=0.03)


def test_autocorrelated_steps_get_longer_blocks_than_independent_ones() -> None:
    rng = np.random.default_rng(3)
    independent = [block_length(autocorrelated(rng, 500, 0.0)) for _ in range(20)]
    dependent = [block_length(autocorrelated(rng, 500, 0.8)) for _ in range(20)]
    assert np.median(dependent) > 2 * np.median(independent)


def test_blocks_are_never_shorter_than_the_cube_root_nor_longer_than_a_third() -> None:
    rng = np.random.default_rng(4)
    for n in (8, 50, 64, 300):
        for phi in (0.0, 0.99):
            assert np.cbrt(n) <= block_length(autocorrelated(rng, n, phi)) <= n / 3 + 1


@given(st.integers(1, 40), st.floats(0.001, 1000))
def test_constant_steps_have_an_interval_of_no_width(n: int, value: float) -> None:
    found = draw([np.full(n, value)], seed=1, n_draws=50)
    assert (found is None) == (n < MIN_STEPS)
    if found is not None:
        assert interval(found.medians, found.n_blocks) == (value, value)


@pytest.mark.parametrize("period", [2, 3, 4])
def test_steps_that_cancel_out_still_get_blocks(period: int) -> None:
    # Every tenth checkpoint, every second log line: periodic steps whose estimated long-run variance is not positive.
    for n in range(MIN_STEPS, 60):
        steps = np.resize(np.arange(period, dtype=np.float64), n)
        assert np.cbrt(n) <= block_length(steps) <= n / 3 + 1
    assert block_length(np.resize(np.arange(4.0), 31)) == 4  # not the most that a negative variance would ask for


def test_the_interval_includes_the_variation_between_repeats() -> None:
    rng = np.random.default_rng(5)
    steps = [mean + 0.001 * rng.normal(size=50) for mean in (1.0, 1.1, 1.2)]
    pooled = draw([np.concatenate(steps)], seed=1)
    grouped = draw(steps, seed=1)
    assert pooled is not None
    assert grouped is not None
    low, high = interval(grouped.medians, grouped.n_blocks)
    assert low < 1.02
    assert high > 1.18
    widths = [np.ptp(interval(found.relative_means, found.n_blocks)) for found in (grouped, pooled)]
    assert widths[0] > 1.3 * widths[1]


def test_repeats_of_unequal_length_are_resampled_to_their_own_length() -> None:
    found = draw([np.full(30, 3.0), np.full(10, 1.0), np.empty(0)], seed=1, n_draws=4000)
    assert found is not None
    # Both long: median 3; both short: 1; one of each: 30 threes against 10 ones.
    assert set(found.medians) == {1.0, 3.0}
    assert np.mean(found.medians == 1.0) == pytest.approx(0.25, abs=0.03)
    mixed = (30 * 3.0 + 10 * 1.0) / 40
    assert sorted({float(value) for value in np.round(found.relative_means * mixed, 9)}) == [1.0, 2.5, 3.0]


def test_the_median_of_an_even_number_of_steps_lies_between_the_middle_two() -> None:
    found = draw([np.array([1.0] * 4 + [2.0] * 4)], seed=1)
    assert found is not None
    assert set(found.medians) == {1.0, 1.5, 2.0}


def test_blocks_go_round_the_end_so_that_every_step_is_drawn_alike() -> None:
    marked = np.ones(30)
    marked[-1] = 31.0
    found = draw([marked], seed=1, n_draws=20_000)
    assert found is not None
    assert float(found.relative_means.mean()) == pytest.approx(1.0, abs=0.02)


def test_long_runs_are_drawn_in_parts_without_changing_their_number() -> None:
    found = draw([autocorrelated(np.random.default_rng(1), 6000, 0.3)] * 2, seed=1, n_draws=500)
    assert found is not None
    assert found.medians.shape == found.relative_means.shape == (500,)
