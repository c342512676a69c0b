"""What an impulse fit takes as the input of queries and keys: position codes and pseudo-inputs."""

import torch
from torch import Tensor

from attnprior import config
from attnprior.init.impulse import query_key_input
from attnprior.models.position import fixed_code
from attnprior.models.vit import build_vit
from attnprior.randomness import generator

GAUSSIAN = 0.5**0.5  # standard deviation, as published


def fits_of_layers(fit: config.Fit, depth: int) -> list[int]:
    """Return which of the fits that are made belongs to each layer.

    Every layer has its own, or all layers of the same input share one.
    """
    if fit.layers == "each":
        return list(range(depth))
    same = fit.inputs is None or fit.inputs.first == fit.inputs.rest
    return [0 if same else min(layer, 1) for layer in range(depth)]


def starting_code(fit: config.Fit, model: config.Model, seed: int) -> Tensor | None:
    """Return the learned position code (1, T, D) that students of the fit start with, None for other codes.

    It is the code of a random student of the same seed, times `position_norm` (18 in the released code of
    arXiv 2505.19985): a fit holds for the code that it was made for.
    """
    if model.pos_embed != "learned" or model.attention == "free":
        return None
    assert fit.position_norm is not None
    code = build_vit(model, seed).pos_embed
    assert code is not None
    return fit.position_norm * code.detach()


def fit_inputs(fit: config.Fit, model: config.Model, code: Tensor | None, seed: int) -> Tensor:
    """Return the input of queries and keys: (N, D) for all fits, or (fits, 1, N, D) if it differs.

    `code` (1, T, D) is that of `starting_code`. A model with free queries and keys has the identity (N, N) as
    its input. Random parts are drawn once for layer 1 and, if they differ, once for the rest, from the stream
    (seed, "pseudo_input", 0 or 1): uniform on +-1, or normal with variance 1/2 (arXiv 2404.01139).
    """
    if model.attention == "free":
        return torch.eye(model.num_patches)
    position = fixed_code(model) if code is None else code[0, int(model.cls_token) :]  # N D
    assert position is not None and fit.inputs is not None
    first = _input(fit.inputs.first, position, model.pos_at, seed, 0)
    if fit.inputs.rest == fit.inputs.first:
        return first
    rest = _input(fit.inputs.rest, position, model.pos_at, seed, 1)
    each = [rest if layer else first for layer in range(max(fits_of_layers(fit, model.depth)) + 1)]
    return torch.stack(each)[:, None]  # fits 1 N D


def _input(name: str, position: Tensor, pos_at: str, seed: int, index: int) -> Tensor:
    rng = generator(seed, "pseudo_input", index)
    parts = [position] if name.startswith("position") else []
    if name.endswith("uniform"):
        parts.append(2 * torch.rand(position.shape, generator=rng) - 1)
    elif name.endswith("gaussian"):
        parts.append(GAUSSIAN * torch.randn(position.shape, generator=rng))
    return query_key_input(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0], pos_at)
