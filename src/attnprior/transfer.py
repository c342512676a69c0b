"""Attention transfer (arXiv 2411.09702): copy or distil a teacher's attention maps, layer by layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnprior.models.attention import Copied

QK = Sequence[tuple[Tensor, Tensor]]  # per layer: q, k, each (B, H, N, R)


def _logits(qk: QK, scale: float, layers: int) -> Tensor:
    """Return scale * q k^T of the first layers, (layers, B, H, N, N)."""
    return torch.stack([q @ k.transpose(-2, -1) for q, k in qk[:layers]]) * scale


def _cross_entropy(target: Tensor, log_map: Tensor) -> Tensor:
    """Return -sum of target * log_map over keys, mean over batch, heads and queries, sum over layers."""
    return -(target * log_map).sum(-1).mean(dim=(1, 2, 3)).sum()


def distil_loss(
    student_qk: QK, teacher_qk: QK, student_scale: float, teacher_scale: float, layers: int
) -> Tensor:
    """Return the cross-entropy of the student's attention maps to the teacher's, a scalar (section 3.2).

    Summed over keys and over the first `layers` layers, averaged over batch, heads and query rows. No
    gradient reaches the teacher. Heads are matched by index; head widths may differ.
    """
    with torch.no_grad():
        target = _logits(teacher_qk, teacher_scale, layers).softmax(-1)  # layers B H N N
    return _cross_entropy(target, _logits(student_qk, student_scale, layers).log_softmax(-1))


@torch.no_grad()
def teacher_kl(
    student_qk: QK, teacher_qk: QK, student_scale: float, teacher_scale: float, layers: int
) -> Tensor:
    """Return the divergence KL(teacher || student): `distil_loss` less the entropy of the teacher's maps.

    It is 0 for equal maps, so it shows how far the student still is. For logging: no gradient.
    """
    loss = distil_loss(student_qk, teacher_qk, student_scale, teacher_scale, layers)
    log_map = _logits(teacher_qk, teacher_scale, layers).log_softmax(-1)
    return loss - _cross_entropy(log_map.exp(), log_map)


def copied_layers(teacher_qk: QK, scale: float, layers: int, depth: int) -> list[Copied | None]:
    """Return the argument `copied` of `ViT.forward`: the teacher's maps in the first `layers` of `depth`."""
    return [(*teacher_qk[i], scale) if i < layers else None for i in range(depth)]
