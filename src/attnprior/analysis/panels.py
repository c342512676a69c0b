"""From the runs of a study to the rows of its tables and comparisons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnprior.analysis.metrics import FLOPS
from attnprior.analysis.stats import bootstrap_means, holm, paired, percentile_interval, summary
from attnprior.config import Panel, Study
from attnprior.errors import UserError

Row = dict[str, Any]
Key = tuple[str, str, int]  # data set, student, seed
COMPARED = ("top1", "nll")
TIDY_COLUMNS = ("study", "dataset", "panel", "arm", "role", "seed", "split", "metric", "value")
ROW_COLUMNS = (
    *("dataset", "panel", "arm", "role", "seeds"),
    *(f"{m}_{k}" for m in ("top1", "nll", "ece") for k in ("mean", "std", "low", "high")),
    *(
        "difference",
        "difference_low",
        "difference_high",
        "difference_bootstrap_low",
        "difference_bootstrap_high",
    ),
    *("difference_p", "difference_p_holm", "parameters", *(f"gflop_{k}" for k in FLOPS)),
)
COMPARISON_COLUMNS = (
    *(
        "dataset",
        "panel",
        "metric",
        "family",
        "arm",
        "reference",
        "seeds",
        "difference",
        "std",
        "low",
        "high",
    ),
    *("bootstrap_low", "bootstrap_high", "p", "p_holm"),
)


@dataclass(frozen=True)
class Run:
    """One evaluated student: its metrics.json, and its test images with what it made of each."""

    metrics: dict[str, Any]
    index: np.ndarray  # (M,) rows in the data file
    values: dict[str, np.ndarray]  # per image (M,): top1 is 0 or 1, nll is in nats


@dataclass(frozen=True)
class PanelResult:
    """One panel on one data set: `rows` has one entry per arm, `comparisons` one per pair and metric."""

    key: str  # panel, followed by _dataset where the study has several data sets
    dataset: str
    name: str
    panel: Panel
    test_images: int
    rows: list[Row] = field(default_factory=list)
    comparisons: list[Row] = field(default_factory=list)


def members(panel: Panel) -> dict[str, str]:
    """Return the role (arm or control) of each student of a panel, in the order shown."""
    return {**dict.fromkeys(panel.arms, "arm"), **dict.fromkeys(panel.controls, "control")}


def by_panel(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each (data set, panel), in their order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["dataset"], row["panel"]), []).append(row)
    return found


def expected_runs(study: Study) -> list[Key]:
    """Return every (data set, student, seed) of a study once."""
    students = dict.fromkeys(s for panel in study.panels.values() for s in members(panel))
    return [(d, s, k) for d in study.datasets for s in students for k in study.seeds]


def tidy(study_name: str, study: Study, runs: Mapping[Key, Run]) -> list[Row]:
    """Return one row per panel, arm, seed and metric; per-class accuracies are named `accuracy/CLASS`."""
    rows = []
    for dataset in study.datasets:
        for panel_name, panel in study.panels.items():
            for arm, role in members(panel).items():
                for seed in study.seeds:
                    m = runs[dataset, arm, seed].metrics
                    splits = [s for s in ("test", "val") if m[s]]
                    cells = [(s, k, m[s][k]) for s in splits for k in ("top1", "nll", "ece", "n")]
                    cells += [("test", f"accuracy/{c}", v) for c, v in m["test"]["per_class"].items()]
                    cells += [("", "parameters", m["parameters"])]
                    cells += [("", f"flops_{k}", m["flops"][k]) for k in FLOPS]
                    head: Row = {"study": study_name, "dataset": dataset, "panel": panel_name, "arm": arm}
                    head |= {"role": role, "seed": seed}
                    rows += [{**head, "split": s, "metric": k, "value": v} for s, k, v in cells]
    return rows


def panel_results(study: Study, runs: Mapping[Key, Run]) -> list[PanelResult]:
    """Return the table rows and paired comparisons of each panel on each data set.

    Differences to the baseline are one family of tests and all other pairs another: Holm's correction
    runs within each family, panel, data set and metric.

    Raises:
        UserError: a baseline is no arm of its panel, or the runs of a data set saw different test images.
    """
    results = []
    for dataset in study.datasets:
        images = _test_images(study, runs, dataset)
        for name, panel in study.panels.items():
            if panel.baseline not in members(panel):
                allowed = ", ".join(members(panel))
                raise UserError(
                    f"params.yaml: panels.{name}.baseline: {panel.baseline!r} is no arm; allowed: {allowed}"
                )
            key = name if len(study.datasets) == 1 else f"{name}_{dataset}"
            result = PanelResult(key, dataset, name, panel, images)
            for metric in COMPARED:
                result.comparisons.extend(_compare(study, runs, dataset, name, panel, metric))
            against = {
                r["arm"]: r for r in result.comparisons if r["family"] == "baseline" and r["metric"] == "top1"
            }
            for arm, role in members(panel).items():
                of_arm = [runs[dataset, arm, k].metrics for k in study.seeds]
                result.rows.append(_row(study, dataset, name, arm, role, of_arm, against.get(arm)))
            results.append(result)
    return results


def _test_images(study: Study, runs: Mapping[Key, Run], dataset: str) -> int:
    first: tuple[Key, Run] | None = None
    for key in expected_runs(study):
        if key[0] != dataset:
            continue
        first = first or (key, runs[key])
        if not np.array_equal(runs[key].index, first[1].index):
            a, b = ("runs/{}/{}/seed{}".format(*k) for k in (first[0], key))
            raise UserError(
                f"{b}/predictions.safetensors: other test images than {a}; evaluate both on one data file"
            )
    assert first is not None
    return len(first[1].index)


def _row(study: Study, dataset, name, arm, role, metrics: list[dict], against: Row | None) -> Row:
    row: Row = {"dataset": dataset, "panel": name, "arm": arm, "role": role, "seeds": len(metrics)}
    for k in ("top1", "nll", "ece"):
        s = summary([m["test"][k] for m in metrics], study.confidence)
        row |= {f"{k}_mean": s.mean, f"{k}_std": s.std, f"{k}_low": s.low, f"{k}_high": s.high}
    for k in ("difference", "low", "high", "bootstrap_low", "bootstrap_high", "p", "p_holm"):
        row["difference" if k == "difference" else f"difference_{k}"] = against[k] if against else None
    row["parameters"] = metrics[0]["parameters"]
    row |= {f"gflop_{k}": float(np.mean([m["flops"][k] for m in metrics])) / 1e9 for k in FLOPS}
    return row


def _compare(study: Study, runs: Mapping[Key, Run], dataset, name, panel: Panel, metric: str) -> list[Row]:
    arms = list(members(panel))
    arms.remove(panel.baseline)
    arms.append(panel.baseline)  # every pair with the baseline has it as the reference
    per_image = np.stack([[runs[dataset, a, k].values[metric] for k in study.seeds] for a in arms])  # A S M
    resampled = bootstrap_means(per_image) if len(study.seeds) > 1 else None
    means = [[runs[dataset, a, k].metrics["test"][metric] for k in study.seeds] for a in arms]
    rows: list[Row] = []
    for i, arm in enumerate(arms):
        for j in range(i + 1, len(arms)):
            d = paired(means[i], means[j], study.confidence)
            low = high = None
            if resampled is not None:
                low, high = percentile_interval(resampled[i] - resampled[j], study.confidence)
            family = "baseline" if arms[j] == panel.baseline else "other"
            row = {"dataset": dataset, "panel": name, "metric": metric, "family": family, "arm": arm}
            row |= {"reference": arms[j], "seeds": d.n, "difference": d.mean, "std": d.std}
            row |= {"low": d.low, "high": d.high, "bootstrap_low": low, "bootstrap_high": high, "p": d.p}
            rows.append(row)
    for family in ("baseline", "other"):
        chosen = [r for r in rows if r["family"] == family]
        for row, p in zip(chosen, holm([r["p"] for r in chosen]), strict=True):
            row["p_holm"] = p
    return sorted(rows, key=lambda r: r["family"] != "baseline")
