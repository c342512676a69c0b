"""Changes of pixel values of whole batches (B, C, H, W) uint8, each image with its own factor (B,).

Bytes are those of torchvision's tensor operations (`torchvision.transforms.v2.functional`) on each image.
There a scalar factor is rounded to float32 and its product added without rounding (fused), which decides
between two grey levels; the same is had here by adding in doubles.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images times their factor."""
    return (images * _wide(factor.float())).clamp_(0, 255).to(torch.uint8)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with their grey version; one of one channel stays as it is."""
    return images if images.shape[1] == 1 else _blend(images, _grey(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with the mean of their grey version."""
    grey = images.float() if images.shape[1] == 1 else _grey(images)
    return _blend(images, grey.mean((1, 2, 3), keepdim=True), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Return the images blended with their smoothed version; the outermost pixels stay as they are."""
    channels, height, width = images.shape[1:]
    if height <= 2 or width <= 2:
        return images
    kernel = torch.full((3, 3), 1 / 13, device=images.device)
    kernel[1, 1] = 5 / 13
    output = images.float()
    smooth = F.conv2d(output, kernel.expand(channels, 1, 3, 3), groups=channels).round_()
    inner = output[..., 1:-1, 1:-1]
    inner.copy_(_fused(inner, smooth - inner, 1 - factor.double()))
    return output.clamp_(0, 255).to(torch.uint8)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Return the images with their hue moved by `turn` (-0.5..0.5 of the circle); grey ones stay."""
    if images.shape[1] == 1:
        return images
    rgb = images.float() * (1 / 255)
    r, g, _ = rgb.unbind(1)
    low, high = rgb.aminmax(dim=1)
    span, grey = high - low, high == low
    ones = torch.ones_like(high)
    s = span / torch.where(grey, ones, high)
    rc, gc, bc = ((high[:, None] - rgb) / torch.where(grey, ones, span)[:, None]).unbind(1)
    red, green = high == r, high == g
    h = torch.where(red, bc - gc, torch.where(green, rc + 2 - bc, gc + 4 - rc))
    h = (h * (1 / 6) + 1).fmod(1)
    h6 = (h + turn.float()[:, None, None]).remainder(1) * 6
    sector = h6.floor()
    f = h6 - sector
    p = ((1 - s) * high).clamp(0, 1)
    q = ((1 - s * f) * high).clamp(0, 1)
    t = ((s * f + (1 - s)) * high).clamp(0, 1)
    vpqt = torch.stack((high, p, q, t), 1)  # B 4 H W
    table = torch.tensor([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]], device=images.device)
    select = table[:, sector.long().remainder(6)].transpose(0, 1)  # B 3 H W
    return (vpqt.gather(1, select) * (256 - 1e-3)).to(torch.uint8)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Return the images with only the upper `bits` (0..8) of each value."""
    mask = 256 - torch.bitwise_left_shift(torch.ones_like(bits), 8 - bits)
    return images & _wide(mask.to(torch.uint8))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Return the images, values from `threshold` on inverted."""
    return torch.where(images >= _wide(threshold.float()), 255 - images, images)


def solarize_add(images: Tensor, amount: Tensor) -> Tensor:
    """Return the images with `amount` added to values below 128 (timm)."""
    raised = (images.int() + _wide(amount.int())).clamp_(max=255).to(torch.uint8)
    return torch.where(images < 128, raised, images)


def autocontrast(images: Tensor) -> Tensor:
    """Return the images, each channel stretched to 0..255; a channel of one value stays."""
    values = images.float()
    low, high = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    same = low == high
    scale = torch.where(same, 1.0, (high - low) * (1 / 255))
    return ((values - torch.where(same, 0.0, low)) / scale).clamp_(0, 255).to(torch.uint8)


def equalize(images: Tensor) -> Tensor:
    """Return the images, each channel with an even histogram, by PIL's table."""
    flat = images.flatten(2).long()  # B C H*W
    hist = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=images.device)
    hist.scatter_add_(2, flat, torch.ones_like(flat))
    total = hist.cumsum(2)
    last = hist.gather(2, total.argmax(2, keepdim=True))  # pixels of the largest value
    step = (flat.shape[2] - last).div(255, rounding_mode="floor")  # B C 1
    table = total[..., :-1] + step // 2
    table = table.div(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255)
    table = F.pad(table, (1, 0))
    found = table.gather(2, flat).to(torch.uint8).view(images.shape)
    return torch.where((step == 0)[..., None], images, found)


def invert(images: Tensor) -> Tensor:
    """Return 255 minus the images."""
    return 255 - images


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _grey(images: Tensor) -> Tensor:
    """Return the luminance (B, 1, H, W), cut off to whole numbers, as float32."""
    r, g, b = images.unbind(1)
    grey = (r * 0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114)
    return grey.floor_()[:, None]


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    scaled = images * _wide(factor.float())
    return _fused(scaled, other, 1 - factor.double()).clamp_(0, 255).to(torch.uint8)


def _fused(base: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return base + factor * other as float32, rounded once; `factor` (B,) is rounded to float32 before."""
    return (base.double() + _wide(factor.float()).double() * other.double()).float()
