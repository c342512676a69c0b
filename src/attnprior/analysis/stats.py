"""Spread, paired differences and their uncertainty over seeds and test images.

Two questions have two answers. The t intervals ask what another set of seeds would give on these test
images; the bootstrap resamples the test images, too. With few seeds a percentile bootstrap is too narrow
over seeds (a resample of S seeds has (S - 1) / S of their variance), so it stands beside the t interval
and never replaces it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnprior.randomness import stream_seed

RESAMPLES = 2000
CHUNK = 4_000_000  # image draws held at once


@dataclass(frozen=True)
class Summary:
    """Mean over n seeds, sample standard deviation and t interval; None where n is too small to say."""

    n: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference(Summary):
    """Summary of paired differences, with the two-sided p value of the paired t test."""

    p: float | None


def summary(values: Sequence[float], confidence: float) -> Summary:
    """Return mean, sample standard deviation (n - 1) and Student t interval of one value per seed.

    One seed gives no spread and no interval. Equal values give a spread of 0 and no interval: they do
    not tell how much another seed would differ.
    """
    x = np.asarray(values, np.float64)
    n, mean = len(x), float(x.mean())
    if n < 2:
        return Summary(n, mean, None, None, None)
    std = float(x.std(ddof=1))
    if std <= 1e-12 * float(np.abs(x).max()):  # rounding of equal values
        return Summary(n, mean, 0.0, None, None)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def paired(a: Sequence[float], b: Sequence[float], confidence: float) -> Difference:
    """Return the summary of a - b over seeds, the i-th values of both being of one seed.

    The interval and p value are those of the paired t test; p is None where there is no interval.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    d = x - y
    d[np.abs(d) <= 1e-12 * np.maximum(np.abs(x), np.abs(y))] = 0.0
    s = summary(d.tolist(), confidence)
    if s.low is None or s.std is None:
        return Difference(s.n, s.mean, s.std, None, None, None)
    from scipy.special import stdtr

    t = s.mean / (s.std / math.sqrt(s.n))
    return Difference(s.n, s.mean, s.std, s.low, s.high, float(2 * stdtr(s.n - 1, -abs(t))))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down adjusted p values, in the order given; a None stays None but counts as a test.

    Rejecting where the result is below a level bounds the chance of any false rejection in the family by
    that level, whatever the dependence. Source: S. Holm 1979, Scand. J. Statist. 6, 65-70.
    """
    out: list[float | None] = [None] * len(p_values)
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        out[i] = largest
    return out


def bootstrap_means(values: np.ndarray, resamples: int = RESAMPLES) -> NDArray[np.float64]:
    """Return resampled means (A, resamples) of per-image values (A, S, M): arms, seeds, test images.

    Each resample draws S seeds and then M images with replacement, the same for every arm, so that the
    difference of two rows is the paired two-level bootstrap of those arms. The draws depend on S and M alone.
    """
    arms, seeds, images = values.shape
    rng = np.random.default_rng(stream_seed(0, "bootstrap"))
    drawn = rng.integers(seeds, size=(resamples, seeds))  # B S
    weights = np.zeros((resamples, seeds))
    np.add.at(weights, (np.arange(resamples)[:, None], drawn), 1.0 / seeds)
    out = np.empty((arms, resamples))
    step = max(1, CHUNK // images)
    for first in range(0, resamples, step):
        part = weights[first : first + step]
        picked = rng.integers(images, size=(len(part), images))  # b M
        for a in range(arms):
            over_seeds = part @ values[a].astype(np.float64)  # b M
            out[a, first : first + step] = np.take_along_axis(over_seeds, picked, axis=1).mean(axis=1)
    return out


def percentile_interval(samples: np.ndarray, confidence: float) -> tuple[float, float]:
    """Return the central `confidence` interval of bootstrap samples (percentile method)."""
    low, high = np.quantile(samples, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)
