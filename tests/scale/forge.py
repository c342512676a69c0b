"""Makes the artifacts of a study in the working directory without training: `python -m tests.scale.forge`.

One job of each rule that trains is really run. All others of that rule get files like its own, written by
the stages' own code around the training: same names and formats, records with the hashes of what is there,
event logs. What needs no training (data, evaluation) is really made; tables, figures and page are left out.
"""

import contextlib
import importlib
import shlex
import shutil
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from attnprior.analysis.history import read_history
from attnprior.data import datasets
from attnprior.files import load_tensors, save_tensors
from attnprior.stages.job import Job, run_stage
from attnprior.train.history import write_history
from attnprior.workflow import engines, environment

REAL = ("fetch_dataset", "evaluate")
LEFT = ("compare", "draw", "report")
TRAINED: dict[str, list[str]] = {}  # rule -> the outputs of its real job


def main() -> int:
    environment.set_environment(".")
    with engines.snakemake_graph() as graph:
        commands = [(j, str(j.handle.shellcmd)) for j in graph.jobs if j.rule not in LEFT]
    for job, command in commands:
        for path in job.logs.values():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if job.rule not in REAL and job.rule not in TRAINED:
            subprocess.run(command, shell=True, check=True, executable="/bin/bash")
            TRAINED[job.rule] = job.outputs
            continue
        stage = importlib.import_module(f"attnprior.stages.{job.rule}")
        work = stage.work if job.rule in REAL else student if job.rule == "train_student" else copied
        with open(job.logs["text"], "w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            status = run_stage(stage.STAGE, work, arguments(command))
        assert status == 0, job.key
    return 0


def arguments(command: str) -> list[str]:
    """Return what a rule's shell command gives to its stage."""
    words = shlex.split(command)
    assert words[:2] == ["python", "-m"] and words[-3:-1] == [">", words[-2]], command
    return words[3:-3]


def copied(job: Job) -> dict:
    """Take over the outputs of the rule's real job."""
    job.begin()
    for source, target in zip(TRAINED[job.stage.rule], job.outputs, strict=False):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return {}


def student(job: Job) -> dict:
    """Write a student like the trained one, with weights, curve and predictions of its own."""
    weights, history, _, _ = TRAINED["train_student"]
    name, seed = job.wildcards["student"], job.wildcards["seed"]
    rng = np.random.default_rng([zlib.crc32(job.name.encode())])
    level = zlib.crc32(name.encode()) % 100 / 50
    job.begin()
    tensors, header = template(weights)
    bias = rng.normal(size=tensors["head.bias"].shape).astype(np.float32)
    save_tensors(job.args.weights, {**tensors, "head.bias": bias}, header)
    rows = []
    for row in curve(history):
        rows.append(
            {k: v if k in ("epoch", "step") else v * (1 + 0.02 * rng.random()) for k, v in row.items()}
        )
        job.row(rows[-1])
    write_history(job.args.history, list(rows[0]), rows)
    save_tensors(job.args.predictions, *predictions(job.wildcards["dataset"], level, seed))
    return {k: v for k, v in rows[-1].items() if k not in ("epoch", "step")}


@cache
def template(path: str):
    return load_tensors(path, "numpy")


@cache
def curve(path: str) -> list[dict]:
    columns = read_history(path)
    rows = [
        dict(zip(columns, map(float, values), strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return [{k: int(v) if k in ("epoch", "step") else v for k, v in row.items()} for row in rows]


def predictions(dataset: str, level: float, seed: int) -> tuple[dict, dict]:
    """Return predictions for the held-out images of a data set, right the more often the higher `level`."""
    split, labels, classes = held_out(dataset)
    index = np.flatnonzero(split)
    logits = np.random.default_rng([seed, int(100 * level)]).normal(size=(len(index), len(classes)))
    logits[np.arange(len(index)), labels[index]] += 0.5 + level
    tensors = {"logits": logits.astype(np.float32), "labels": labels[index], "index": index}
    return {**tensors, "split": split[index]}, {"classes": classes}


@cache
def held_out(dataset: str):
    data = datasets.load(f"data/{dataset}.safetensors")
    return data.split, data.labels, data.classes


if __name__ == "__main__":
    sys.exit(main())
