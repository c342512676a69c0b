"""Attention transfer (arXiv 2411.09702): what a student copies or distils from a teacher, layer by layer."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprior.config import Model, Transfer
from attnprior.models.copying import Copied
from attnprior.models.vit import ViT
from attnprior.selection import head_numbers, layer_pairs

QK = Sequence[tuple[Tensor, Tensor]]  # per layer: q, k, each (B, H, N, R)
Parts = Mapping[str, Sequence[Tensor]]  # per chosen layer: "q", "k", "v" (B, h, n, R) or "tokens" (B, n, D)


def parts_of(transfer: Transfer) -> tuple[str, ...]:
    """Return what a transfer needs of both networks: some of "q", "k" and "v", or "tokens"."""
    if transfer.method == "distil_features":
        return ("tokens",)
    assert transfer.what is not None
    return ("q", "k") if transfer.what == "map" else tuple(transfer.what)


def pairs_of(transfer: Transfer, student: Model, teacher: Model) -> list[tuple[int, int]]:
    """Return the transferred (layer of the student, layer of the teacher), from 0."""
    assert transfer.layers is not None
    return layer_pairs(transfer.layers, student.depth, teacher.depth)


def chosen(
    recorded: Parts, layers: Sequence[int], transfer: Transfer, model: Model
) -> dict[str, list[Tensor]]:
    """Return what is transferred of a network's intermediates, in the chosen layers, heads and tokens."""
    front = int(model.cls_token and transfer.class_token is False)  # tokens that take no part
    heads = None if transfer.heads is None else head_numbers(transfer.heads, model.num_heads)
    found: dict[str, list[Tensor]] = {}
    for name in parts_of(transfer):
        tensors = [recorded[name][i] for i in layers]
        if heads is not None and len(heads) < model.num_heads:
            tensors = [t[:, list(heads)] for t in tensors]
        found[name] = [t[..., front:, :] for t in tensors] if front else tensors
    return found


def taught(
    teacher: ViT,
    images: Tensor,
    transfer: Transfer,
    student: Model,
    other: Tensor | None,
    drop: Tensor | None,
) -> dict[str, list[Tensor]]:
    """Return what a teacher gives for images (B, C, H, W): that of image `other[i]` for image i, if given.

    `drop` are the student's drop-path masks. No gradient reaches the teacher.
    """
    layers = [t for _, t in pairs_of(transfer, student, teacher.config)]
    recorded = teacher.intermediates(images, 1 + max(layers), parts_of(transfer), drop)
    found = chosen(recorded, layers, transfer, teacher.config)
    return found if other is None else {name: [t[other] for t in ts] for name, ts in found.items()}


def averaged(maps: Tensor, how: str | None) -> Tensor:
    """Return maps (..., B, H, N, N), or their mean over images or over queries, with size 1 there."""
    if how == "mean_images":
        return maps.mean(-4, keepdim=True)
    return maps.mean(-2, keepdim=True) if how == "mean_queries" else maps


def copied_layers(given: Parts, transfer: Transfer, student: Model, teacher: ViT) -> list[Copied | None]:
    """Return the argument `copied` of `ViT.forward`: what `taught` gave, by layer of the student.

    Whole maps of all tokens stay in their factors, so that the fused product can use them.
    """
    assert transfer.heads is not None
    heads = head_numbers(transfer.heads, student.num_heads)
    scale = teacher.logit_scale if {"q", "k"} <= given.keys() else None
    copied: list[Copied | None] = [None] * student.depth
    front = student.cls_token and not transfer.class_token
    mean = transfer.maps in ("mean_images", "mean_queries")
    for i, (layer, _) in enumerate(pairs_of(transfer, student, teacher.config)):
        parts = {name: tensors[i] for name, tensors in given.items()}
        if transfer.what == "map" and (front or mean):
            maps = (teacher.logit_scale * (parts["q"] @ parts["k"].transpose(-2, -1))).softmax(-1)
            copied[layer] = Copied(heads, map=averaged(maps, transfer.maps).expand_as(maps))
        else:
            copied[layer] = Copied(heads, **parts, scale=scale)
    return copied


def _logits(qk: QK, scale: float) -> Tensor:
    """Return scale * q k^T, (layers, B, H, N, N)."""
    return torch.stack([q @ k.transpose(-2, -1) for q, k in qk]) * scale


def _cross_entropy(target: Tensor, log_map: Tensor) -> Tensor:
    """Return -sum of target * log_map over keys, mean over batch, heads and queries, sum over layers."""
    return -(target * log_map).sum(-1).mean(dim=(1, 2, 3)).sum()


def distil_loss(
    student_qk: QK, teacher_qk: QK, student_scale: float, teacher_scale: float, how: str | None = None
) -> Tensor:
    """Return the cross-entropy of the student's attention maps to the teacher's, a scalar (section 3.2).

    Summed over keys and over layers, averaged over batch, heads and query rows. `how` averages the
    teacher's maps. No gradient reaches the teacher. Heads are matched by index; their widths may differ.
    """
    with torch.no_grad():
        target = averaged(_logits(teacher_qk, teacher_scale).softmax(-1), how)  # layers B H N N
    return _cross_entropy(target, _logits(student_qk, student_scale).log_softmax(-1))


@torch.no_grad()
def teacher_kl(
    student_qk: QK, teacher_qk: QK, student_scale: float, teacher_scale: float, how: str | None = None
) -> Tensor:
    """Return the divergence KL(teacher || student): `distil_loss` less the entropy of the teacher's maps.

    It is 0 for equal maps, so it shows how far the student still is. For logging: no gradient.
    """
    loss = distil_loss(student_qk, teacher_qk, student_scale, teacher_scale, how)
    log_map = _logits(teacher_qk, teacher_scale).log_softmax(-1)
    target = averaged(log_map.exp(), how)
    # Of a mean the logarithm is taken anew; x log x is 0 at 0.
    entropy = _cross_entropy(target, log_map) if target.shape == log_map.shape else _entropy(target)
    return loss - entropy


def _entropy(maps: Tensor) -> Tensor:
    return torch.special.entr(maps).sum(-1).mean(dim=(1, 2, 3)).sum()


def mean_square_loss(student: Parts, teacher: Parts) -> Tensor:
    """Return the squared error, mean over all elements, summed over layers and parts (section 4).

    Queries, keys and values are the unscaled projections with their bias. No gradient reaches the teacher.
    """
    errors = [
        F.mse_loss(own, given.detach())
        for name, tensors in teacher.items()
        for own, given in zip(student[name], tensors, strict=True)
    ]
    return torch.stack(errors).sum()
