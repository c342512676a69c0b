"""Batches on the device; their order is a function of (seed, epoch).

Images lie on the device as a whole, or stay in the data file if the set is larger than its `resident_limit`.
"""

from typing import overload

import torch
from torch import Tensor

from attnprior.data.datasets import Data
from attnprior.data.streaming import Images, Streamed
from attnprior.randomness import generator

MIB = 2**20


@overload
def normalise(images: Tensor, mean: list[float], std: list[float]) -> Tensor: ...
@overload
def normalise(images: Streamed, mean: list[float], std: list[float]) -> Streamed: ...
def normalise(images: Images, mean: list[float], std: list[float]) -> Images:
    """Return (N, C, H, W) uint8 images as float32, (v / 255 - mean) / std per channel."""
    if isinstance(images, Streamed):
        return images.scaled(lambda batch: normalise(batch, mean, std))
    m, s = (torch.tensor(v, dtype=torch.float32, device=images.device).view(1, -1, 1, 1) for v in (mean, std))
    return (images.float() / 255 - m) / s


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Return the number of batches of `count` images, the last one possibly smaller."""
    return -(-count // batch_size)


def batches(count: int, batch_size: int, seed: int, epoch: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the image indices of each batch of an epoch, every image once, on `device`."""
    order = torch.randperm(count, generator=generator(seed, "order", epoch))
    return order.to(device).split(batch_size)


def resident(data: Data) -> bool:
    """Return whether a job may hold all images of the data set in memory."""
    return data.resident_limit is None or data.images.nbytes <= data.resident_limit * MIB


def part(data: Data, split: int, device: torch.device) -> tuple[Images, Tensor, Tensor]:
    """Return images (n, C, H, W) uint8, labels (n,) and rows in the file (n,) of one split.

    Images and labels lie on `device`, the rows on the CPU. Images of a set above its `resident_limit` are
    `Streamed`: indexed with a tensor they give the same bytes.
    """
    index = torch.from_numpy((data.split == split).nonzero()[0])
    labels = torch.from_numpy(data.labels)[index].to(device)
    if not resident(data):
        return Streamed(data.images, index, device), labels, index
    return torch.from_numpy(data.images)[index].to(device), labels, index
