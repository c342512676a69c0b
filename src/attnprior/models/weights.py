"""Random initial weights."""

import torch
from torch import nn


def init_weights(module: nn.Module, kind: str, generator: torch.Generator) -> None:
    """Draw all weights of `module` from `generator`, in the order of its sub-modules.

    `kind` is "torch" (PyTorch's defaults: uniform on +-1/sqrt(fan_in)), "trunc_normal" (std 0.02, biases
    0, the patch projection as in "torch"; arXiv 2411.09702) or "xavier" (biases 0; arXiv 2111.06377). Norms
    become 1 and 0; tokens and learned position codes are normal with std 0.02. Free queries and keys of N
    tokens are uniform on +-1/sqrt(N) with "torch", as the released code of arXiv 2401.12511 draws them.
    """
    for child in module.modules():
        if isinstance(child, nn.LayerNorm | nn.BatchNorm2d):
            child.reset_parameters()
        if isinstance(child, nn.Linear | nn.Conv2d):
            weight = child.weight.data.flatten(1)
            bound = weight.shape[1] ** -0.5
            uniform = kind == "torch" or (kind == "trunc_normal" and isinstance(child, nn.Conv2d))
            if uniform:
                weight.uniform_(-bound, bound, generator=generator)
            elif kind == "trunc_normal":
                nn.init.trunc_normal_(weight, std=0.02, generator=generator)
            else:
                nn.init.xavier_uniform_(weight, generator=generator)
            if child.bias is not None and uniform:
                child.bias.data.uniform_(-bound, bound, generator=generator)
            elif child.bias is not None:
                child.bias.data.zero_()
        for name, parameter in child.named_parameters(recurse=False):
            if name in ("cls_token", "mask_token", "pos_embed"):
                nn.init.trunc_normal_(parameter, std=0.02, generator=generator)
            if name in ("q", "k") and kind == "torch":
                bound = (parameter.shape[1] if name == "q" else parameter.shape[2]) ** -0.5
                parameter.data.uniform_(-bound, bound, generator=generator)
            elif name in ("q", "k"):
                nn.init.trunc_normal_(parameter, std=0.02, generator=generator)
