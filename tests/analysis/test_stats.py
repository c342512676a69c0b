import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from attnprior.analysis import stats as s

accuracies = st.lists(st.integers(0, 500).map(lambda k: k / 500), min_size=2, max_size=8)


def test_known_sample():
    got = s.summary([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
    assert (got.n, got.mean, got.std) == (5, 3.0, pytest.approx(1.5811388300841898))
    half = 2.7764451051977987 * 1.5811388300841898 / 5**0.5  # t(0.975; 4) from tables
    assert (got.low, got.high) == (pytest.approx(3 - half), pytest.approx(3 + half))


@settings(deadline=None)
@given(accuracies, st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_matches_scipy(values, confidence):
    got = s.summary(values, confidence)
    if len(set(values)) == 1:
        assert (got.std, got.low, got.high) == (0, None, None)
        return
    low, high = oracle.t.interval(confidence, len(values) - 1, np.mean(values), oracle.sem(values))
    assert (got.low, got.high) == (pytest.approx(low, abs=1e-12), pytest.approx(high, abs=1e-12))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=2, max_size=8))
def test_paired_differences_match_scipy_ttest_rel(pairs):
    a, b = (np.array(x) / 500 for x in zip(*pairs, strict=True))
    got = s.paired(a, b, 0.95)
    assert got.mean == pytest.approx(a.mean() - b.mean(), abs=1e-12)
    if len({x - y for x, y in pairs}) == 1:
        assert (got.std, got.low, got.p) == (0, None, None)
        return
    expected = oracle.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert got.p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (got.low, got.high) == (
        pytest.approx(interval.low, abs=1e-9),
        pytest.approx(interval.high, abs=1e-9),
    )
    other = s.paired(b, a, 0.95)
    assert (other.mean, other.low) == (pytest.approx(-got.mean), pytest.approx(-got.high))


def test_one_seed_gives_no_interval():
    assert s.summary([0.7], 0.95) == s.Summary(1, 0.7, None, None, None)
    got = s.paired([0.7], [0.6], 0.95)
    assert got.mean == pytest.approx(0.1)
    assert (got.std, got.low, got.high, got.p) == (None, None, None, None)


def test_holm_of_a_textbook_example():
    got = s.holm([0.01, 0.04, 0.03, 0.005])
    assert got == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert s.holm([0.5, 0.6]) == [1.0, 1.0]
    assert s.holm([]) == []


def test_an_unknown_p_value_stays_unknown_and_counts_as_a_test():
    assert s.holm([0.01, None, 0.2]) == [pytest.approx(0.03), None, pytest.approx(0.4)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(p):
    got = s.holm(p)
    for adjusted, raw in zip(got, p, strict=True):
        assert raw <= adjusted <= min(1.0, len(p) * raw) + 1e-12
    by_p = [x for _, x in sorted(zip(p, got, strict=True))]
    assert by_p == sorted(by_p)


def seeds_by_images(rng, seeds, images, shift=0.0, seed_spread=0.5, image_spread=1.0, noise=1.0):
    """Per-image values with effects of seed and image, both of them samples of larger populations."""
    return (
        shift
        + seed_spread * rng.normal(size=(seeds, 1))
        + image_spread * rng.normal(size=(1, images))
        + noise * rng.normal(size=(seeds, images))
    )


def test_bootstrap_matches_a_plain_loop_over_resamples():
    values = np.random.default_rng(3).normal(size=(2, 4, 30))
    got = s.bootstrap_means(values, resamples=4000)
    rng = np.random.default_rng(5)
    plain = []
    for _ in range(4000):
        seeds, images = rng.integers(4, size=4), rng.integers(30, size=30)
        plain.append(values[:, seeds][:, :, images].mean(axis=(1, 2)))
    plain = np.array(plain).T
    np.testing.assert_allclose(got.mean(axis=1), plain.mean(axis=1), atol=0.02)
    np.testing.assert_allclose(np.cov(got), np.cov(plain), rtol=0.15, atol=2e-3)
    np.testing.assert_allclose(
        np.quantile(got[0], [0.025, 0.975]), np.quantile(plain[0], [0.025, 0.975]), atol=0.04
    )


def test_bootstrap_uses_the_same_seeds_and_images_for_every_arm():
    values = np.random.default_rng(3).random((1, 5, 50))
    got = s.bootstrap_means(np.concatenate([values, values + 0.25]))
    np.testing.assert_allclose(got[1] - got[0], 0.25, atol=1e-12)


def test_bootstrap_repeats_and_does_not_depend_on_the_other_arms():
    values = np.random.default_rng(3).random((3, 5, 50))
    np.testing.assert_array_equal(s.bootstrap_means(values), s.bootstrap_means(values))
    np.testing.assert_array_equal(s.bootstrap_means(values)[2:], s.bootstrap_means(values[2:]))


def test_bootstrap_resamples_seeds_and_images():
    only_seeds = np.arange(5.0)[None, :, None] * np.ones((1, 5, 20))
    only_images = np.arange(20.0)[None, None, :] * np.ones((1, 5, 20))
    assert s.bootstrap_means(only_seeds).std() == pytest.approx(np.sqrt(2 / 5), rel=0.1)
    assert s.bootstrap_means(only_images).std() == pytest.approx(np.arange(20).std() / np.sqrt(20), rel=0.1)


def test_bootstrap_in_chunks_keeps_the_distribution(monkeypatch):
    values = np.random.default_rng(3).random((1, 4, 40))
    whole = s.bootstrap_means(values)
    monkeypatch.setattr(s, "CHUNK", 40 * 7)
    np.testing.assert_allclose(s.bootstrap_means(values).std(), whole.std(), rtol=0.1)


def test_bootstrap_interval_covers_the_true_difference():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        a, b = seeds_by_images(rng, 10, 100, shift=0.3), seeds_by_images(rng, 10, 100)
        means = s.bootstrap_means(np.stack([a, b]), resamples=500)
        low, high = s.percentile_interval(means[0] - means[1], 0.95)
        hits += low <= 0.3 <= high
    assert 0.88 <= hits / 200 <= 0.995


def test_t_interval_covers_the_true_difference_over_seeds_even_with_three():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        a, b = 0.5 + rng.normal(size=3), rng.normal(size=3)
        got = s.paired(a, b, 0.95)
        hits += got.low <= 0.5 <= got.high
    assert 0.93 <= hits / 1000 <= 0.97
