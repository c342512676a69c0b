"""Stage `report`: the page of a study from its tables."""

import sys

from attnprior.config import build_study
from attnprior.files import read_json, sha256, write_text
from attnprior.report.page import render
from attnprior.report.tables import read_csv
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage("report", wildcards=("study",), inputs=("runs*",), outputs=("output",), options=("tables_dir",))
TABLES = ("results.csv", "comparisons.csv", "table.csv", "metrics.json")


def work(job: Job) -> dict:
    """Write the page; it has no metrics of its own."""
    name, folder = job.wildcards["study"], job.args.tables_dir
    job.inputs |= {f"{folder}/{table}": sha256(f"{folder}/{table}") for table in TABLES}
    study = build_study(job.section(f"studies.{name}"), f"studies.{name}")
    tidy, comparisons, table = (read_csv(f"{folder}/{file}") for file in TABLES[:3])
    runs = {path: read_json(path) for path in job.args.runs}
    write_text(job.args.output, render(study, table, comparisons, tidy, runs))
    return {}


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
