"""Augmentation of whole batches on the device, each image with its own draw."""

import torch
from torch import Tensor

from attnprior.data.loader import normalise
from attnprior.data.streaming import Images, Streamed
from attnprior.randomness import generator


class Shifted:
    """Normalised images with a margin, from which shifted batches are cut by one gather.

    images: N C H W uint8. The margin is black (pixel 0 before normalisation), so a shifted image is
    the normalised version of the shifted zero-filled image. `shift` is the largest move in pixels.
    """

    def __init__(self, images: Images, mean: list[float], std: list[float], shift: int) -> None:
        self._shift, self._mean, self._std = shift, mean, std
        self._images = images if isinstance(images, Streamed) else None
        if not isinstance(images, Streamed):
            self._windows = self._cut(images)
        self._count = len(images)

    def _cut(self, images: Tensor) -> Tensor:
        shift, mean, std = self._shift, self._mean, self._std
        padded = torch.nn.functional.pad(images, (shift, shift, shift, shift))
        height, width = images.shape[2:]
        # N C dy dx H W: window (dy, dx) = (shift, shift) is the image itself; a view, not a copy
        return normalise(padded, mean, std).unfold(2, height, 1).unfold(3, width, 1)

    def __len__(self) -> int:
        return self._count

    def plain(self) -> Tensor:
        """Return all images, not shifted."""
        return self._windows[:, :, self._shift, self._shift]  # N C H W

    def batch(self, index: Tensor, seed: int, epoch: int, step: int) -> Tensor:
        """Return the images `index` (B,), each moved by its own (dy, dx) in -shift..shift.

        Draws come from the stream (seed, "augment", epoch, step); all moves are equally likely.
        """
        if self._images is None:
            windows, at = self._windows, index
        else:
            windows = self._cut(self._images[index])
            at = torch.arange(len(index), device=windows.device)
        if self._shift == 0:
            return windows[at, :, 0, 0]
        draws = torch.randint(
            2 * self._shift + 1, (2, len(index)), generator=generator(seed, "augment", epoch, step)
        )
        dy, dx = draws.to(windows.device)
        return windows[at, :, dy, dx]  # B C H W
