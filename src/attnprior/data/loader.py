"""Batches that lie on the device; their order is a function of (seed, epoch)."""

import torch
from torch import Tensor

from attnprior.data.datasets import Data
from attnprior.randomness import generator


def normalise(images: Tensor, mean: list[float], std: list[float]) -> Tensor:
    """Return (N, C, H, W) uint8 images as float32, (v / 255 - mean) / std per channel."""
    m, s = (torch.tensor(v, dtype=torch.float32, device=images.device).view(1, -1, 1, 1) for v in (mean, std))
    return (images.float() / 255 - m) / s


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Return the number of batches of `count` images, the last one possibly smaller."""
    return -(-count // batch_size)


def batches(count: int, batch_size: int, seed: int, epoch: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the image indices of each batch of an epoch, every image once, on `device`."""
    order = torch.randperm(count, generator=generator(seed, "order", epoch))
    return order.to(device).split(batch_size)


def part(data: Data, split: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (n, C, H, W) uint8, labels (n,) and rows in the file (n,) of one split.

    Images and labels lie on `device`, the rows on the CPU.
    """
    index = torch.from_numpy((data.split == split).nonzero()[0])
    images, labels = torch.from_numpy(data.images)[index], torch.from_numpy(data.labels)[index]
    return images.to(device), labels.to(device), index
