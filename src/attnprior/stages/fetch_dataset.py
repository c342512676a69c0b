"""Stage `fetch_dataset`: one data file with images, labels and split."""

import sys

from attnprior.config import Dataset
from attnprior.data import fetching, rules
from attnprior.files import sha256
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage("fetch_dataset", wildcards=("dataset",), inputs=(), outputs=("output",))


def work(job: Job) -> dict:
    """Write the data file and return its numbers of images."""
    name = job.wildcards["dataset"]
    values = job.section(f"datasets.{name}")
    # With an entry that a scaled study derives comes the one that it is derived from, which users know.
    entries = [key.partition(".")[2] for key in job.params if key.startswith("datasets.")]
    origin = next((entry for entry in entries if entry != name), name)
    rules.check_keys(values, f"datasets.{origin}")
    settings = job.settings(Dataset, "datasets", name)
    # Local archives are inputs: another content makes the data file stale.
    job.inputs |= {p: sha256(p) for p in rules.present_files(values, f"datasets.{origin}")}
    return fetching.fetch(name, values, settings, job.args.output, job.say, origin)


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
