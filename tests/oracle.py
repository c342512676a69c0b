"""Recorded arrays of independent programs (tests/data) and how closely they must be met."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnprior import config

DATA = Path(__file__).parent / "data"

MODEL = config.Model(
    kind="vit",
    image_size=8,
    in_chans=1,
    num_classes=10,
    patch_size=2,
    patch_norm=True,
    embed_dim=32,
    depth=3,
    num_heads=4,
    mlp_ratio=2.0,
    attention="qk",
    value=True,
    qkv_bias=False,
    proj_bias=False,
    logit_scale=None,
    norm_eps=1e-5,
    pos_embed="sincos2d_simple",
    pos_at="qk",
    alpha=0.1,
    cls_token=False,
    pool="mean",
    weight_init="torch",
)
STANDARD = replace(
    MODEL,
    patch_norm=False,
    qkv_bias=True,
    proj_bias=True,
    norm_eps=1e-6,
    pos_embed="sincos2d",
    pos_at="input",
    alpha=1.0,
    cls_token=True,
    pool="mean_fc_norm",
    weight_init="trunc_normal",
)
ROPE = replace(MODEL, pos_embed="rope", alpha=1.0)
FREE = replace(MODEL, attention="free", pos_embed="none", pos_at="none", alpha=1.0)  # Model III
MIXER = config.ConvMixer(
    kind="convmixer",
    image_size=8,
    in_chans=1,
    num_classes=10,
    patch_size=2,
    embed_dim=16,
    depth=2,
    kernel_size=3,
    gelu_after_spatial=True,
    norm_eps=1e-5,
)
DECODER = config.Decoder(embed_dim=16, depth=1, num_heads=2, mlp_ratio=2.0)


class Arrays(dict[str, Tensor]):
    """The arrays of one recording, as tensors by key; `settings` are its scalars under cfg/."""

    def __init__(self, name: str) -> None:
        with np.load(DATA / f"{name}.npz") as file:
            arrays = {k: file[k] for k in file.files}
        self.settings = {k[4:]: v.item() for k, v in arrays.items() if k.startswith("cfg/") and v.ndim == 0}
        super().__init__({k: torch.from_numpy(v) for k, v in arrays.items() if not k.startswith("cfg/")})

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the arrays whose key starts with `prefix`, without it."""
        return {k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)}


def assert_close(actual: Tensor, expected: Tensor, relative: float = 1e-5, absolute: float = 1e-5) -> None:
    """Assert that the largest difference is within `absolute` and within `relative` of the largest entry."""
    assert actual.shape == expected.shape
    actual, expected = actual.detach().double(), expected.double()
    worst, largest = (actual - expected).abs().max().item(), expected.abs().max().item()
    assert worst <= absolute * max(1, largest), f"off by {worst}"
    assert worst <= relative * largest, f"off by {worst} of {largest}"


def random_images(batch: int = 5, model: config.Model = MODEL, seed: int = 0) -> Tensor:
    """Return normal images (B, C, S, S)."""
    shape = (batch, model.in_chans, model.image_size, model.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def randomised(module: torch.nn.Module, seed: int = 1, std: float = 0.3) -> torch.nn.Module:
    """Return `module` with every parameter moved away from 0 and 1, so that each term counts."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += std * torch.randn(parameter.shape, generator=rng, dtype=torch.float32)
    return module


def queries_keys(
    vit, images: Tensor, layers: int, masks: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return (q, k) of the first `layers` blocks of a ViT."""
    found = vit.intermediates(images, layers, ("q", "k"), masks)
    return list(zip(found["q"], found["k"], strict=True))
