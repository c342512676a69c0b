"""Stage `against_paper`: the values that a paper published beside the table of a study."""

import sys
from pathlib import Path

from attnprior import published
from attnprior.config import build_study
from attnprior.errors import UserError
from attnprior.files import write_text
from attnprior.report.against import COLUMNS, against_notes, against_rows, against_table
from attnprior.report.inputs import read_table
from attnprior.report.tables import csv_text, latex, markdown
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage(
    "against_paper",
    wildcards=("study",),
    inputs=("table", "published*"),
    outputs=(),
    options=("out_dir",),
)
OUTPUTS = ("paper.csv", "paper.md", "paper.tex")


def work(job: Job) -> dict:
    """Write the tables and return how many published values were set beside ours, and how many lie inside."""
    name, out = job.wildcards["study"], Path(job.args.out_dir)
    study = build_study(job.section(f"studies.{name}"), f"studies.{name}")
    if study.paper is None:
        raise UserError(
            f"params.yaml: studies.{name} has no paper; give it one, or do not ask for this table"
        )
    table = read_table(job.args.table, name, study)
    rows = against_rows(study, study.paper, table, published.read(job.args.published))
    shown, foot = [against_table(study, study.paper, rows)], against_notes(study, study.paper)
    write_text(out / "paper.csv", csv_text(rows, COLUMNS))
    write_text(out / "paper.md", markdown(shown, foot))
    write_text(out / "paper.tex", latex(shown, foot))
    job.outputs += [(out / f).as_posix() for f in OUTPUTS]
    compared = [r["inside"] for r in rows if r.get("inside")]
    return {"compared": len(compared), "inside": compared.count("yes")}


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
