"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) of a batch, every image with its own share."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprior.config import Augment
from attnprior.data.windows import inside
from attnprior.randomness import generator


def mixed(
    images: Tensor, labels: Tensor, classes: int, settings: Augment, seed: int, epoch: int, step: int
) -> tuple[Tensor, Tensor]:
    """Return images (B, C, H, W) mixed with the one before, and targets: (B, classes), or `labels` as given.

    Each image is mixed with probability `mix_probability`; with both kinds in use, it is CutMix with
    probability `mix_switch`. Its share of itself is drawn from Beta(a, a), a the setting of its kind; the
    box of CutMix is cut at the border, and the share follows its area. Draws come from the stream
    (seed, "mix", epoch, step). timm's default draws one share per batch instead.
    """
    if settings.mixup == 0 and settings.cutmix == 0:
        return images, labels
    assert settings.mix_probability is not None
    rng, count, size = generator(seed, "mix", epoch, step), len(images), images.shape[2:]
    u = torch.rand(4, count, generator=rng, dtype=torch.float64)
    switch = settings.mix_switch if settings.mix_switch is not None else float(settings.cutmix > 0)
    cut = u[0] < switch
    strength = torch.where(cut, settings.cutmix, settings.mixup).double()
    gamma = torch._standard_gamma(strength.expand(2, count).contiguous(), generator=rng)
    share = gamma[0] / gamma.sum(0)  # Beta(a, a)
    share = torch.where(u[1] < settings.mix_probability, share, 1.0)
    top, left, height, width = cut_boxes(share, u[2], u[3], size)
    area = (height * width).double() / (size[0] * size[1])
    share = torch.where(cut, 1 - area, share).float().to(images.device)
    cut = cut.to(images.device)
    mask = inside([t.to(images.device) for t in (top, left, height, width)], size)  # B 1 H W
    own = torch.where(cut[:, None, None, None], (~mask).float(), share[:, None, None, None])
    one_hot = F.one_hot(labels, classes).to(images.dtype)
    share = share[:, None].to(images.dtype)
    return (
        images * own + images.roll(1, 0) * (1 - own),
        one_hot * share + one_hot.roll(1, 0) * (1 - share),
    )


def cut_boxes(share: Tensor, v: Tensor, h: Tensor, size) -> tuple[Tensor, ...]:
    """Return top, left, height, width (B,) of boxes around (v, h) in 0..1 that leave about `share`.

    Cut at the border, as torchvision's CutMix.
    """
    half = 0.5 * (1 - share).sqrt()
    edges = []
    for position, length in zip((v, h), size, strict=True):
        centre, reach = (position * length).floor(), (half * length).floor()
        edges.append(((centre - reach).clamp(min=0).long(), (centre + reach).clamp(max=length).long()))
    (top, bottom), (left, right) = edges
    return top, left, bottom - top, right - left
