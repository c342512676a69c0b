"""Stage `pretrain_teacher`: a teacher (pre-trained, untrained, a student or a file) and its linear probe."""

import sys
import time
from dataclasses import asdict

from attnprior.config import Model, Recipe, Teacher
from attnprior.data import datasets
from attnprior.errors import UserError
from attnprior.files import read_header, save_tensors, write_json
from attnprior.models.checks import validate_model, validate_teacher
from attnprior.ranks import leads
from attnprior.recipe_keys import check_pretraining
from attnprior.stages.job import Job, Stage, run_stage
from attnprior.train.history import write_history

STAGE = Stage(
    "pretrain_teacher",
    wildcards=("dataset", "teacher", "seed"),
    inputs=("data", "source?"),  # what a teacher that is not trained here is made of
    outputs=("weights", "metrics", "history"),
    checkpoint=True,
    shared=True,
)
COLUMNS = ["epoch", "step", "lr", "loss"]


def work(job: Job) -> dict:
    """Make the teacher, probe it and write its files; pre-training sees no labels."""
    name = job.wildcards["teacher"]
    teacher = job.settings(Teacher, "teachers", name)
    model = job.settings(Model, "models", teacher.model)
    validate_model(model, f"models.{teacher.model}")
    validate_teacher(teacher, model, f"teachers.{name}")
    check_source(job, teacher)
    data = datasets.load(job.args.data)
    datasets.check_model(model, data, f"models.{teacher.model}")
    chosen = datasets.subset(
        data.labels[data.split == datasets.TRAIN],
        teacher.probe.labels,
        data.split_seed,
        len(data.classes),
        f"teachers.{name}.probe.labels",
    )
    if teacher.recipe is not None:
        check_pretraining(job.section(f"recipes.{teacher.recipe}"), f"recipes.{teacher.recipe}")
        job.total = job.settings(Recipe, "recipes", teacher.recipe).epochs
        job.images = int((data.split == datasets.TRAIN).sum())
    device = job.start_torch()

    from attnprior.models.mae import random_teacher, teacher_tensors
    from attnprior.train import parallel
    from attnprior.train.checkpoint import Checkpoint
    from attnprior.train.probe import probe_encoder

    with parallel.joined(device), job.resume(Checkpoint) as checkpoint:
        if teacher.source == "mae":
            network, rows, flops = pretrain(job, teacher, model, data, device, checkpoint)
            encoder = network.encoder
        elif teacher.source == "random":
            network = encoder = random_teacher(model, job.wildcards["seed"]).to(device)
            rows, flops = [], 0
        else:
            network = encoder = made_teacher(job, teacher, model).to(device)
            rows, flops = [], 0
        parallel.leave()
        if not leads():
            return {}
        tensors = teacher_tensors(network)
        header = {
            "kind": "teacher",
            "source": teacher.source,
            "model": asdict(model),
            "logit_scale": encoder.logit_scale,
            "flops": {"own": float(flops), "teacher": flops_behind(job, teacher)},
            "parameters": sum(p.numel() for p in encoder.parameters()),
        }
        metrics = {
            "probe_val_top1": probe_encoder(encoder.eval(), data, chosen, teacher.probe, device),
            "final_loss": rows[-1]["loss"] if rows else None,
            "parameters": header["parameters"],
            "flops": float(flops),
        }
        save_tensors(job.args.weights, tensors, header)
        write_history(job.args.history, COLUMNS, rows)
        write_json(job.args.metrics, metrics)
        checkpoint.close(remove=True)
    return metrics


def check_source(job: Job, teacher: Teacher) -> None:
    """Check the kind of a teacher, and that a file is given exactly if it is made of one.

    Raises:
        UserError: the source is unknown, or the file is missing or not used.
    """
    where = f"teachers.{job.wildcards['teacher']}"
    if teacher.source not in ("mae", "random", "student", "file"):
        raise UserError(f"{where}.source: {teacher.source!r}; allowed: mae, random, student, file")
    needed = teacher.source in ("student", "file")
    if needed != (job.args.source is not None):
        raise UserError(
            f"--source: {where} with source {teacher.source} is made of {'a' if needed else 'no'} file;"
            f" {'give it' if needed else 'leave the option out'}"
        )


def made_teacher(job: Job, teacher: Teacher, model: Model):
    """Return the encoder of a student's weights or of a local file.

    Raises:
        UserError: the file does not fit the model.
    """
    from attnprior.models.handover import encoder_of, read_weights

    path, where = job.args.source, f"teachers.{job.wildcards['teacher']}"
    tensors, header = read_weights(path, teacher.format or "attnprior")
    if teacher.source == "student" and header.get("transfer", {}).get("method") == "copy":
        raise UserError(f"{where}.student: {path} copies attention, so its own is not trained")
    encoder, unused = encoder_of(tensors, model, header.get("logit_scale"), f"{where}: {path}")
    if unused:
        print(f"not used of {path}: {', '.join(unused[:8])}{' ...' if len(unused) > 8 else ''}")
    return encoder


def flops_behind(job: Job, teacher: Teacher) -> float:
    """Return the operations that a student took which is the teacher now; those of a file are not known."""
    return float(sum(read_header(job.args.source)["flops"].values())) if teacher.source == "student" else 0.0


def pretrain(job: Job, teacher: Teacher, model: Model, data, device, checkpoint):
    """Return the trained masked autoencoder, its history and the operations that its training takes."""
    from attnprior.data.augment import training_images
    from attnprior.data.loader import part
    from attnprior.models.mae import build_mae
    from attnprior.train.engine import train, training_flops
    from attnprior.train.pretrain import Pretraining
    from attnprior.train.schedule import describe

    assert teacher.recipe is not None and teacher.decoder is not None
    assert (
        teacher.mask_ratio is not None and teacher.norm_pix_loss is not None and teacher.masking is not None
    )
    recipe, seed = job.settings(Recipe, "recipes", teacher.recipe), job.wildcards["seed"]
    shape = (model, teacher.decoder, teacher.mask_ratio, teacher.norm_pix_loss)
    mae = build_mae(*shape, seed, teacher.masking).to(device)
    images, labels, _ = part(data, datasets.TRAIN, device)
    shifted = training_images(images, data.mean, data.std, recipe.augment)
    objective = Pretraining(mae, seed)
    flops = training_flops(objective, shifted, labels, recipe, seed)
    job.say(describe(recipe, len(images)))
    done = checkpoint.images(len(images), recipe.batch_size * recipe.accumulate)
    begin = time.perf_counter()
    rows = train(mae, objective, shifted, labels, recipe, seed, checkpoint, on_row=job.row)
    job.trained(len(images) * len(rows) - done, begin)
    return mae, rows, flops


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
