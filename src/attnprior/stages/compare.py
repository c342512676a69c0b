"""Stage `compare`: the tables of a study from exactly the runs that it was given."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attnprior.analysis import metrics as measures
from attnprior.analysis.panels import (
    COMPARISON_COLUMNS,
    ROW_COLUMNS,
    TIDY_COLUMNS,
    Key,
    Run,
    expected_runs,
    panel_results,
    tidy,
)
from attnprior.analysis.predictions import of_split, read_predictions
from attnprior.config import Study, build_study
from attnprior.errors import UserError
from attnprior.files import read_json, write_json, write_text
from attnprior.report.tables import csv_text, latex, make_table, markdown, metrics_tree, notes
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage(
    "compare", wildcards=("study",), inputs=("metrics*", "predictions*"), outputs=(), options=("out_dir",)
)

IDENTITY = re.compile(r"(?:^|/)runs/([a-z][a-z0-9_]*)/([a-z][a-z0-9_]*)/seed(\d+)/[^/]+$")
OUTPUTS = ("results.csv", "comparisons.csv", "table.csv", "table.md", "table.tex", "metrics.json")


def identity(path: str | Path) -> Key:
    """Return (data set, student, seed) of a file below `runs/`.

    Raises:
        UserError: the path names no run.
    """
    match = IDENTITY.search(Path(path).as_posix())
    if not match:
        raise UserError(f"{path}: belongs to no run; expected runs/DATASET/STUDENT/seedN/FILE")
    return match[1], match[2], int(match[3])


def match_runs(study: Study, paths: Sequence[str | Path], option: str) -> dict[Key, Path]:
    """Return each path by the run it belongs to; together they must be the runs of the study, each once.

    Raises:
        UserError: a run is given twice, is missing or belongs to no arm, data set or seed of the study.
    """
    keys = [identity(p) for p in paths]
    wanted = expected_runs(study)
    known, given = set(wanted), set(keys)
    for problem, found in (
        ("given twice", [k for k, n in Counter(keys).items() if n > 1]),
        ("not in the study", [k for k in keys if k not in known]),
        ("missing", [k for k in wanted if k not in given]),
    ):
        if found:
            shown = ", ".join("{}/{}/seed{}".format(*k) for k in found[:3])
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise UserError(f"{option}: {shown}{more} {problem}; give each arm, data set and seed once")
    return dict(zip(keys, map(Path, paths), strict=True))


def read_run(metrics: Path, predictions: Path) -> Run:
    """Return one run read from its metrics.json and predictions.safetensors.

    Raises:
        UserError: a file is unreadable, or both do not belong together.
    """
    content = read_json(metrics)
    logits, labels, index = of_split(read_predictions(predictions)[0], "test")
    values = {
        "top1": measures.correct(logits, labels).astype("float64"),
        "nll": measures.nll(logits, labels),
    }
    try:
        known = {"ece", "per_class", "n"} <= content["test"].keys()
        known = known and content["flops"].keys() >= set(measures.FLOPS)
        known = known and {"val", "parameters"} <= content.keys()
        gaps = [abs(content["test"][k] - v.mean()) / (1 + abs(v.mean())) for k, v in values.items()]
    except (AttributeError, KeyError, TypeError) as e:
        raise UserError(f"{metrics}: measures are missing; run `evaluate` again") from e
    if not known:
        raise UserError(f"{metrics}: measures are missing; run `evaluate` again")
    if max(gaps) > 1e-9:
        raise UserError(f"{metrics}: does not belong to {predictions}; run `evaluate` again")
    return Run(content, index, values)


def compare(
    name: str, study: Study, metrics: Sequence[str], predictions: Sequence[str], out_dir: Path
) -> dict:
    """Write the tables of study `name` to `out_dir` and return the content of its metrics.json.

    Raises:
        UserError: files are missing, doubled, foreign to the study, unreadable or disagree.
    """
    measured = match_runs(study, metrics, "--metrics")
    predicted = match_runs(study, predictions, "--predictions")
    runs = {k: read_run(measured[k], predicted[k]) for k in expected_runs(study)}
    results = panel_results(study, runs)
    several = len(study.datasets) > 1
    tables = [
        make_table(
            f"{r.panel.title}, {r.dataset}" if several else r.panel.title,
            r.panel.baseline,
            r.rows,
            study.confidence,
        )
        for r in results
    ]
    foot = notes(study, {r.dataset: r.test_images for r in results})
    tree = metrics_tree(results)
    write_text(out_dir / "results.csv", csv_text(tidy(name, study, runs), TIDY_COLUMNS))
    write_text(
        out_dir / "comparisons.csv", csv_text([c for r in results for c in r.comparisons], COMPARISON_COLUMNS)
    )
    write_text(out_dir / "table.csv", csv_text([row for r in results for row in r.rows], ROW_COLUMNS))
    write_text(out_dir / "table.md", markdown(tables, foot))
    write_text(out_dir / "table.tex", latex(tables, foot))
    write_json(out_dir / "metrics.json", tree)
    return tree


def work(job: Job) -> dict:
    """Write the tables and return the mean test accuracy and difference to the baseline of each arm."""
    name, out = job.wildcards["study"], Path(job.args.out_dir)
    study = build_study(job.section(f"studies.{name}"), f"studies.{name}")
    tree = compare(name, study, job.args.metrics, job.args.predictions, out)
    job.outputs += [(out / f).as_posix() for f in OUTPUTS]
    shown = ("top1_mean", "difference")
    return {
        f"{p}/{a}/{k}": v
        for p, arms in tree.items()
        for a, r in arms.items()
        for k, v in r.items()
        if k in shown
    }


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
