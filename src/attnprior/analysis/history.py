"""Learning curves: what history.csv holds, and its course over seeds."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attnprior.errors import UserError

CURVES = ("val_top1", "val_loss")


class Course(NamedTuple):
    """Mean, smallest and largest value over seeds, each (E,)."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_history(path: str | Path) -> dict[str, np.ndarray]:
    """Return the columns of a history.csv, float64 (E,) each; E is the number of epochs.

    Raises:
        UserError: the file is missing, empty, truncated or holds something else than numbers.
    """
    try:
        with open(path, newline="", encoding="utf-8") as f:
            text = f.read()
        header, *rows = csv.reader(text.splitlines())
        values = np.array(rows, np.float64)
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: cannot be read as a history; delete it and train again") from e
    if not text.endswith("\n"):
        raise UserError(f"{path}: the last line is cut off; delete it and train again")
    if values.ndim != 2 or values.shape[1] != len(header) or "epoch" not in header:
        raise UserError(f"{path}: no history of epochs; delete it and train again")
    return dict(zip(header, values.T, strict=True))


def course(histories: Sequence[dict[str, np.ndarray]], name: str) -> Course | None:
    """Return the course of one column over the histories of the seeds of an arm.

    None where the histories do not have it (no validation split).

    Raises:
        UserError: the seeds differ in their number of epochs.
    """
    if any(name not in h for h in histories):
        return None
    if len({len(h[name]) for h in histories}) > 1:
        raise UserError(f"history.csv: the seeds of an arm differ in length of {name}; train them again")
    values = np.stack([h[name] for h in histories])  # S E
    return Course(values.mean(0), values.min(0), values.max(0))
