"""Stage `pretrain_teacher`: a masked autoencoder (or random weights, the control) and its linear probe."""

import sys
import time
from dataclasses import asdict

from attnprior.config import Model, Recipe, Teacher
from attnprior.data import datasets
from attnprior.errors import UserError
from attnprior.files import save_tensors, write_json
from attnprior.models.checks import validate_model, validate_teacher
from attnprior.stages.job import Job, Stage, run_stage
from attnprior.train.history import write_history

STAGE = Stage(
    "pretrain_teacher",
    wildcards=("dataset", "teacher", "seed"),
    inputs=("data",),
    outputs=("weights", "metrics", "history"),
    checkpoint=True,
)
COLUMNS = ["epoch", "step", "lr", "loss"]


def work(job: Job) -> dict:
    """Train the teacher on all training images without their labels, probe it and write its files."""
    name = job.wildcards["teacher"]
    teacher = job.settings(Teacher, "teachers", name)
    model = job.settings(Model, "models", teacher.model)
    validate_model(model, f"models.{teacher.model}")
    validate_teacher(teacher, model, f"teachers.{name}")
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
        job.total = job.settings(Recipe, "recipes", teacher.recipe).epochs
        job.images = int((data.split == datasets.TRAIN).sum())
    device = job.start_torch()

    from attnprior.models.mae import random_teacher, teacher_tensors
    from attnprior.train.checkpoint import Checkpoint
    from attnprior.train.probe import probe_encoder

    with job.resume(Checkpoint) as checkpoint:
        if teacher.source == "mae":
            network, rows, flops = pretrain(job, teacher, model, data, device, checkpoint)
            encoder = network.encoder
        elif teacher.source == "random":
            network = encoder = random_teacher(model, job.wildcards["seed"]).to(device)
            rows, flops = [], 0
        else:
            raise UserError(f"teachers.{name}.source: {teacher.source!r}; allowed: mae, random")
        tensors = teacher_tensors(network)
        header = {
            "kind": "teacher",
            "source": teacher.source,
            "model": asdict(model),
            "logit_scale": encoder.logit_scale,
            "flops": {"own": float(flops), "teacher": 0.0},
            "parameters": sum(p.numel() for p in encoder.parameters()),
        }
        metrics = {
            "probe_val_top1": probe_encoder(encoder.eval(), data, chosen, teacher.probe, device),
            "final_loss": rows[-1]["loss"] if rows else None,
            "parameters": header["parameters"],
            "flops": header["flops"]["own"],
        }
        save_tensors(job.args.weights, tensors, header)
        write_history(job.args.history, COLUMNS, rows)
        write_json(job.args.metrics, metrics)
        checkpoint.close(remove=True)
    return metrics


def pretrain(job: Job, teacher: Teacher, model: Model, data, device, checkpoint):
    """Return the trained masked autoencoder, its history and the operations that its training takes."""
    from attnprior.data.augment import Shifted
    from attnprior.data.loader import part
    from attnprior.models.mae import build_mae
    from attnprior.train.engine import train, training_flops
    from attnprior.train.pretrain import Pretraining

    assert teacher.recipe is not None and teacher.decoder is not None
    assert (
        teacher.mask_ratio is not None and teacher.norm_pix_loss is not None and teacher.masking is not None
    )
    recipe, seed = job.settings(Recipe, "recipes", teacher.recipe), job.wildcards["seed"]
    shape = (model, teacher.decoder, teacher.mask_ratio, teacher.norm_pix_loss)
    mae = build_mae(*shape, seed, teacher.masking).to(device)
    images, labels, _ = part(data, datasets.TRAIN, device)
    shifted = Shifted(images, data.mean, data.std, recipe.shift)
    objective = Pretraining(mae, seed)
    flops = training_flops(objective, shifted, labels, recipe, seed)
    begin, done = time.perf_counter(), checkpoint.epoch
    rows = train(mae, objective, shifted, labels, recipe, seed, checkpoint, on_row=job.row)
    job.images_per_second = round(len(images) * (len(rows) - done) / (time.perf_counter() - begin), 1)
    return mae, rows, flops


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
