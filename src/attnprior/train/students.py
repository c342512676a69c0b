"""Students from their settings: initial weights, training, and predictions of saved weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnprior.config import AnyModel, ConvMixer, Model, Recipe, Student, Transfer, build, build_model
from attnprior.data.augment import training_images
from attnprior.data.datasets import TEST, TRAIN, VAL, Data
from attnprior.data.loader import normalise, part
from attnprior.data.streaming import choose
from attnprior.errors import UserError
from attnprior.files import load_tensors
from attnprior.init.filters import build_convmixer
from attnprior.init.impulse import write_qk
from attnprior.init.mimetic import apply_mimetic, write_vo
from attnprior.models import convmixer
from attnprior.models.freeze import freeze_encoder, freeze_spatial
from attnprior.models.mae import load_pretrained, load_teacher_encoder
from attnprior.models.transfer_checks import check_freeze, check_options, validate_transfer
from attnprior.models.vit import ViT, build_vit
from attnprior.randomness import generator
from attnprior.train.checkpoint import Checkpoint
from attnprior.train.engine import train, training_flops
from attnprior.train.supervised import Network, Supervised, measure

FIT_KEYS = (
    *("embed_dim", "depth", "num_heads", "image_size", "patch_size", "attention", "value"),
    *("pos_embed", "pos_at", "cls_token"),
)


def build_network(
    settings: Student,
    model: AnyModel,
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
    where = f"students.{name}"
    check_options(settings.transfer, where)
    if isinstance(model, ConvMixer):
        student: Any = build_convmixer(model, settings.init, seed)
    else:
        student = initialised(settings, model, recipe, seed, init_teacher, fit, where)
    if settings.freeze == "spatial":
        freeze_spatial(student)
    elif settings.freeze == "encoder":
        freeze_encoder(student, seed)
    if settings.transfer.method == "none":
        return Network(student, settings.transfer)
    assert teacher is not None and isinstance(model, Model)
    tensors, header = load_tensors(teacher)
    validate_transfer(settings.transfer, model, build(Model, header["model"], f"{teacher}: model"), where)
    check_freeze(settings.freeze, settings.transfer, model, where)
    return Network(student, settings.transfer, load_teacher_encoder(tensors, header))


def initialised(
    settings: Student,
    model: Model,
    recipe: Recipe,
    seed: int,
    teacher: str | None,
    fit: str | None,
    where: str,
) -> ViT:
    """Return a Vision Transformer with its first weights; `teacher` and `fit` are paths.

    Raises:
        UserError: teacher or fit is one of another model, or the source of the weights is unknown.
    """
    source, scale = settings.init.source, None
    made: dict[str, Tensor] = {}
    if source == "impulse":
        assert fit is not None
        made, header = load_tensors(fit)
        _same_model(header["model"], model, fit, where)
        scale = header["logit_scale"]
    student = build_vit(model, seed, drop_path=recipe.drop_path, logit_scale=scale)
    if source == "impulse":
        for layer, attention in enumerate(student.attentions()):
            write_qk(attention, made["q"][layer], made["k"][layer])
            if "v" in made:
                write_vo(attention, made["v"][layer], made["proj"][layer])
        if "pos_embed" in made:
            assert student.pos_embed is not None
            student.pos_embed.data.copy_(made["pos_embed"])
    elif source in ("mimetic", "mimetic_reduced"):
        apply_mimetic(student, seed, bool(settings.init.value), source == "mimetic_reduced")
    elif source == "teacher":
        assert teacher is not None
        load_pretrained(student, load_tensors(teacher)[0])
    elif source != "random":
        allowed = "random, mimetic, mimetic_reduced, impulse, teacher"
        raise UserError(f"{where}.init.source: {source!r}; allowed: {allowed}")
    return student


def empty_network(header: dict[str, Any], where: str) -> ViT | convmixer.ConvMixer:
    """Return the network that a weights file's header describes, for its tensors to be loaded into.

    Raises:
        UserError: the header does not describe one.
    """
    model = build_model(header["model"], f"{where}: model")
    if isinstance(model, ConvMixer):
        return convmixer.ConvMixer(model, **header["filters"])
    return ViT(model, logit_scale=header["logit_scale"])


def _same_model(fitted: dict[str, Any], model: Model, path: str, where: str) -> None:
    for key in FIT_KEYS:
        if fitted.get(key) != getattr(model, key):
            raise UserError(
                f"{where}.init.fit: {path} was fitted for {key} {fitted.get(key)}, the student has"
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
    network.student.eval()  # counting must not move running statistics
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
    transfer = build(Transfer, header["transfer"], f"{weights}: transfer")
    student: Any = empty_network(header, weights)
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
