"""A card for each run: settings, hashes, machine, time, a small learning curve, links to its files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from attnprior.analysis.panels import Row
from attnprior.report.tables import DASH, number

WIDTH, HEIGHT, POINTS = 120, 36, 40  # of a small curve
FILES = ("weights.safetensors", "history.csv", "predictions.safetensors", "metrics.json", "run.json")


def cards(
    runs: Mapping[str, dict[str, Any]],
    histories: Mapping[str, dict[str, np.ndarray]],
    tidy: Sequence[Row],
    folder: str,
) -> list[dict[str, Any]]:
    """Return what the page says of each run; both mappings go by the path of its run.json.

    Links are relative to `folder`, in which the page lies.
    """
    found = {
        (r["dataset"], r["arm"], r["seed"]): r["value"]
        for r in tidy
        if r["split"] == "test" and r["metric"] == "top1"
    }
    out = []
    for path, record in runs.items():
        dataset, arm, seed = PurePosixPath(path).parts[-4:-1]
        top1 = found.get((dataset, arm, int(seed.removeprefix("seed"))))
        seconds = record.get("seconds", {}).get("total", 0.0)
        inputs: dict[str, str] = record.get("inputs", {})
        data = {p: h for p, h in inputs.items() if not p.startswith("src/")}
        links = [(name, str(PurePosixPath(path).with_name(name))) for name in FILES]
        links.append(("log", f"logs/train_student/{dataset}/{arm}/{seed}.log"))
        out.append(
            {
                "name": f"{dataset} / {arm} / {seed.replace('seed', 'seed ')}",
                "top1": top1,
                "shown": DASH if top1 is None else f"{number(100 * top1, 1)} %",
                "seconds": seconds,
                "started": str(record.get("started", DASH)),
                "machine": _machine(record),
                "commit": str(record.get("commit") or "unknown"),
                "versions": ", ".join(f"{k} {v}" for k, v in sorted(record.get("versions", {}).items())),
                "settings": _settings(record.get("params")),
                "inputs": [(p, _relative(p, folder), h) for p, h in sorted(data.items())],
                "code": len(inputs) - len(data),
                "links": [(name, _relative(target, folder)) for name, target in links],
                "curve": small_curve(histories.get(path, {})),
            }
        )
    return out


def small_curve(history: Mapping[str, np.ndarray]) -> dict[str, str] | None:
    """Return points and description of validation accuracy (0 to 100 %), else of the loss (0 to its most)."""
    column = next((c for c in ("val_top1", "loss") if c in history), None)
    if column is None or len(history[column]) < 2:
        return None
    values = np.asarray(history[column], np.float64)
    values = values[np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))]
    if not np.isfinite(values).all():
        return None
    top = 1.0 if column == "val_top1" else max(values.max(), 1e-12)
    x = np.linspace(1, WIDTH - 1, len(values))
    y = HEIGHT - 1 - (HEIGHT - 2) * values / top
    last = f"{100 * values[-1]:.1f} %" if column == "val_top1" else f"{values[-1]:.3g}"
    name = "validation top-1" if column == "val_top1" else "training loss"
    return {
        "points": " ".join(f"{a:.3g},{b:.3g}" for a, b in zip(x, y, strict=True)),
        "text": f"{name} by epoch, last {last}",
    }


def _machine(record: dict[str, Any]) -> str:
    parts = [str(record.get("device") or "unknown device")]
    if record.get("threads"):
        parts.append(f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}")
    if record.get("images_per_second"):
        parts.append(f"{record['images_per_second']:.0f} images/s")
    if record.get("max_rss_mb"):
        parts.append(f"{record['max_rss_mb']} MB")
    if record.get("attempts", 1) > 1:
        parts.append(f"{record['attempts']} attempts")
    return ", ".join(parts)


def _settings(text: str | None) -> list[tuple[str, str]]:
    """Return (dotted key, its values in a line) of the settings that a run.json holds."""
    values = json.loads(text) if text else {}
    return [(key, ", ".join(_flat("", values[key])) or "none") for key in sorted(values)]


def _flat(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [part for k, v in sorted(value.items()) for part in _flat(f"{name}.{k}" if name else k, v)]
    return [f"{name} {json.dumps(value).strip(chr(34))}"]


def _relative(path: str, folder: str) -> str:
    return os.path.relpath(path, folder).replace(os.sep, "/")
