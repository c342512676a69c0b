"""RandAugment (arXiv 1909.13719) of batches, every image with its own operations, signs and strengths.

Two programs are followed. torchvision: `ops` of 14 operations at one of 31 strengths, nearest neighbours,
black outside. timm ("rand-m9-mstd0.5-inc1"): `ops` of 15, each made with probability 1/2 at a strength of
0..10 drawn around `magnitude`; smooth moves, the data set's mean outside.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnprior.config import RandAugment
from attnprior.data import colour, geometry

BINS = 31  # torchvision's strengths
TOP = 10.0  # timm's strongest
PROBABILITY = 0.5  # with which timm makes an operation that it has drawn
COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": colour.brightness,
    "Color": colour.saturation,
    "Contrast": colour.contrast,
    "Sharpness": colour.sharpness,
    "Posterize": colour.posterize,
    "Solarize": colour.solarize,
    "SolarizeAdd": colour.solarize_add,
}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "AutoContrast": colour.autocontrast,
    "Equalize": colour.equalize,
    "Invert": colour.invert,
}
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
ENHANCE = ("Brightness", "Color", "Contrast", "Sharpness")
TORCHVISION = ("Identity", *MOVES, *ENHANCE, "Posterize", "Solarize", "AutoContrast", "Equalize")
TIMM = (*PLAIN, *MOVES, *ENHANCE, "Posterize", "Solarize", "SolarizeAdd")


def rand_augment(images: Tensor, settings: RandAugment, mean: list[float], rng: torch.Generator) -> Tensor:
    """Return images (B, C, H, W) uint8, each after its own `settings.ops` operations.

    `mean`: of the channels, 0..1. All is drawn on the CPU from `rng`.
    """
    names, which, values = _drawn(len(images), images.shape[2:], settings, rng)
    images = images.clone()
    for number in range(settings.ops):
        for k, name in enumerate(names):
            chosen = (which[:, number] == k).nonzero()[:, 0]
            if len(chosen):
                at, value = chosen.to(images.device), values[name][chosen, number].to(images.device)
                images[at] = apply(name, images[at], value, settings, mean)
    return images


def _drawn(count: int, size, settings: RandAugment, rng) -> tuple[tuple[str, ...], Tensor, dict[str, Tensor]]:
    """Return the names, the index of each image's operations (B, ops; -1: none) and their values by name."""
    shape = (count, settings.ops)
    names = TORCHVISION if settings.style == "torchvision" else TIMM
    which = torch.randint(len(names), shape, generator=rng)
    sign = torch.randint(2, shape, generator=rng, dtype=torch.float64) * -2 + 1
    if settings.style == "torchvision":
        values = {n: torchvision_value(n, int(settings.magnitude), sign, size) for n in names}
        return names, which, values
    assert settings.std is not None and settings.increasing is not None
    which = torch.where(torch.rand(shape, generator=rng) < PROBABILITY, which, -1)
    level = settings.magnitude + settings.std * torch.randn(shape, generator=rng, dtype=torch.float64)
    level = level.clamp_(0, TOP)
    return names, which, {n: timm_value(n, level, sign, size, settings.increasing) for n in names}


def torchvision_value(name: str, magnitude: int, sign: Tensor, size) -> Tensor:
    """Return torchvision's value of an operation in bin `magnitude` (0..30), with its sign, as `sign`."""
    height, width = size

    def at(first: float, last: float) -> float:
        return torch.linspace(first, last, BINS)[magnitude].item()

    if name in ("ShearX", "ShearY"):
        return at(0, 0.3) * sign
    if name in ("TranslateX", "TranslateY"):
        return (at(0, 150 / 331 * (width if name == "TranslateX" else height)) * sign).trunc()
    if name == "Rotate":
        return at(0, 30) * sign
    if name in ENHANCE:
        return 1 + at(0, 0.9) * sign
    if name == "Posterize":
        bits = 8 - (torch.arange(BINS) / ((BINS - 1) / 4)).round().int()
        return bits[magnitude].expand(sign.shape)
    return torch.full_like(sign, at(255, 0) if name == "Solarize" else 0.0)


def timm_value(name: str, level: Tensor, sign: Tensor, size, increasing: bool) -> Tensor:
    """Return timm's values of an operation at levels 0..10, with their signs.

    increasing: a higher level is a stronger change in all operations ("inc1").
    """
    height, width = size
    share = level / TOP
    if name in ("ShearX", "ShearY"):
        return share * 0.3 * sign
    if name in ("TranslateX", "TranslateY"):
        return share * 0.45 * (width if name == "TranslateX" else height) * sign
    if name == "Rotate":
        return share * 30 * sign
    if name in ENHANCE:
        return (1 + share * 0.9 * sign).clamp(min=0.1) if increasing else share * 1.8 + 0.1
    if name == "Posterize":
        bits = (share * 4).int()
        return 4 - bits if increasing else bits
    if name == "Solarize":
        threshold = (share * 256).trunc().clamp(max=256)
        return 256 - threshold if increasing else threshold
    return (share * 110).trunc().clamp(max=128)  # SolarizeAdd; the plain ones use none


def apply(name: str, images: Tensor, value: Tensor, settings: RandAugment, mean: list[float]) -> Tensor:
    """Return the images (b, C, H, W) uint8 after one operation with each image's own value (b,)."""
    if name == "Identity":
        return images
    if name in PLAIN:
        return PLAIN[name](images)
    if name in COLOUR:
        return COLOUR[name](images, value)
    if settings.style == "torchvision":
        return geometry.affine_nearest(images, centred_matrix(name, value, images.shape[2:]))
    assert settings.interpolation is not None
    fill = torch.tensor([float(round(255 * m)) for m in mean], device=images.device)
    return geometry.affine_smooth(
        images, corner_matrix(name, value, images.shape[2:]), settings.interpolation, fill
    )


def centred_matrix(name: str, value: Tensor, size) -> Tensor:
    """Return (b, 6) from output to input pixel, measured from the centre; shears hold the corner fixed."""
    height, width = size
    value = value.double()
    zero, one = torch.zeros_like(value), torch.ones_like(value)
    match name:
        case "ShearX":
            rows = (one, value, value * height / 2, zero, one, zero)
        case "ShearY":
            rows = (one, zero, zero, value, one, value * width / 2)
        case "TranslateX":
            rows = (one, zero, -value, zero, one, zero)
        case "TranslateY":
            rows = (one, zero, zero, zero, one, -value)
        case _:
            turn = -value * (math.pi / 180)
            rows = (turn.cos(), turn.sin(), zero, -turn.sin(), turn.cos(), zero)
    return torch.stack(rows, 1)


def corner_matrix(name: str, value: Tensor, size) -> Tensor:
    """Return (b, 6) from output to input coordinates, measured from the upper left corner, as PIL's."""
    height, width = size
    value = value.double()
    zero, one = torch.zeros_like(value), torch.ones_like(value)
    match name:
        case "ShearX":
            rows = (one, value, zero, zero, one, zero)
        case "ShearY":
            rows = (one, zero, zero, value, one, zero)
        case "TranslateX":
            rows = (one, zero, value, zero, one, zero)
        case "TranslateY":
            rows = (one, zero, zero, zero, one, value)
        case _:
            turn = -value * (math.pi / 180)
            c, s = turn.cos(), turn.sin()
            x, y = width / 2, height / 2
            rows = (c, s, x - c * x - s * y, -s, c, y + s * x - c * y)
    return torch.stack(rows, 1)
