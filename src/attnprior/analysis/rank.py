"""Rank of the tokens that enter each layer, for the condition under which channel mixing can make any filter.

With tokens X (N, C) of rank k and filters that span all f x f filters, mixing channels can give every output
channel any k filters if C >= k f^2 (arXiv 2401.12511, section 3; proposition 1 of arXiv 2404.01139).
"""

import torch
from torch import Tensor

from attnprior.models.convmixer import ConvMixer
from attnprior.models.vit import ViT, patchify


def numerical_rank(matrix: Tensor, tolerance: float) -> Tensor:
    """Return the number of singular values above `tolerance` times the largest, int64 (...), of (..., N, C).

    Computed in float64; a matrix of zeros has rank 0.
    """
    values = torch.linalg.svdvals(matrix.double())  # ... min(N, C), falling
    return (values > tolerance * values[..., :1]).sum(-1)


@torch.inference_mode()
def token_ranks(network: ViT | ConvMixer, images: Tensor, tolerance: float) -> Tensor:
    """Return the rank of the tokens of images (B, C, H, W) that enter each layer, int64 (layers, B).

    Images are normalised.
    Tokens are those of the patches, without a class token, before the norm of the layer; what leaves
    the last layer is not looked at. The tolerance is relative to the largest singular value of each matrix.
    """
    if isinstance(network, ConvMixer):
        first, prefix = network.embed(images).flatten(2).mT, 0
    else:
        first, _ = network.embed(patchify(images, network.config.patch_size))
        prefix = network.prefix
    _, recorded = network(images, record=("tokens",))
    entering = [first, *recorded["tokens"][:-1]]  # each B T C
    return torch.stack([numerical_rank(x[:, prefix:], tolerance) for x in entering])


def redundant(channels: int, rank: int, filter_size: int) -> bool:
    """Return whether `channels` suffice for tokens of this rank: C >= k f^2."""
    return channels >= rank * filter_size**2
