"""Saved predictions of a student: which rows are test, and what was made of them."""

from pathlib import Path

import numpy as np

from attnprior.errors import UserError
from attnprior.files import load_tensors

SPLITS = {"val": 1, "test": 2}  # 0, the training part, is never predicted
REMEDY = "delete it and train again"


def read_predictions(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
    """Return (logits (M, C), labels, index and split (M,) each; header) of a predictions.safetensors.

    Raises:
        UserError: the file is unreadable, incomplete, has logits that are not finite or no test images.
    """
    t, header = load_tensors(path, "numpy")
    missing = [k for k in ("logits", "labels", "index", "split") if k not in t]
    if missing:
        raise UserError(f"{path}: no tensor {', '.join(missing)}; {REMEDY}")
    m, shape = len(t["labels"]), t["logits"].shape
    if len(shape) != 2 or shape[0] != m or any(t[k].shape != (m,) for k in ("labels", "index", "split")):
        shapes = ", ".join(f"{k} {v.shape}" for k, v in sorted(t.items()))
        raise UserError(f"{path}: shapes do not fit each other: {shapes}; {REMEDY}")
    if not (t["split"] == SPLITS["test"]).any():
        raise UserError(f"{path}: no test images (split 2); {REMEDY}")
    if t["labels"].min() < 0 or t["labels"].max() >= shape[1]:
        raise UserError(f"{path}: labels outside 0 to {shape[1] - 1}; {REMEDY}")
    if not np.isfinite(t["logits"]).all():
        raise UserError(
            f"{path}: logits are not finite, training diverged; lower the recipe's lr or set grad_clip"
        )
    return t, header


def of_split(tensors: dict[str, np.ndarray], split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logits (m, C), labels (m,) and index (m,) of the rows of one split, by rising index."""
    rows = np.flatnonzero(tensors["split"] == SPLITS[split])
    rows = rows[np.argsort(tensors["index"][rows], kind="stable")]
    return tensors["logits"][rows], tensors["labels"][rows], tensors["index"][rows]
