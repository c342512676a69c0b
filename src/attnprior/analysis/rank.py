"""Singular values of the tokens that enter each layer: their rank is that of analysis/redundancy.py."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnprior.models.convmixer import ConvMixer
from attnprior.models.copying import Copied
from attnprior.models.vit import ViT, patchify


def relative_values(matrix: Tensor) -> Tensor:
    """Return the singular values of (..., N, C) over the largest of each, float32 (..., min(N, C)), falling.

    Computed in float64; those of a matrix of zeros are 0.
    """
    values = torch.linalg.svdvals(matrix.double())  # ... min(N, C)
    return (values / values[..., :1].clamp_min(torch.finfo(values.dtype).tiny)).float()


@torch.inference_mode()
def token_values(
    network: ViT | ConvMixer, images: Tensor, copied: Sequence[Copied | None] | None = None
) -> Tensor:
    """Return the singular values of the tokens of images (B, C, H, W) that enter each layer.

    float32 (layers, B, min(N, D)), relative to the largest of each image and layer. Images are normalised;
    `copied` is what the layers of a ViT take from a teacher. Tokens (N, D) are those of the patches, without
    a class token, before the norm of the layer, which changes their rank by one at most; what leaves the last
    layer is not looked at.
    """
    if isinstance(network, ConvMixer):
        first, prefix = network.embed(images).flatten(2).mT, 0
    else:
        first, _ = network.embed(patchify(images, network.config.patch_size))
        prefix = network.prefix
    _, recorded = network(images, record=("tokens",), copied=copied)
    entering = [first, *recorded["tokens"][:-1]]  # each B T D
    return torch.stack([relative_values(x[:, prefix:]) for x in entering])
