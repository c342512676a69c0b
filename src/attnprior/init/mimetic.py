"""Mimetic initialisation (arXiv 2305.09828): W_Q W_K^T near +I and W_V W_O near -I, as trained ViTs have."""

import torch
from torch import Tensor

from attnprior import randomness
from attnprior.init.impulse import write_qk
from attnprior.models.attention import Attention
from attnprior.models.vit import ViT

QK_NOISE, QK_DIAGONAL = 0.7, 0.7
VO_NOISE, VO_DIAGONAL = 0.4, -0.4
REDUCED = 3**-0.5  # noise of the baseline of arXiv 2401.12511 over that of arXiv 2305.09828


def factors(draw: Tensor, noise: float, diagonal: float) -> tuple[Tensor, Tensor]:
    """Return L = U S^1/2 and R = S^1/2 V^T of A = noise * draw + diagonal * I = U S V^T, float64.

    `draw` (..., D, D) has entries of variance 1/D.
    """
    matrix = noise * draw.double() + diagonal * torch.eye(draw.shape[-1], dtype=torch.float64)
    u, s, vt = torch.linalg.svd(matrix)
    root = s.sqrt()
    return u * root[..., None, :], root[..., :, None] * vt


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return a draw of factors: float64, uniform on +-sqrt(3/D), variance 1/D, D the last axis."""
    draw = torch.rand(shape, dtype=torch.float64, generator=generator)
    return (2 * draw - 1) * (3 / shape[-1]) ** 0.5


def qk_from(draw: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return Q (H, D, R) and K (H, R, D), float32, of a draw (H, D, D): the leading R of `factors`."""
    left, right = factors(draw, QK_NOISE, QK_DIAGONAL)
    return left[..., :head_dim].float(), right[..., :head_dim, :].float()


def vo_from(draw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights (D, D) of values and output map, float32, of a draw (D, D).

    Stored (out, in), that is transposed, so that an input row x passes through x W_V W_O = x A exactly.
    """
    left, right = factors(draw, VO_NOISE, VO_DIAGONAL)
    return left.T.float(), right.T.float()


def mimetic_vo(dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return value and output weights (D, D), float32, with x W_V W_O = x (0.4 Z - 0.4 I)."""
    return vo_from(uniform((dim, dim), generator))


@torch.no_grad()
def write_vo(attention: Attention, value: Tensor, output: Tensor) -> None:
    """Write the weights of values and output map, each (D, D); biases stay."""
    if attention.qkv is not None:
        attention.qkv.weight[2 * len(value) :] = value
    else:
        assert attention.v is not None
        attention.v.weight.copy_(value)
    attention.proj.weight.copy_(output)


@torch.no_grad()
def apply_mimetic(vit: ViT, seed: int, value: bool, reduced: bool = False) -> None:
    """Write mimetic queries and keys, and with `value` values and output map, into every layer.

    Layer l draws from the stream (seed, "mimetic", l). Biases stay. Free queries and keys have the number of
    tokens in the place of D. `reduced` is the baseline called mimetic in arXiv 2401.12511, with less noise.
    """
    model = vit.config
    size = model.num_patches if model.attention == "free" else model.embed_dim
    for layer, attention in enumerate(vit.attentions()):
        generator = randomness.generator(seed, "mimetic", layer)
        draw = uniform((model.num_heads, size, size), generator)
        write_qk(attention, *qk_from(REDUCED * draw if reduced else draw, model.head_dim))
        if value:
            write_vo(attention, *mimetic_vo(model.embed_dim, generator))
