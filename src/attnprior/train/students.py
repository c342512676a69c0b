"""Students from their settings: initial weights, training, and predictions of saved weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnprior.config import Model, Recipe, Student, Transfer, build
from attnprior.data.augment import training_images
from attnprior.data.datasets import TEST, TRAIN, VAL, Data
from attnprior.data.loader import normalise, part
from attnprior.data.streaming import choose
from attnprior.errors import UserError
from attnprior.files import load_tensors
from attnprior.init.impulse import write_qk
from attnprior.init.mimetic import apply_mimetic
from attnprior.models.mae import load_pretrained, load_teacher_encoder
from attnprior.models.transfer_checks import check_options, validate_transfer
from attnprior.models.vit import ViT, build_vit
from attnprior.randomness import generator
from attnprior.train.checkpoint import Checkpoint
from attnprior.train.engine import train, training_flops
from attnprior.train.supervised import Network, Supervised, measure

FIT_KEYS = ("embed_dim", "depth", "num_heads", "image_size", "patch_size", "pos_embed", "pos_at")


def build_network(
    settings: Student,
    model: Model,
    recipe: Recipe,
    seed: int,
    init_teacher: str | None,
    teacher: str | None,
    fit: str | None,
    name: str,
) -> Network:
    """Return the initialised student `name`, with its frozen teacher if it transfers from one.

    `init_teacher` (of its first weights), `teacher` (of its transfer) and `fit` are paths. The random
    weights are the same for all sources of a seed.

    Raises:
        UserError: a file does not fit the student's model, or a setting is unknown.
    """
    where, source, scale = f"students.{name}", settings.init.source, None
    check_options(settings.transfer, where)
    qk: dict[str, Tensor] = {}
    if source == "impulse":
        assert fit is not None
        qk, header = load_tensors(fit)
        _same_model(header["model"], model, fit, where)
        scale = header["logit_scale"]
    student = build_vit(model, seed, drop_path=recipe.drop_path, logit_scale=scale)
    if source == "impulse":
        for layer, block in enumerate(student.blocks):
            write_qk(block.attn, qk["q"][layer], qk["k"][layer])  # type: ignore[arg-type]
    elif source == "mimetic":
        apply_mimetic(student, seed, bool(settings.init.value))
    elif source == "teacher":
        assert init_teacher is not None
        load_pretrained(student, load_tensors(init_teacher)[0])
    elif source != "random":
        raise UserError(f"{where}.init.source: {source!r}; allowed: random, mimetic, impulse, teacher")
    if settings.transfer.method == "none":
        return Network(student, settings.transfer)
    assert teacher is not None
    tensors, header = load_tensors(teacher)
    validate_transfer(settings.transfer, model, build(Model, header["model"], f"{teacher}: model"), where)
    return Network(student, settings.transfer, load_teacher_encoder(tensors, header))


def _same_model(fitted: dict[str, Any], model: Model, path: str, where: str) -> None:
    for key in FIT_KEYS:
        if fitted[key] != getattr(model, key):
            raise UserError(
                f"{where}.init.fit: {path} was fitted for {key} {fitted[key]}, the student has"
                f" {getattr(model, key)}; give the fit and the student the same model"
            )


def permuted(labels: Tensor, seed: int) -> Tensor:
    """Return labels (n,) in an order drawn once per run: class counts stay, what labels say does not."""
    order = torch.randperm(len(labels), generator=generator(seed, "permute_labels"))
    return labels[order.to(labels.device)]


def train_network(
    network: Network,
    data: Data,
    chosen,
    settings: Student,
    recipe: Recipe,
    seed: int,
    checkpoint: Checkpoint,
    on_row: Callable[[dict], None],
) -> tuple[list[dict[str, Any]], float]:
    """Train on the training images `chosen` (n,) and return the history and the operations it takes.

    Validation images are measured after every epoch, test images never. Where the settings permute
    labels, it is those of the training images alone.
    """
    device = next(network.student.parameters()).device
    images, labels, _ = part(data, TRAIN, device)
    index = torch.from_numpy(chosen).to(device)
    shifted = training_images(choose(images, index), data.mean, data.std, recipe.augment)
    own = permuted(labels[index], seed) if settings.permute_labels else labels[index]  # n
    val, val_labels, _ = part(data, VAL, device)
    val = normalise(val, data.mean, data.std)
    objective = Supervised(network, recipe, seed)
    flops = training_flops(objective, shifted, own, recipe, seed)
    rows = train(
        network.student,
        objective,
        shifted,
        own,
        recipe,
        seed,
        checkpoint,
        evaluate=(lambda: measure(network.predict(val), val_labels, "val")) if len(val) else None,
        on_row=on_row,
    )
    return rows, flops


def load_network(weights: str, teacher: str | None) -> Network:
    """Return a trained student in evaluation mode from its file, and the teacher that it needs to predict.

    Raises:
        UserError: a file is corrupt or does not fit.
    """
    tensors, header = load_tensors(weights)
    model = build(Model, header["model"], f"{weights}: model")
    transfer = build(Transfer, header["transfer"], f"{weights}: transfer")
    student = ViT(model, logit_scale=header["logit_scale"])
    student.load_state_dict(tensors)
    network = Network(student.eval(), transfer)
    if transfer.method == "copy":
        assert teacher is not None
        network.teacher = load_teacher_encoder(*load_tensors(teacher))
    return network


def predictions(network: Network, data: Data) -> dict[str, Tensor]:
    """Return logits (M, classes), labels, rows in the data file and split of validation and test images."""
    device = next(network.student.parameters()).device
    found: dict[str, list[Tensor]] = {"logits": [], "labels": [], "index": [], "split": []}
    for split in (VAL, TEST):
        images, labels, index = part(data, split, device)
        if len(images):
            found["logits"].append(network.predict(normalise(images, data.mean, data.std)))
            found["labels"].append(labels)
            found["index"].append(index)
            found["split"].append(torch.full_like(index, split))
    return {name: torch.cat([t.cpu() for t in tensors]) for name, tensors in found.items()}
