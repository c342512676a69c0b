"""Spatial layers that are not trained, and weights as files hold them."""

import torch
from torch import Tensor, nn

from attnprior.models.attention import Attention
from attnprior.models.convmixer import ConvMixer


def freeze_spatial(network: nn.Module) -> None:
    """Take queries and keys of a ViT, or depthwise filters and their bias of a ConvMixer, out of training."""
    for module in list(network.modules()):
        if isinstance(module, Attention):
            module.freeze_queries_keys()
    if isinstance(network, ConvMixer):
        network.freeze_filters()


def fused(network: nn.Module) -> dict[str, Tensor]:
    """Return the state of a network with the names that a network without frozen layers has."""
    state = dict(network.state_dict())
    for prefix, module in network.named_modules():
        if isinstance(module, Attention) and module.qk is not None and module.v is not None:
            for kind in ("weight", "bias"):
                if f"{prefix}.qk.{kind}" in state:
                    parts = [state.pop(f"{prefix}.{name}.{kind}") for name in ("qk", "v")]
                    state[f"{prefix}.qkv.{kind}"] = torch.cat(parts)
    return state
