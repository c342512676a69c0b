"""ConvMixer (arXiv 2201.09792) whose depthwise filters can be shared, softmax-normalised or matrices."""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior import config

MATRICES = ("perm", "fullperm")  # kinds of filters that are matrices over all patches


class SpatialMix(nn.Module):
    """Depthwise mixing of the patches of each of C channels, zero padded, with a bias per channel.

    `weight` holds H distinct filters, (H, 1, k, k), or with `tokens` H matrices (H, N, N); `choice` (C,) is
    the filter of each channel. With `softmax` the entries of each filter are normalised in every pass.
    """

    choice: Tensor

    def __init__(self, channels: int, kernel: int, heads: int, softmax: bool, tokens: int | None):
        super().__init__()
        shape = (heads, 1, kernel, kernel) if tokens is None else (heads, tokens, tokens)
        self.softmax = softmax
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("choice", torch.arange(channels) % heads)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed channels (B, C, y, x) of x (B, C, y, x)."""
        weight: Tensor = self.weight
        if self.softmax:
            weight = weight.flatten(1).softmax(-1).view_as(weight)
        weight = weight[self.choice]  # C 1 k k | C N N
        if weight.ndim == 4:
            return F.conv2d(x, weight, self.bias, padding=weight.shape[-1] // 2, groups=len(weight))
        mixed = torch.bmm(weight, x.flatten(2).permute(1, 2, 0))  # C N B
        return mixed.permute(2, 0, 1).reshape(x.shape) + self.bias[:, None, None]


class MixerBlock(nn.Module):
    """x + norm1([gelu](spatial(x))), then norm2(gelu(mix(x)))."""

    def __init__(self, m: config.ConvMixer, heads: int, softmax: bool, tokens: int | None):
        super().__init__()
        self.gelu = m.gelu_after_spatial
        self.spatial = SpatialMix(m.embed_dim, m.kernel_size, heads, softmax, tokens)
        self.norm1 = nn.BatchNorm2d(m.embed_dim, eps=m.norm_eps)
        self.mix = nn.Conv2d(m.embed_dim, m.embed_dim, 1)
        self.norm2 = nn.BatchNorm2d(m.embed_dim, eps=m.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.spatial(x)
        x = x + self.norm1(F.gelu(mixed) if self.gelu else mixed)
        return self.norm2(F.gelu(self.mix(x)))


class ConvMixer(nn.Module):
    """ConvMixer with the interface of `ViT` for classification; it has no attention.

    `kind` and `heads` are the kind and the number of distinct filters of a layer (init/filters.py).
    """

    logit_scale: float | None = None  # of attention, which there is none of

    def __init__(self, config: config.ConvMixer, kind: str, heads: int):
        super().__init__()
        m = self.config = config
        self.kind, self.heads = kind, heads
        self.stem = nn.Conv2d(m.in_chans, m.embed_dim, m.patch_size, stride=m.patch_size)
        self.stem_norm = nn.BatchNorm2d(m.embed_dim, eps=m.norm_eps)
        tokens = m.num_patches if kind in MATRICES else None
        self.blocks = nn.ModuleList(MixerBlock(m, heads, kind == "softmax", tokens) for _ in range(m.depth))
        self.head = nn.Linear(m.embed_dim, m.num_classes)

    def spatial(self) -> list[SpatialMix]:
        """Return the spatial layers, first block first."""
        return [block.spatial for block in self.blocks if isinstance(block, MixerBlock)]

    def freeze_filters(self) -> None:
        """Take filters and their bias out of training."""
        for layer in self.spatial():
            layer.requires_grad_(False)

    def embed(self, images: Tensor) -> Tensor:
        """Return the channels (B, D, y, x) of the patches of images (B, C, H, W)."""
        return self.stem_norm(F.gelu(self.stem(images)))

    def forward(
        self, images: Tensor, *, record: Collection[str] = (), copied: None = None, drop_masks: None = None
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Return the logits (B, classes) of images (B, C, H, W) and the recorded intermediates.

        `record` names "tokens" (output of every block, B N D) or "features" (pooled, B D). `copied` and
        `drop_masks` are those of a ViT and have no meaning here.
        """
        assert copied is None and drop_masks is None  # refused by models/checks.py
        recorded: dict[str, list[Tensor]] = {name: [] for name in record}
        x = self.embed(images)  # B D y x
        for block in self.blocks:
            x = block(x)
            if "tokens" in recorded:
                recorded["tokens"].append(x.flatten(2).mT)
        x = x.mean(dim=(2, 3))  # B D
        if "features" in recorded:
            recorded["features"].append(x)
        return self.head(x), recorded
