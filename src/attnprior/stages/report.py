"""Stage `report`: the page of a study from its tables, figures and records."""

import sys
from pathlib import Path

from attnprior.analysis.history import read_history
from attnprior.analysis.panels import expected_runs
from attnprior.config import build_study
from attnprior.files import sha256, write_text
from attnprior.report.against import read_against
from attnprior.report.inputs import (
    read_captions,
    read_comparisons,
    read_record,
    read_results,
    read_svg,
    read_table,
)
from attnprior.report.names import TITLES
from attnprior.report.page import render
from attnprior.stages.compare import match_runs
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage("report", wildcards=("study",), inputs=("runs*",), outputs=("output",), options=("tables_dir",))
TABLES = ("results.csv", "comparisons.csv", "table.csv", "metrics.json")


def work(job: Job) -> dict:
    """Write the page; it has no metrics of its own."""
    name, folder = job.wildcards["study"], job.args.tables_dir
    histories = {run: Path(run).with_name("history.csv").as_posix() for run in job.args.runs}
    drawn = {figure: f"{folder}/figures/{figure}.svg" for figure in TITLES}
    captions = f"{folder}/figures/captions.json"
    read = [*(f"{folder}/{table}" for table in TABLES), *drawn.values(), captions, *histories.values()]
    job.inputs |= {path: sha256(path) for path in read}
    study = build_study(job.section(f"studies.{name}"), f"studies.{name}")
    beside = None
    if study.paper is not None:
        job.inputs[f"{folder}/paper.csv"] = sha256(f"{folder}/paper.csv")
        beside = read_against(f"{folder}/paper.csv")
    given = match_runs(study, job.args.runs, "--runs")
    tidy = read_results(f"{folder}/{TABLES[0]}", name, study)
    comparisons = read_comparisons(f"{folder}/{TABLES[1]}", name, study)
    table = read_table(f"{folder}/{TABLES[2]}", name, study)
    runs = {path.as_posix(): read_record(path, key) for key, path in given.items()}
    about = read_captions(captions, TITLES)
    figures = [
        {
            "name": figure,
            "title": about["titles"][figure],
            "caption": about["captions"][figure],
            "left_out": figure in about["left_out"],
            "svg": read_svg(path),
        }
        for figure, path in drawn.items()
    ]
    curves = {run: read_history(path) for run, path in histories.items()}
    out = Path(job.args.output)
    students = {arm: job.section(f"students.{arm}") for _, arm, _ in expected_runs(study)}
    page = render(
        study, table, comparisons, tidy, runs, curves, figures, out.parent.as_posix(), students, beside
    )
    write_text(out, page)
    return {}


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
