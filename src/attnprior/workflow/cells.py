"""Numbers of a study's tables: what each means, from which runs it was made, and the same made again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from attnprior.errors import UserError, nearest
from attnprior.files import read_json
from attnprior.workflow.lineage import Lineage, Made

TABLES = ("table.csv", "results.csv", "comparisons.csv")
IDENTITY = ("study", "dataset", "panel", "metric", "family", "arm", "reference", "role", "seed", "split")
FLOPS = {"gflop_own": "own", "gflop_teacher": "teacher", "gflop_fit": "fit"}
SPREAD = {
    "mean": "mean over seeds",
    "std": "sample standard deviation (n - 1) over seeds",
    "low": "lower end of the {confidence:g} % Student t interval over seeds",
    "high": "upper end of the {confidence:g} % Student t interval over seeds",
}
PAIRED = {
    "difference": "mean of the differences to {reference}, seed by seed",
    "std": "sample standard deviation (n - 1) of the differences to {reference}",
    "low": "lower end of the {confidence:g} % Student t interval of the differences to {reference}",
    "high": "upper end of the {confidence:g} % Student t interval of the differences to {reference}",
    "bootstrap_low": "lower end of the {confidence:g} % bootstrap interval of the difference to {reference}"
    " over seeds and test images",
    "bootstrap_high": "upper end of the {confidence:g} % bootstrap interval of the difference to {reference}"
    " over seeds and test images",
    "p": "two-sided p of the paired t test against {reference}",
    "p_holm": "that p after Holm's correction over the comparisons of the panel's arms",
}


@dataclass(frozen=True)
class Value:
    """One value read from a run's metrics.json."""

    arm: str
    seed: int
    measure: str  # dotted key
    value: Any  # None if the file does not tell
    path: str


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    table: str
    row: str
    column: str
    value: Any
    meaning: str
    recomputed: Any  # from the runs' files as they are now; None if they do not give it
    values: list[Value]
    also: list[str]  # other files of runs that the number depends on


class Table:
    """A table of a study with the same rows made again from the runs that its job read."""

    def __init__(self, path: str, job: Made) -> None:
        """Read the table and, as far as they are here and fit each other, the runs behind it.

        Raises:
            UserError: the table is missing or unreadable.
        """
        from attnprior.analysis.panels import COMPARISON_COLUMNS, ROW_COLUMNS, TIDY_COLUMNS, members
        from attnprior.config import build_study
        from attnprior.report.tables import read_csv
        from attnprior.stages.compare import match_runs

        self.name = job.record["wildcards"]["study"]
        key = f"studies.{self.name}"
        self.path, self.kind = path, PurePosixPath(path).name
        self.study = build_study(json.loads(job.record["params"])[key], key)
        self.members = {name: list(members(panel)) for name, panel in self.study.panels.items()}
        of = {kind: [p for p in job.data if p.endswith(f"/{kind}")] for kind in FILES}
        self.files = {kind: match_runs(self.study, paths, kind) for kind, paths in of.items()}
        columns = dict(zip(TABLES, (ROW_COLUMNS, TIDY_COLUMNS, COMPARISON_COLUMNS), strict=True))
        self.rows = read_csv(path, columns[self.kind])
        self.problem: str | None = None  # why the numbers cannot be made again
        try:
            self.again = self._made_again()
        except UserError as e:
            self.again, self.problem = [], str(e)

    def _made_again(self) -> list[dict]:
        """Return the rows of the table as the runs give them now.

        Raises:
            UserError: a file of a run is missing or unreadable, or its files do not belong together.
        """
        from attnprior.analysis.panels import expected_runs, panel_results, tidy
        from attnprior.report.tables import rounded
        from attnprior.stages.compare import read_run

        runs = {k: read_run(*(self.files[kind][k] for kind in FILES)) for k in expected_runs(self.study)}
        if self.kind == "results.csv":
            rows = tidy(self.name, self.study, runs)
        else:
            results = panel_results(self.study, runs)
            rows = [row for r in results for row in (r.rows if self.kind == "table.csv" else r.comparisons)]
        return [{k: rounded(v) for k, v in row.items()} for row in rows]

    def cells(self, row: str, column: str | None) -> list[Cell]:
        """Return the numbers of the rows that `row` names (its parts in any order), of `column` or all.

        A column may be named without its last part: `top1` for `top1_mean`, `top1_std` and so on.
        In results.csv, which has a number in each row, `column` is the metric.

        Raises:
            UserError: no such row or column.
        """
        parts = [p for p in row.split("/") if p]
        found = [(r, a) for r, a in zip(self.rows, self._aligned(), strict=True) if _is_named(r, parts)]
        if not found:
            arms = list(dict.fromkeys(str(r["arm"]) for r in self.rows))
            raise UserError(
                f"{self.path}: no row {row!r}{nearest(parts[0] if parts else '', arms)};"
                f" arms: {', '.join(arms)}"
            )
        out = [c for r, a in found for c in self._of_row(r, a, column)]
        if not out:
            have = list(dict.fromkeys(c for r, _ in found for c in _columns(r, self.kind)))
            raise UserError(
                f"{self.path}: no number {column!r} in row {row!r}{nearest(str(column), have)};"
                f" there are: {', '.join(have)}"
            )
        return out

    def _aligned(self) -> list[dict | None]:
        """Return the row made again for each row of the file, None where there is none."""
        by_key = {_key(r): r for r in self.again}
        return [by_key.get(_key(r)) for r in self.rows]

    def _of_row(self, row: dict, again: dict | None, column: str | None) -> list[Cell]:
        out = []
        columns = _columns(row, self.kind)
        if column is not None:
            columns = [c for c in columns if c == column] or [
                c for c in columns if c.startswith(f"{column}_")
            ]
        for name in columns:
            field = "value" if self.kind == "results.csv" else name
            meaning, arms, measure = self._meaning(row, name)
            values = [v for arm in arms for v in self._values(row, arm, measure)]
            recomputed = again.get(field) if again else None
            label = "/".join(
                str(row[k]) if k != "seed" else f"seed{row[k]}"
                for k in IDENTITY[1:]
                if k in row and k not in ("role", "family") and row[k] is not None
            )
            also = self._also(row, name)
            out.append(Cell(self.path, label, name, row[field], meaning, recomputed, values, also))
        return out

    def _meaning(self, row: dict, column: str) -> tuple[str, list[str], str]:
        """Return (how the number is made, the arms whose values it is made from, the measure)."""
        if self.kind == "results.csv":
            metric, split = str(row["metric"]), row["split"]
            if metric.startswith("accuracy/"):
                metric = metric.replace("accuracy/", "per_class.", 1)
            measure = metric.replace("flops_", "flops.") if split is None else f"{split}.{metric}"
            return "as measured", [row["arm"]], measure
        about: dict[str, Any] = {"confidence": 100 * self.study.confidence}
        if self.kind == "comparisons.csv":
            about["reference"] = row["reference"]
            words = "number of seeds" if column == "seeds" else PAIRED[column].format(**about)
            return words, [row["arm"], row["reference"]], f"test.{row['metric']}"
        arm, baseline = row["arm"], self.study.panels[row["panel"]].baseline
        if column.startswith("difference"):
            kind = column.removeprefix("difference_")
            return PAIRED[kind].format(reference=baseline, **about), [arm, baseline], "test.top1"
        if column in FLOPS:
            return "mean over seeds, in 10^9", [arm], f"flops.{FLOPS[column]}"
        if column in ("seeds", "parameters"):
            words = {"seeds": "number of seeds", "parameters": "trained numbers of the model"}[column]
            return words, [arm], "parameters" if column == "parameters" else "test.top1"
        metric, _, kind = column.rpartition("_")
        return SPREAD[kind].format(**about), [arm], f"test.{metric}"

    def _values(self, row: dict, arm: str, measure: str) -> list[Value]:
        seeds = [row["seed"]] if "seed" in row else self.study.seeds
        values = []
        for seed in seeds:
            path = self.files["metrics.json"][row["dataset"], arm, seed].as_posix()
            try:
                node: Any = read_json(path)
                for part in measure.split(".", 2 if "per_class" in measure else -1):
                    node = node[part]
            except (UserError, KeyError, TypeError):
                node = None
            values.append(Value(arm, seed, measure, node, path))
        return values

    def _also(self, row: dict, column: str) -> list[str]:
        """Return files that a number depends on besides the values shown with it."""
        arms = [row["arm"], row.get("reference") or self.study.panels[row["panel"]].baseline]
        if column.endswith("p_holm"):
            keys = [(row["dataset"], arm, k) for arm in self.members[row["panel"]] for k in self.study.seeds]
            return [self.files["metrics.json"][k].as_posix() for k in keys]
        if "bootstrap" in column:
            keys = [(row["dataset"], arm, k) for arm in arms for k in self.study.seeds]
            return [self.files["predictions.safetensors"][k].as_posix() for k in keys]
        return []


FILES = ("metrics.json", "predictions.safetensors")


def _columns(row: Mapping[str, Any], kind: str) -> list[str]:
    if kind == "results.csv":
        return [str(row["metric"])]
    return [k for k, v in row.items() if k not in IDENTITY and v is not None]


def _key(row: Mapping[str, Any]) -> tuple:
    return tuple(str(row[k]) for k in IDENTITY if row.get(k) not in (None, ""))


def _is_named(row: Mapping[str, Any], parts: list[str]) -> bool:
    have = {str(row[k]) for k in IDENTITY if k in row} | ({f"seed{row['seed']}"} if "seed" in row else set())
    return bool(parts) and row["arm"] in parts and all(p in have for p in parts)


def table_of(lineage: Lineage, path: str) -> Table:
    """Return the table at `path` with its runs.

    Raises:
        UserError: it is none of a study's tables, or no job is known to have written it.
    """
    if PurePosixPath(path).name not in TABLES:
        raise UserError(
            f"{path}: cells can be traced of {', '.join(TABLES)}; for the whole file leave out `:…`"
        )
    job = lineage.producer(path)
    if job is None:
        raise UserError(f"{path}: no such table, or no run.json beside it; `dvc pull` or `attnprior run`")
    return Table(path, job)
