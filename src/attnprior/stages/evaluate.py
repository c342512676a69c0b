"""Stage `evaluate`: what a trained student made of the test images, measured once (no torch needed)."""

import sys
from pathlib import Path

from attnprior.analysis.metrics import FLOPS, measure, per_class_accuracy
from attnprior.analysis.predictions import of_split, read_predictions
from attnprior.config import Evaluation, build
from attnprior.errors import UserError
from attnprior.files import read_header, write_json
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage(
    "evaluate",
    wildcards=("dataset", "student", "seed"),
    inputs=("predictions", "weights"),
    outputs=("metrics",),
)


def evaluate(predictions: str | Path, weights: str | Path, bins: int) -> dict:
    """Return the content of metrics.json: test and val measures, parameters and training FLOPs.

    `test` holds top1, nll, ece, n and per_class (accuracy by class name, or by index where the predictions
    do not name their classes; classes without test images are left out), `val` the same without per_class,
    None where there is no validation split. Of `weights` only the header is read.

    Raises:
        UserError: a file is unreadable, incomplete or not of a student.
    """
    tensors, about = read_predictions(predictions)
    header = read_header(weights)
    known = "parameters" in header and header.get("flops", {}).keys() >= set(FLOPS)
    if header.get("kind") != "student" or not known:
        raise UserError(f"{weights}: not the weights of a student; delete it and train again")
    logits, labels, _ = of_split(tensors, "test")
    names = about.get("classes") or [str(c) for c in range(logits.shape[1])]
    test: dict = measure(logits, labels, bins)
    test["per_class"] = {names[c]: a for c, a in per_class_accuracy(logits, labels).items()}
    logits, labels, _ = of_split(tensors, "val")
    return {
        "test": test,
        "val": measure(logits, labels, bins) if len(labels) else None,
        "parameters": header["parameters"],
        "flops": {k: header["flops"][k] for k in FLOPS},
    }


def work(job: Job) -> dict:
    """Write metrics.json and return its scalar measures."""
    bins = build(Evaluation, job.section("evaluation"), "evaluation").ece_bins
    found = evaluate(job.args.predictions, job.args.weights, bins)
    write_json(job.args.metrics, found)
    splits = [s for s in ("test", "val") if found[s]]
    return {f"{s}_{k}": found[s][k] for s in splits for k in ("top1", "nll", "ece")}


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
