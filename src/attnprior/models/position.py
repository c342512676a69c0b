"""Fixed position codes of a grid of tokens, row-major: token i = y * width + x."""

import torch
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


def fixed_code(model: config.Model) -> Tensor | None:
    """Return the model's constant code for its patches, float32 (N, D); None if learned or absent."""
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
