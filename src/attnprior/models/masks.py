"""Which patches a masked autoencoder hides: random, in blocks or in a grid (arXiv 2111.06377, table 1f)."""

import math

import torch
from torch import Tensor

SMALLEST = 16 / 196  # of the patches: a block has at least this share (arXiv 2106.08254)
LAST, FIRM = 1.0, 2.0  # added to the noise of patches in the last block, and in earlier ones
ASPECT = 0.3  # height over width of a block lies between this and its inverse


def mask_noise(masking: str, batch: int, grid: int, keep: int, generator: torch.Generator) -> Tensor:
    """Return numbers (B, N) of which the `keep` smallest of each row stand at visible patches.

    "random": uniform on [0, 1). "grid": the upper left of every 2x2 patches is visible. "block": rectangles
    of random place, area and aspect are hidden until no more than `keep` patches are left; of the last
    one, patches drawn at random stay visible.
    """
    noise = torch.rand(batch, grid**2, generator=generator)
    if masking == "random":
        return noise
    if masking == "grid":
        hidden = torch.ones(grid, grid)
        hidden[::2, ::2] = 0
        return noise + hidden.flatten()
    return noise + torch.stack([_blocks(grid, keep, generator) for _ in range(batch)]).flatten(1)


def _blocks(grid: int, keep: int, generator: torch.Generator) -> Tensor:
    """Return what is added to the noise of one image (g, g): 0 where no block lies.

    Patches of the last block get less than those of earlier ones: of them, what is too much stays visible.
    """
    hidden = torch.zeros(grid, grid)
    wanted = grid**2 - keep
    least = max(1, round(SMALLEST * grid**2))
    while True:
        done = int((hidden > 0).sum())
        if done >= wanted:
            return hidden
        area, aspect, top, left = torch.rand(4, generator=generator).tolist()
        size = least + area * max(wanted - done - least, 0)
        ratio = math.exp((2 * aspect - 1) * math.log(1 / ASPECT))
        height = min(grid, max(1, round(math.sqrt(size * ratio))))
        width = min(grid, max(1, round(math.sqrt(size / ratio))))
        y, x = int(top * (grid - height + 1)), int(left * (grid - width + 1))
        block = torch.zeros(grid, grid)
        block[y : y + height, x : x + width] = LAST
        hidden = torch.maximum((hidden > 0).float() * FIRM, block)
