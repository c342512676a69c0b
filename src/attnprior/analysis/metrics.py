"""Measures of a classifier's predictions, in float64 NumPy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FLOPS = ("own", "teacher", "fit")  # parts of the compute of a student: its training and what it builds on


def log_softmax(logits: np.ndarray) -> Floats:
    """Return log-probabilities (M, C) of logits (M, C), shifted by each row's maximum: nothing overflows."""
    shifted = np.asarray(logits, np.float64)
    shifted = shifted - shifted.max(axis=1, keepdims=True)  # M C
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def correct(logits: np.ndarray, labels: np.ndarray) -> NDArray[np.bool_]:
    """Return (M,) whether the largest logit is the label's; of equal logits the first class counts."""
    return np.asarray(logits).argmax(axis=1) == labels


def nll(logits: np.ndarray, labels: np.ndarray) -> Floats:
    """Return (M,) the negative log-likelihood of each label in nats."""
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def expected_calibration_error(logits: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """Return the expected calibration error in [0, 1] over `bins` equal-width confidence bins.

    The confidence is the largest softmax probability; bin m holds the confidences in
    ((m - 1) / bins, m / bins]. The result is the mean over images of the gap between accuracy and mean
    confidence of their bin. Source: Guo et al. 2017 (arXiv 1706.04599), equation 3.
    """
    confidence = np.exp(log_softmax(logits).max(axis=1))  # M
    inner = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    which = np.searchsorted(inner, confidence, side="left")  # M
    # Within a bin: count / M * |accuracy - confidence| = |sum of (correct - confidence)| / M.
    gaps = np.bincount(which, weights=correct(logits, labels) - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def per_class_accuracy(logits: np.ndarray, labels: np.ndarray) -> dict[int, float]:
    """Return the accuracy of each class that occurs in `labels`, by class index in rising order."""
    hit = correct(logits, labels)
    return {int(c): float(hit[labels == c].mean()) for c in np.unique(labels)}


def measure(logits: np.ndarray, labels: np.ndarray, bins: int) -> dict[str, float | int]:
    """Return top1 (fraction), nll (nats, mean), ece and n (images) of logits (M, C) and labels (M,)."""
    return {
        "top1": float(correct(logits, labels).mean()),
        "nll": float(nll(logits, labels).mean()),
        "ece": expected_calibration_error(logits, labels, bins),
        "n": len(labels),
    }
