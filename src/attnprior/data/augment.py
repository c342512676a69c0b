"""Augmentation of whole batches on the device, each image with its own draw.

The order is that of the published programs: RandAugment where it comes before the crop, crop, flip,
RandAugment elsewhere, colour jitter, all on uint8; normalisation; random erasing. Mixing of images and
labels is part of the objective (`attnprior.data.mixing`).
"""

from typing import Protocol

import torch
from torch import Tensor

from attnprior.config import Augment, ColorJitter, Erasing
from attnprior.data import colour, geometry, streaming
from attnprior.data.loader import normalise
from attnprior.data.randaugment import rand_augment
from attnprior.data.windows import crop_windows, erasing_windows, inside
from attnprior.randomness import generator

WINDOWS = 2**24  # padded pixels up to which all images are kept normalised (64 MiB)


class Images(Protocol):
    """Training images that give normalised batches."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor, seed: int, epoch: int, step: int) -> Tensor: ...


class Shifted:
    """Normalised images with a margin, from which shifted batches are cut by one gather.

    images: N C H W uint8. The margin is black (pixel 0 before normalisation), so a shifted image is
    the normalised version of the shifted zero-filled image. `shift` is the largest move in pixels.
    """

    def __init__(self, images: Tensor, mean: list[float], std: list[float], shift: int) -> None:
        padded = torch.nn.functional.pad(images, (shift, shift, shift, shift))
        height, width = images.shape[2:]
        # N C dy dx H W: window (dy, dx) = (shift, shift) is the image itself; a view, not a copy
        self._windows = normalise(padded, mean, std).unfold(2, height, 1).unfold(3, width, 1)
        self._shift = shift

    def __len__(self) -> int:
        return len(self._windows)

    def plain(self) -> Tensor:
        """Return all images, not shifted."""
        return self._windows[:, :, self._shift, self._shift]  # N C H W

    def batch(self, index: Tensor, seed: int, epoch: int, step: int) -> Tensor:
        """Return the images `index` (B,), each moved by its own (dy, dx) in -shift..shift.

        Draws come from the stream (seed, "augment", epoch, step); all moves are equally likely.
        """
        if self._shift == 0:
            return self.plain()[index]
        dy, dx = _moves(len(index), self._shift, generator(seed, "augment", epoch, step))
        return self._windows[index, :, dy.to(self._windows.device), dx.to(self._windows.device)]  # B C H W


class Augmented:
    """Images that are augmented batch by batch; `Shifted` gives the same bytes where both can be used.

    images: N C H W uint8, or what gives such batches at `images[index]`, so that they need not lie in memory.
    """

    def __init__(
        self, images: streaming.Images, mean: list[float], std: list[float], settings: Augment
    ) -> None:
        self._images, self._mean, self._std, self._settings = images, mean, std, settings

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, index: Tensor, seed: int, epoch: int, step: int) -> Tensor:
        """Return the images `index` (B,) augmented; stream (seed, "augment", epoch, step)."""
        rng = generator(seed, "augment", epoch, step)
        return augment(self._images[index], self._settings, self._mean, self._std, rng)


def training_images(
    images: streaming.Images, mean: list[float], std: list[float], settings: Augment
) -> Images:
    """Return images (N, C, H, W) uint8 that give batches augmented by `settings`."""
    others = (settings.flip, settings.randaugment, settings.color_jitter, settings.erasing)
    if isinstance(images, Tensor) and settings.crop in ("none", "padded") and not any(others):
        margin = settings.padding or 0
        height, width = images.shape[2:]
        if len(images) * images.shape[1] * (height + 2 * margin) * (width + 2 * margin) <= WINDOWS:
            return Shifted(images, mean, std, margin)
    return Augmented(images, mean, std, settings)


def augment(
    images: Tensor, settings: Augment, mean: list[float], std: list[float], rng: torch.Generator
) -> Tensor:
    """Return images (B, C, H, W) uint8 augmented and normalised, float32; all is drawn from `rng`.

    mean, std: of the channels, of values / 255.
    """
    random = settings.randaugment
    if random is not None and random.before_crop is True:
        images = rand_augment(images, random, mean, rng)
    images = crop(images, settings, rng)
    if settings.flip > 0:
        images = geometry.flipped(
            images, (torch.rand(len(images), generator=rng) < settings.flip).to(images.device)
        )
    if random is not None and random.before_crop is not True:
        images = rand_augment(images, random, mean, rng)
    if settings.color_jitter is not None:
        images = jitter(images, settings.color_jitter, rng)
    found = normalise(images, mean, std)
    return found if settings.erasing is None else erase(found, settings.erasing, rng)


def crop(images: Tensor, settings: Augment, rng: torch.Generator) -> Tensor:
    """Return a random window of each image (B, C, H, W) uint8, in the images' size."""
    count, device = len(images), images.device
    if settings.crop == "padded":
        assert settings.padding is not None
        dy, dx = _moves(count, settings.padding, rng)
        return geometry.shifted(images, dy.to(device), dx.to(device), settings.padding)
    if settings.crop == "resized":
        assert (
            settings.scale is not None and settings.ratio is not None and settings.interpolation is not None
        )
        drawn = crop_windows(count, images.shape[2:], settings.scale, settings.ratio, rng)
        return geometry.resized(images, [t.to(device) for t in drawn], settings.interpolation)
    return images


def _moves(count: int, shift: int, rng: torch.Generator) -> Tensor:
    return torch.randint(2 * shift + 1, (2, count), generator=rng)


def jitter(images: Tensor, settings: ColorJitter, rng: torch.Generator) -> Tensor:
    """Return images (B, C, H, W) uint8 with their own brightness, contrast, saturation and hue.

    The factors of the first three are uniform in max(0, 1 - s)..1 + s, the turn of the hue in -s..s; their
    order is random, too. As torchvision's ColorJitter.
    """
    strengths = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
    count, device = len(images), images.device
    u = torch.rand(4, count, generator=rng, dtype=torch.float64)
    order = torch.rand(count, 4, generator=rng).argsort(1)  # B 4
    images = images.clone()
    changes = (colour.brightness, colour.contrast, colour.saturation, colour.hue)
    for place in range(4):
        for k, (change, s) in enumerate(zip(changes, strengths, strict=True)):
            chosen = (order[:, place] == k).nonzero()[:, 0]
            if s == 0 or not len(chosen):
                continue
            low, high = (-s, s) if k == 3 else (max(0.0, 1 - s), 1 + s)
            factor = low + (high - low) * u[k, chosen]
            at = chosen.to(device)
            images[at] = change(images[at], factor.to(device))
    return images


def erase(images: Tensor, settings: Erasing, rng: torch.Generator) -> Tensor:
    """Return normalised images (B, C, H, W), some with a window of zeros or of standard normal noise.

    As torchvision's RandomErasing; timm's "pixel" mode is `value: noise`.
    """
    count, size, device = len(images), images.shape[2:], images.device
    chosen = (torch.rand(count, generator=rng) < settings.probability).nonzero()[:, 0]
    drawn = erasing_windows(count, size, settings.scale, settings.ratio, rng)
    mask = inside([t[chosen].to(device) for t in drawn], size)  # b 1 H W
    shape = (len(chosen), *images.shape[1:])
    new = torch.randn(shape, generator=rng).to(device) if settings.value == "noise" else images.new_zeros(())
    at = chosen.to(device)
    images[at] = torch.where(mask, new, images[at])
    return images
