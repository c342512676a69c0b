import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnprior.analysis import metrics as m


@st.composite
def predictions(draw):
    n, c = draw(st.integers(1, 40)), draw(st.integers(2, 7))
    logits = draw(hnp.arrays(np.float32, (n, c), elements=st.floats(-60, 60, width=32)))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, c - 1)))
    return logits, labels


def test_hand_computed_predictions():
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.45, 0.55]])
    labels = np.array([0, 1, 1, 1])
    got = m.measure(np.log(p), labels, bins=2)
    assert got["top1"] == 0.75
    assert got["n"] == 4
    assert got["nll"] == pytest.approx(-np.log([0.8, 0.4, 0.7, 0.55]).mean(), abs=1e-14)
    # All four confidences (0.8, 0.6, 0.7, 0.55) lie in (0.5, 1]: |3/4 - 0.6625|.
    assert got["ece"] == pytest.approx(0.0875, abs=1e-12)
    # Four bins: (0.5, 0.75] holds 0.6 (wrong), 0.7, 0.55 (right), (0.75, 1] holds 0.8 (right).
    expected = 3 / 4 * abs(2 / 3 - 1.85 / 3) + 1 / 4 * abs(1 - 0.8)
    assert m.expected_calibration_error(np.log(p), labels, 4) == pytest.approx(expected, abs=1e-12)
    assert m.per_class_accuracy(np.log(p), labels) == {0: 1.0, 1: pytest.approx(2 / 3)}


def test_a_confidence_on_a_bin_edge_belongs_to_the_lower_bin():
    # 0.5 is in (0.25, 0.5] with a right answer, 0.625 in (0.5, 0.75] with a wrong one.
    p = np.array([[0.5, 0.25, 0.25], [0.625, 0.25, 0.125]])
    labels = np.array([0, 1])
    apart = (abs(1 - 0.5) + abs(0 - 0.625)) / 2
    assert m.expected_calibration_error(np.log(p), labels, 4) == pytest.approx(apart, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(predictions())
def test_nll_and_accuracy_match_scikit_learn(sample):
    from scipy.special import softmax
    from sklearn.metrics import accuracy_score, log_loss

    logits, labels = sample
    wide = logits.astype(np.float64)
    p = softmax(wide, axis=1)
    got = m.measure(logits, labels, 15)
    assert got["top1"] == accuracy_score(labels, p.argmax(1)) or _has_ties(wide)
    if p.min() > 1e-15:  # log_loss clips below the rounding unit
        assert got["nll"] == pytest.approx(log_loss(labels, p, labels=range(p.shape[1])), abs=1e-9)


def _has_ties(logits):
    top = np.sort(logits, axis=1)[:, -2:]
    return bool((top[:, 1] - top[:, 0] < 1e-12).any())


def test_nll_matches_torch_in_float64():
    import torch

    rng = np.random.default_rng(0)
    logits, labels = 30 * rng.normal(size=(200, 10)).astype(np.float32), rng.integers(10, size=200)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double(), torch.from_numpy(labels), reduction="none"
    )
    np.testing.assert_allclose(m.nll(logits, labels), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_huge_logits_do_not_overflow():
    logits = np.array([[1e30, 0.0], [-1e30, 0.0]])
    np.testing.assert_array_equal(m.nll(logits, np.array([0, 0])), [0.0, 1e30])


@settings(deadline=None, max_examples=60)
@given(predictions(), st.integers(1, 30))
def test_calibration_error_matches_a_loop_over_bins(sample, bins):
    logits, labels = sample
    p = np.exp(m.log_softmax(logits))
    confidence, hit = p.max(axis=1), logits.argmax(axis=1) == labels
    edges, expected = np.linspace(0, 1, bins + 1), 0.0
    edges[-1] = np.inf  # a confidence of 1 may be a rounding unit above it
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            expected += inside.mean() * abs(hit[inside].mean() - confidence[inside].mean())
    assert m.expected_calibration_error(logits, labels, bins) == pytest.approx(expected, abs=1e-10)


@settings(deadline=None, max_examples=60)
@given(predictions(), st.floats(-50, 50), st.randoms(use_true_random=False))
def test_measures_ignore_row_order_and_a_shift_of_all_logits(sample, shift, random):
    logits, labels = sample
    logits = np.round(logits.astype(np.float64), 3)
    order = list(range(len(labels)))
    random.shuffle(order)
    a = m.measure(logits, labels, 15)
    assert m.measure(logits[order], labels[order], 15) == pytest.approx(a, abs=1e-9)
    assert m.nll(logits + shift, labels).mean() == pytest.approx(a["nll"], abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(predictions())
def test_ranges_and_per_class_mean(sample):
    logits, labels = sample
    got = m.measure(logits, labels, 15)
    assert 0 <= got["ece"] <= 1
    assert got["nll"] >= 0
    per_class = m.per_class_accuracy(logits, labels)
    assert list(per_class) == sorted(set(labels.tolist()))
    weighted = sum(a * (labels == c).sum() for c, a in per_class.items()) / len(labels)
    assert weighted == pytest.approx(got["top1"])


def test_a_calibrated_classifier_has_a_small_error_and_an_overconfident_one_a_large_one():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(5), size=20000)
    labels = (p.cumsum(axis=1) > rng.random((20000, 1))).argmax(axis=1)
    assert m.expected_calibration_error(np.log(p), labels, 15) < 0.02
    assert m.expected_calibration_error(5 * np.log(p), labels, 15) > 0.15
