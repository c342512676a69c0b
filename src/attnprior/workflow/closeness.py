"""How far two versions of an artifact are apart: tensors, tables and JSON by their numbers."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

from attnprior.errors import one_line

TENSOR = 0.01  # of the norm of the recorded tensor
RELATIVE = 0.01  # of a number
ABSOLUTE = 0.02  # of a number, so two points of accuracy
ONE_CLASS = 0.05  # of the accuracy on the few images of one class
STATED = (
    f"tolerance: a tensor {TENSOR:.0%} of its norm; a number {RELATIVE:.0%} or {ABSOLUTE},"
    f" the accuracy of one class {ONE_CLASS}"
)
DRAWN = (".svg", ".png", ".md", ".tex", ".html")  # shows numbers that other artifacts hold in full
PROVENANCE = re.compile(rb"<!-- provenance -->.*<!-- /provenance -->", re.DOTALL)
PER_CLASS = re.compile(r"per_class|accuracy/")


def same_page(a: Path, b: Path) -> bool:
    """Return whether two report.html are equal but for what they say of machine, commit and time."""
    return PROVENANCE.sub(b"", a.read_bytes()) == PROVENANCE.sub(b"", b.read_bytes())


def is_drawn(path: str) -> bool:
    """Return whether `path` only shows numbers of other artifacts, so that its own say nothing more."""
    return path.endswith(DRAWN) or "/figures/" in path


def distance(made: Path, recorded: Path) -> tuple[bool, str]:
    """Return (whether two artifacts of other bytes agree within tolerance, where they differ most).

    Names, texts, whole numbers of tensors, shapes and the set of entries must be equal.
    """
    try:
        if made.suffix == ".safetensors":
            return _tensors(made, recorded)
        read = {".json": _json, ".csv": _csv}.get(made.suffix)
        if read is None:
            return False, "other bytes"
        return _numbers(read(made), read(recorded))
    except Exception as e:  # a damaged file can fail anywhere in its reader
        return False, f"cannot be compared ({one_line(e)})"


def _tensors(made: Path, recorded: Path) -> tuple[bool, str]:
    import numpy as np

    from attnprior.files import load_tensors

    (a, about_a), (b, about_b) = load_tensors(made, "numpy"), load_tensors(recorded, "numpy")
    if {k: (v.shape, v.dtype) for k, v in a.items()} != {k: (v.shape, v.dtype) for k, v in b.items()}:
        return False, "other tensors or shapes"
    close, where = _numbers(dict(_flat("header", about_a)), dict(_flat("header", about_b)))
    worst = (0.0, where)
    for name in sorted(b):
        if not np.issubdtype(b[name].dtype, np.floating):
            if not np.array_equal(a[name], b[name]):
                return False, f"{name}: other whole numbers"
            continue
        x, y = a[name].astype(np.float64), b[name].astype(np.float64)
        apart = float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-30)) if y.size else 0.0
        if np.array_equal(x, y, equal_nan=True):
            apart = 0.0
        if not apart <= worst[0]:  # NaN counts as far apart
            worst = (apart, f"{name}: {apart:.2g} of its norm")
    return close and worst[0] <= TENSOR, worst[1] if close else where


def _json(path: Path) -> dict[str, Any]:
    return dict(_flat("", json.loads(path.read_text(encoding="utf-8"))))


def _csv(path: Path) -> dict[str, Any]:
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.reader(f))
    cells: dict[str, Any] = {"columns": ",".join(rows[0])}
    for number, row in enumerate(rows[1:], 1):
        named = next((c for c in row if c.startswith("accuracy/")), "")  # results.csv names it in the row
        for column, text in zip(rows[0], row, strict=True):
            cells[f"row {number} {column} {named}".rstrip()] = _parsed(text)
    return cells


def _parsed(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _flat(name: str, value: Any):
    if isinstance(value, dict):
        for k, v in value.items():
            yield from _flat(f"{name}.{k}".lstrip("."), v)
    elif isinstance(value, list):
        for k, v in enumerate(value):
            yield from _flat(f"{name}.{k}", v)
    else:
        yield name, value


def _numbers(made: dict[str, Any], recorded: dict[str, Any]) -> tuple[bool, str]:
    """Return whether all entries agree within tolerance, and the one that is furthest outside or apart."""
    if made.keys() != recorded.keys():
        return False, f"other entries: {sorted(made.keys() ^ recorded.keys())[0]}"
    worst = (0.0, "equal numbers, written differently")
    for name, b in recorded.items():
        a = made[name]
        if a == b:
            continue
        if not (_is_number(a) and _is_number(b)):
            return False, f"{name}: {a!r} instead of {b!r}"
        if math.isnan(a) and math.isnan(b):
            continue
        allowed = max(ONE_CLASS if PER_CLASS.search(name) else ABSOLUTE, RELATIVE * abs(b))
        used = abs(a - b) / allowed
        if not used <= worst[0]:
            worst = (used, f"{name}: {a:.6g} instead of {b:.6g}")
    return worst[0] <= 1, worst[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
