"""Stage `train_student`: one student, one seed, and its predictions for validation and test images."""

import sys
import time
from dataclasses import asdict

from attnprior.config import Student, build_model, recipe_of
from attnprior.data import datasets
from attnprior.errors import UserError
from attnprior.files import read_header, save_tensors
from attnprior.models.checks import validate_model
from attnprior.models.student_checks import validate_student
from attnprior.ranks import leads
from attnprior.stages.job import Job, Stage, run_stage
from attnprior.train.history import write_history

STAGE = Stage(
    "train_student",
    wildcards=("dataset", "student", "seed"),
    inputs=("data", "init_teacher?", "teacher?", "fit?"),  # of the first weights, of the transfer
    outputs=("weights", "history", "predictions"),
    checkpoint=True,
    shared=True,
)


def work(job: Job) -> dict:
    """Train the student on its labelled images and write weights, history and predictions."""
    name, seed = job.wildcards["student"], job.wildcards["seed"]
    student = job.settings(Student, "students", name)
    model = build_model(job.section(f"models.{student.model}"), f"models.{student.model}")
    recipe = recipe_of(student, job.section(f"recipes.{student.recipe}"), f"students.{name}")
    validate_model(model, f"models.{student.model}")
    validate_student(student, model, recipe, f"students.{name}")
    check_files(job, student)
    data = datasets.load(job.args.data)
    datasets.check_model(model, data, f"models.{student.model}")
    chosen = datasets.subset(
        data.labels[data.split == datasets.TRAIN],
        student.labels,
        data.split_seed,
        len(data.classes),
        f"students.{name}.labels",
    )
    job.total, job.images = recipe.epochs, len(chosen)
    device = job.start_torch()

    from attnprior.models.freeze import fused
    from attnprior.train import parallel
    from attnprior.train.checkpoint import Checkpoint
    from attnprior.train.schedule import describe
    from attnprior.train.students import build_network, load_network, predictions, train_network

    with parallel.joined(device), job.resume(Checkpoint) as checkpoint:
        sources = job.args.init_teacher, job.args.teacher, job.args.fit
        network = build_network(student, model, recipe, seed, *sources, name).to(device)
        job.say(describe(recipe, len(chosen)))
        done = checkpoint.images(len(chosen), recipe.batch_size * recipe.accumulate)
        begin = time.perf_counter()
        rows, flops = train_network(network, data, chosen, student, recipe, seed, checkpoint, job.row)
        parallel.leave()
        if not leads():
            return {}
        job.trained(len(chosen) * len(rows) - done, begin)
        header = {
            "kind": "student",
            "model": asdict(model),
            "logit_scale": network.student.logit_scale,
            "filters": filters_of(student),
            "transfer": asdict(student.transfer),
            "flops": {
                "own": flops,
                "teacher": flops_behind(job.args.init_teacher, job.args.teacher),
                "fit": flops_behind(job.args.fit),
            },
            "parameters": sum(p.numel() for p in network.student.parameters()),
            "trained": sum(p.numel() for p in network.student.parameters() if p.requires_grad),
        }
        save_tensors(job.args.weights, fused(network.student), header)
        write_history(job.args.history, list(rows[0]), rows)
        saved = load_network(job.args.weights, job.args.teacher).to(device)
        save_tensors(job.args.predictions, predictions(saved, data), {"classes": data.classes})
        checkpoint.close(remove=True)
    return {k: v for k, v in rows[-1].items() if k not in ("epoch", "step")}


def filters_of(student: Student) -> dict | None:
    """Return what the structure of a ConvMixer takes from its filters, None for a ViT."""
    init = student.init
    return {"kind": init.kind, "heads": init.heads} if init.source == "filters" else None


def flops_behind(*paths: str | None) -> float:
    """Return the operations that making teacher or fit files took; each file counts once, none is 0."""
    files = {path for path in paths if path}
    return float(sum(sum(read_header(path)["flops"].values()) for path in files))


def check_files(job: Job, student: Student) -> None:
    """Check that the teacher and fit files given are those that the student uses.

    Raises:
        UserError: one is missing or not used.
    """
    where = f"students.{job.wildcards['student']}"
    used = {
        "init_teacher": ("teacher for its first weights", student.init.teacher),
        "teacher": ("teacher for its transfer", student.transfer.teacher),
        "fit": ("fit", student.init.fit),
    }
    for option, (what, needed) in used.items():
        given = getattr(job.args, option) is not None
        if given != (needed is not None):
            raise UserError(
                f"--{option.replace('_', '-')}: {where} uses {'a' if needed else 'no'} {what};"
                f" {'give its file' if needed else 'leave the option out'}"
            )


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
