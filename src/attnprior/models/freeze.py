"""Layers that are not trained, and weights as files hold them."""

import torch
from torch import Tensor, nn

from attnprior.models.attention import Attention
from attnprior.models.convmixer import ConvMixer
from attnprior.models.vit import ViT
from attnprior.randomness import generator

HEAD_STD = 0.01  # of the first weights of a linear probe
NORM_EPS = 1e-6


def freeze_spatial(network: nn.Module) -> None:
    """Take queries and keys of a ViT, or depthwise filters and their bias of a ConvMixer, out of training."""
    for module in list(network.modules()):
        if isinstance(module, Attention):
            module.freeze_queries_keys()
    if isinstance(network, ConvMixer):
        network.freeze_filters()


def freeze_encoder(student: ViT, seed: int) -> None:
    """Take all but the head out of training, and give the head a norm before it and new weights.

    The norm is a BatchNorm without weights of its own; those of the head are normal with std 0.01, its
    bias is 0. What is trained is a linear probe. Source: arXiv 2111.06377, table 10 and the released code.
    """
    student.requires_grad_(False)
    norm = nn.BatchNorm1d(student.config.embed_dim, affine=False, eps=NORM_EPS)
    linear = nn.utils.skip_init(nn.Linear, student.config.embed_dim, student.config.num_classes)
    linear.weight.data.normal_(std=HEAD_STD, generator=generator(seed, "linear_probe"))
    linear.bias.data.zero_()
    student.head = nn.Sequential(norm, linear)


@torch.no_grad()
def fused(network: nn.Module) -> dict[str, Tensor]:
    """Return the state of a network with the names that a network without frozen layers has."""
    state = dict(network.state_dict())
    for prefix, module in network.named_modules():
        if isinstance(module, Attention) and module.qk is not None and module.v is not None:
            for kind in ("weight", "bias"):
                if f"{prefix}.qk.{kind}" in state:
                    parts = [state.pop(f"{prefix}.{name}.{kind}") for name in ("qk", "v")]
                    state[f"{prefix}.qkv.{kind}"] = torch.cat(parts)
    if isinstance(network, ViT) and isinstance(network.head, nn.Sequential):
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        state |= _folded(*network.head)
    return state


def _folded(norm: nn.BatchNorm1d, linear: nn.Linear) -> dict[str, Tensor]:
    """Return the head that does what norm and linear map do at evaluation; float32, computed in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    weight = linear.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()  # classes D
    bias = linear.bias.double() - weight @ norm.running_mean.double()  # classes
    return {"head.weight": weight.float(), "head.bias": bias.float()}
