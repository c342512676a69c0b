"""Stage `fetch_dataset`: one data file with images, labels and split."""

import sys

from attnprior.config import Dataset
from attnprior.data import datasets
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage("fetch_dataset", wildcards=("dataset",), inputs=(), outputs=("output",))


def work(job: Job) -> dict:
    """Write the data file and return its numbers of images."""
    name = job.wildcards["dataset"]
    return datasets.fetch(name, job.settings(Dataset, "datasets", name), job.args.output)


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
