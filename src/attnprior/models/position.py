"""Fixed position codes of a grid of tokens, row-major: token i = y * width + x."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprior import config


def sincos2d(height: int, width: int, dim: int, *, simple: bool) -> Tensor:
    """Return the two-dimensional sine-cosine code [sin x, cos x, sin y, cos y], float32 (N, dim).

    Frequencies are 10000^(-t / (dim/4)) (MAE, arXiv 2111.06377) or, with `simple`,
    10000^(-t / (dim/4 - 1)) (Simple ViT, arXiv 2205.01580), t = 0 .. dim/4 - 1. `dim` is a multiple of 4.
    """
    quarter = dim // 4
    exponent = torch.arange(quarter, dtype=torch.float64) / (quarter - 1 if simple else quarter)
    frequency = 10000.0**-exponent  # dim/4

    def axis(length: int) -> Tensor:
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=1)  # length dim/2

    x = axis(width).expand(height, width, -1)
    y = axis(height)[:, None].expand(height, width, -1)
    return torch.cat([x, y], dim=2).reshape(height * width, dim).float()  # N D


def identity_code(n: int, dim: int) -> Tensor:
    """Return [I_n | 0], float32 (n, dim): every token its own axis. Needs n <= dim."""
    return torch.eye(n, dim)


def rotary_table(height: int, width: int, head_dim: int) -> Tensor:
    """Return the table of `attention.rotate` for a grid, float32 (N, R): R/2 cosines, then the sines.

    The first half of the channels turns by the row, the second by the column; the angle of pair i of a
    half of d = R/2 channels is 10000^(-2i/d) a step (arXiv 2104.09864, on each axis). R is a multiple of 4.
    """
    quarter = head_dim // 4
    frequency = 10000.0 ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
    rows, columns = torch.arange(height).double(), torch.arange(width).double()
    y = (rows[:, None] * frequency)[:, None].expand(height, width, -1)
    x = (columns[:, None] * frequency).expand(height, width, -1)
    angle = torch.cat([y, x], dim=2).reshape(height * width, 2 * quarter)
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()  # N R


def interpolated(code: Tensor, prefix: int, grid: int) -> Tensor:
    """Return a code (1, prefix + n, D) of a square grid for one of side `grid`, (1, prefix + grid^2, D).

    Bicubic without aligned corners, as in the released code of arXiv 2111.06377; the first `prefix` rows
    (class token) stay. The same grid is given back as it is.
    """
    side = round((code.shape[1] - prefix) ** 0.5)
    if side == grid:
        return code
    patches = code[:, prefix:].unflatten(1, (side, side)).permute(0, 3, 1, 2)  # 1 D y x
    resized = F.interpolate(patches, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([code[:, :prefix], resized.flatten(2).transpose(1, 2)], dim=1)


def fixed_code(model: config.Model) -> Tensor | None:
    """Return the model's constant code for its patches, float32 (N, D); None if learned, rotary or absent."""
    if model.pos_embed == "identity":
        return identity_code(model.num_patches, model.embed_dim)
    if model.pos_embed in ("sincos2d", "sincos2d_simple"):
        simple = model.pos_embed == "sincos2d_simple"
        return sincos2d(model.grid, model.grid, model.embed_dim, simple=simple)
    return None


def with_class_row(code: Tensor, cls_token: bool) -> Tensor:
    """Return `code` (N, D) as (1, T, D), with a row of zeros for the class token first if there is one."""
    if cls_token:
        code = torch.cat([torch.zeros_like(code[:1]), code])
    return code[None]  # 1 T D
