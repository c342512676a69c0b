"""Random windows of images: what a resized crop keeps and what random erasing covers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

TRIES = 10  # as torchvision: then the crop takes the middle and the erasing nothing


def crop_windows(
    count: int, size: Sequence[int], scale: Sequence[float], ratio: Sequence[float], rng: torch.Generator
) -> tuple[Tensor, ...]:
    """Return top, left, height, width (count,) of windows of random area and aspect ratio (width / height).

    Area shares are uniform in `scale`, logarithms of ratios in `ratio`. As torchvision's
    RandomResizedCrop: the first of ten draws that fits, else the largest window in the middle of a
    permitted ratio.
    """
    height, width = size
    area, aspect = _shapes(count, height * width, scale, ratio, rng)
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    found, (h, w) = _first((w > 0) & (w <= width) & (h > 0) & (h <= height), h, w)
    full_w = min(width, max(1, round(height * ratio[1])))
    full_h = min(height, max(1, round(width / ratio[0])))
    h, w = torch.where(found, h, float(full_h)), torch.where(found, w, float(full_w))
    top, left = _place(height - h, width - w, rng)
    top = torch.where(found, top, float((height - full_h) // 2))
    left = torch.where(found, left, float((width - full_w) // 2))
    return top.long(), left.long(), h.long(), w.long()


def erasing_windows(
    count: int, size: Sequence[int], scale: Sequence[float], ratio: Sequence[float], rng: torch.Generator
) -> tuple[Tensor, ...]:
    """Return top, left, height, width (count,) of what is erased; the ratio is height / width.

    As torchvision's RandomErasing: the first of ten draws smaller than the image, else an empty window.
    """
    height, width = size
    area, aspect = _shapes(count, height * width, scale, ratio, rng)
    h, w = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    found, (h, w) = _first((h < height) & (w < width), h, w)
    h, w = torch.where(found, h, 0.0), torch.where(found, w, 0.0)
    top, left = _place(height - h, width - w, rng)
    return top.long(), left.long(), h.long(), w.long()


def inside(window: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """Return the mask (B, 1, H, W) of windows (top, left, height, width; each (B,)) in images of `size`."""
    top, left, height, width = (t[:, None, None] for t in window)
    rows = torch.arange(size[0], device=top.device)[None, :, None]
    columns = torch.arange(size[1], device=top.device)[None, None]
    mask = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)
    return mask[:, None]


def _shapes(count: int, pixels: int, scale, ratio, rng) -> tuple[Tensor, Tensor]:
    draws = torch.rand(2, count, TRIES, generator=rng, dtype=torch.float64)
    low, high = (math.log(r) for r in ratio)
    return pixels * (scale[0] + (scale[1] - scale[0]) * draws[0]), (low + (high - low) * draws[1]).exp()


def _first(fits: Tensor, *values: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return whether any try fits (count,), and each of `values` (count, TRIES) at the first that does."""
    at = fits.byte().argmax(1, keepdim=True)
    return fits.any(1), [v.gather(1, at)[:, 0] for v in values]


def _place(rows: Tensor, columns: Tensor, rng) -> tuple[Tensor, Tensor]:
    """Return whole numbers, uniform in 0..rows and 0..columns."""
    draws = torch.rand(2, len(rows), generator=rng, dtype=torch.float64)
    return (draws[0] * (rows + 1)).floor(), (draws[1] * (columns + 1)).floor()
