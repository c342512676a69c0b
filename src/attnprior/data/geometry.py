"""Moves of whole batches of images (B, C, H, W) uint8, each image with its own parameters.

Parameters are tensors (B,) on the images' device. Bytes are those of torchvision's tensor operations or of
PIL's transforms, as each function says.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def shifted(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return windows of the images with a black margin of `padding`; `top`, `left` 0..2 * padding (B,)."""
    count, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding, padding, padding, padding))
    rows = top[:, None, None] + torch.arange(height, device=device)[None, :, None]  # B H 1
    columns = left[:, None, None] + torch.arange(width, device=device)[None, None]  # B 1 W
    found = padded[torch.arange(count, device=device)[:, None, None], :, rows, columns]  # B H W C
    return found.permute(0, 3, 1, 2)


def flipped(images: Tensor, mask: Tensor) -> Tensor:
    """Return the images, those of `mask` (B,) mirrored left to right."""
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def resized(images: Tensor, window: Sequence[Tensor], interpolation: str) -> Tensor:
    """Return windows (top, left, height, width; each (B,), in pixels), resized to the images' own size.

    As torchvision's `resized_crop` with antialias, and PIL: weights of pixels outside of the window are left
    out and the others normalised; rows, then columns, each rounded to whole values. Their integer weights
    can differ from these by a grey level in each. interpolation: bilinear or bicubic (a = -0.5).
    """
    top, left, height, width = window
    rows = _weights(top, height, images.shape[2], interpolation)  # B H H
    columns = _weights(left, width, images.shape[3], interpolation)  # B W W
    found = (images.float() @ columns.transpose(1, 2)[:, None]).round_().clamp_(0, 255)
    return (rows[:, None] @ found).round_().clamp_(0, 255).to(torch.uint8)


def _weights(start: Tensor, length: Tensor, size: int, interpolation: str) -> Tensor:
    """Return (B, out, in) weights that resize the window start..start+length of `size` pixels to `size`."""
    kernel = {"bilinear": _triangle, "bicubic": _cubic}[interpolation]
    pixel = torch.arange(size, device=start.device, dtype=torch.float32)
    scale = (length / size)[:, None, None]  # B 1 1
    inside = pixel - start[:, None]  # B in, from the start of the window
    distance = inside[:, None] + 0.5 - scale * (pixel[:, None] + 0.5)  # B out in
    weights = kernel((distance / scale.clamp(min=1)).abs())
    weights = weights * ((inside >= 0) & (inside < length[:, None]))[:, None]
    return weights / weights.sum(-1, keepdim=True)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def affine_nearest(images: Tensor, matrix: Tensor) -> Tensor:
    """Return the images under `matrix` (B, 6): output pixel to input pixel, from the centre; black outside.

    As torchvision's `affine` and `rotate` with nearest neighbours, the default of its RandAugment.
    """
    height, width = images.shape[2:]
    device = images.device
    base = torch.ones(height, width, 3, device=device)
    base[..., 0] = torch.linspace((1 - width) * 0.5, (width - 1) * 0.5, width, device=device)
    base[..., 1] = torch.linspace((1 - height) * 0.5, (height - 1) * 0.5, height, device=device)[:, None]
    theta = matrix.float().view(-1, 2, 3).transpose(1, 2)  # B 3 2
    theta = theta / torch.tensor([0.5 * width, 0.5 * height], device=device)
    grid = (base.view(1, -1, 3) @ theta).view(-1, height, width, 2)
    found = F.grid_sample(images.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return found.round_().to(torch.uint8)


def affine_smooth(images: Tensor, matrix: Tensor, interpolation: str, fill: Tensor) -> Tensor:
    """Return the images under `matrix` (B, 6): output to input coordinates, pixel centres at halves.

    As PIL's `Image.transform(size, AFFINE, matrix, BILINEAR or BICUBIC, fillcolor=fill)`, in doubles and
    cut off to whole numbers as there. fill: (C,), the colour outside of the image.
    """
    height, width = images.shape[2:]
    device, m = images.device, matrix.double()[:, :, None, None]  # B 6 1 1
    x = torch.arange(width, device=device, dtype=torch.float64)[None, None] + 0.5  # 1 1 W
    y = torch.arange(height, device=device, dtype=torch.float64)[None, :, None] + 0.5  # 1 H 1
    xin = m[:, 0] * x + m[:, 1] * y + m[:, 2]  # B H W
    yin = m[:, 3] * x + m[:, 4] * y + m[:, 5]
    inside = (xin >= 0) & (xin < width) & (yin >= 0) & (yin < height)
    left, top = (xin - 0.5).floor(), (yin - 0.5).floor()
    dx, dy = (xin - 0.5 - left)[:, None], (yin - 0.5 - top)[:, None]  # B 1 H W
    flat = images.flatten(2).double()  # B C H*W

    def pixel(row: int, column: int) -> Tensor:
        at = (top + row).clamp(0, height - 1) * width + (left + column).clamp(0, width - 1)
        return flat.gather(2, at.long().flatten(1)[:, None].expand(-1, flat.shape[1], -1)).view(images.shape)

    if interpolation == "bilinear":
        first, second = (_line(pixel(row, 0), pixel(row, 1), dx) for row in (0, 1))
        found = _line(first, second, dy)
    else:
        rows = [_curve([pixel(row, column) for column in (-1, 0, 1, 2)], dx) for row in (-1, 0, 1, 2)]
        found = _curve(rows, dy)
    found = torch.where(inside[:, None], found.clamp_(0, 255), fill.double()[None, :, None, None])
    return found.to(torch.uint8)


def _line(a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return a + (b - a) * d


def _curve(values: list[Tensor], d: Tensor) -> Tensor:
    """PIL's cubic (a = -1) through four values at distance d from the second."""
    v1, v2, v3, v4 = values
    p3, p4 = 2 * (v1 - v2) + v3 - v4, -v1 + v2 - v3 + v4
    return v2 + d * ((-v1 + v3) + d * (p3 + d * p4))
