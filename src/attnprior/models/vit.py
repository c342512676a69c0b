"""Vision Transformer: pre-norm blocks, position code at the input or in every layer's Q/K input."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior import config, randomness
from attnprior.models import position as codes
from attnprior.models.attention import Attention
from attnprior.models.copying import Copied
from attnprior.models.weights import init_weights


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Return images (B, C, H, W) as patch vectors (B, N, p*p*C), ordered (row, column, channel)."""
    b, c, h, w = images.shape
    p = patch_size
    return images.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, p * p * c)


class PatchEmbed(nn.Module):
    """Linear map of patch vectors, with LayerNorm before (`norm_in`) and after (`norm_out`) if asked for.

    `proj` holds the weight in the shape of a convolution with kernel = stride = patch size, as timm does;
    it is applied as a matrix product, so that the norm can stand before it. `norm_in` works on the patch
    vector in the order (row, column, channel).
    """

    def __init__(self, in_chans: int, patch_size: int, dim: int, norm: bool, eps: float):
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride=patch_size)
        self.norm_in = nn.LayerNorm(in_chans * patch_size**2, eps=eps) if norm else nn.Identity()
        self.norm_out = nn.LayerNorm(dim, eps=eps) if norm else nn.Identity()

    def forward(self, patches: Tensor) -> Tensor:
        """Return tokens (B, N, D) of patch vectors (B, N, p*p*C)."""
        weight = self.proj.weight.permute(0, 2, 3, 1).flatten(1)  # D p*p*C
        return self.norm_out(F.linear(self.norm_in(patches), weight, self.proj.bias))


class Mlp(nn.Module):
    """Two linear maps with the exact (erf) GELU between them."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm block: x + attn(norm1(x)), then x + mlp(norm2(x))."""

    def __init__(
        self,
        dim: int,
        heads: int,
        ratio: float,
        eps: float,
        biases: tuple[bool, bool],
        scale: float,
        **options: Any,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, heads, *biases, scale, **options)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, round(dim * ratio))

    def forward(
        self,
        x: Tensor,
        position: Tensor | None = None,
        alpha: float = 1.0,
        copied: Copied | None = None,
        drop: Tensor | None = None,
        record: Mapping[str, list[Tensor]] | None = None,
    ) -> Tensor:
        """Return x (B, N, D) after both branches; `drop` (2, B) multiplies them per sample."""
        branch = self.attn(self.norm1(x), position=position, alpha=alpha, copied=copied, record=record)
        x = x + (branch if drop is None else branch * drop[0, :, None, None])
        branch = self.mlp(self.norm2(x))
        return x + (branch if drop is None else branch * drop[1, :, None, None])


class ViT(nn.Module):
    """Vision Transformer with timm's parameter names.

    A fixed position code is a buffer outside the state dict, a learned one a parameter. `logit_scale` is the
    factor of q k^T in every layer, that of the settings if None. With `num_classes` 0 there is no head and
    the "logits" are the pooled features. `drop_path` is the rate of the last block, for `drop_path_masks`.
    """

    def __init__(self, config: config.Model, *, drop_path: float = 0.0, logit_scale: float | None = None):
        super().__init__()
        m = self.config = config
        self.drop_path = drop_path
        self.logit_scale = m.scale if logit_scale is None else logit_scale
        self.prefix = int(m.cls_token)  # tokens in front of the patches
        self.patch_embed = PatchEmbed(m.in_chans, m.patch_size, m.embed_dim, m.patch_norm, m.norm_eps)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, m.embed_dim)) if m.cls_token else None
        self.pos_embed: Tensor | None
        if m.pos_embed == "learned":
            self.pos_embed = nn.Parameter(torch.zeros(1, self.prefix + m.num_patches, m.embed_dim))
        else:
            self.register_buffer("pos_embed", _constant_code(m), persistent=False)
        self.alpha = m.alpha if m.pos_at == "qk" else 1.0
        sizes = (m.embed_dim, m.num_heads, m.mlp_ratio, m.norm_eps, (m.qkv_bias, m.proj_bias))
        tokens = m.num_patches if m.attention == "free" else None
        self.blocks = nn.ModuleList(
            Block(*sizes, self.logit_scale, value=m.value, tokens=tokens, rotary=m.pos_embed == "rope")
            for _ in range(m.depth)
        )
        after_pool = m.pool == "mean_fc_norm"
        self.norm = nn.Identity() if after_pool else nn.LayerNorm(m.embed_dim, eps=m.norm_eps)
        self.fc_norm = nn.LayerNorm(m.embed_dim, eps=m.norm_eps) if after_pool else nn.Identity()
        head = nn.Linear(m.embed_dim, m.num_classes) if m.num_classes else nn.Identity()
        self.head: nn.Module = head  # models/freeze.py puts another one into its place

    def attentions(self) -> list[Attention]:
        """Return the attention modules, first block first."""
        return [block.attn for block in self.blocks if isinstance(block, Block)]

    def embed(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return tokens (B, T, D) and the position for the Q/K inputs (1 or B, T, D), or None.

        With rotary codes the position is their table (1 or B, T, R).
        `patches` (B, N, p*p*C) are image patches in row-major order; `keep` (B, n) selects and orders some.
        """
        position = self.pos_embed  # 1 T D
        if keep is not None:
            patches = patches.gather(1, keep[:, :, None].expand(-1, -1, patches.shape[2]))
            if position is not None:
                rows = F.pad(keep + self.prefix, (self.prefix, 0))  # class token: row 0
                position = position[0][rows]  # B T D
        x = self.patch_embed(patches)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        if self.config.pos_at == "input":
            assert position is not None
            if self.config.alpha != 1:  # Simple ViT as released
                return torch.lerp(position, x, self.config.alpha), None
            return x + position, None
        return x, position

    def encode(self, patches: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the normalised output tokens (B, T, D) of the patches that `keep` (B, n) selects."""
        x, position = self.embed(patches, keep)
        for block in self.blocks:
            x = block(x, position, self.alpha)
        return self.norm(x)

    def forward(
        self,
        images: Tensor,
        *,
        record: Collection[str] = (),
        copied: Sequence[Copied | None] | None = None,
        drop_masks: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Return the logits (B, classes) of images (B, C, H, W) and the recorded intermediates.

        `record` names any of "q", "k", "v" (per layer, B H T R), "logits" (scaled, before softmax, per layer,
        B H T T), "tokens" (output of every block, B T D) and "features" (pooled and normalised, B D).
        `copied` gives for every layer what it takes from a teacher, or None.
        `drop_masks` (depth, 2, B) multiply the branches; None drops nothing.
        """
        recorded: dict[str, list[Tensor]] = {name: [] for name in record}
        notes = MappingProxyType(recorded)  # not a dict, of which FSDP would give a block a copy to note in
        x, position = self.embed(patchify(images, self.config.patch_size))
        for i, block in enumerate(self.blocks):
            given = None if copied is None else copied[i]
            drop = None if drop_masks is None else drop_masks[i]
            x = block(x, position, self.alpha, given, drop, notes)
            if "tokens" in recorded:
                recorded["tokens"].append(x)
        x = self.norm(x)
        x = x[:, 0] if self.config.pool == "cls" else x[:, self.prefix :].mean(dim=1)
        x = self.fc_norm(x)  # B D
        if "features" in recorded:
            recorded["features"].append(x)
        return self.head(x), recorded

    @torch.no_grad()
    def intermediates(
        self, images: Tensor, layers: int, names: Collection[str], drop_masks: Tensor | None = None
    ) -> dict[str, list[Tensor]]:
        """Return of the first `layers` blocks either "tokens", or any of "q", "k" and "v", without gradient.

        Shapes and `drop_masks` are as in `forward`. Nothing that comes after is computed.
        """
        recorded: dict[str, list[Tensor]] = {name: [] for name in names}
        x, position = self.embed(patchify(images, self.config.patch_size))
        for i in range(layers if "tokens" in recorded else layers - 1):
            drop = None if drop_masks is None else drop_masks[i]
            x = self.blocks[i](x, position, self.alpha, None, drop, recorded)
            if "tokens" in recorded:
                recorded["tokens"].append(x)
        if "tokens" in recorded:
            return recorded
        last = self.blocks[layers - 1]
        assert isinstance(last, Block)
        given = last.norm1(x), position, self.alpha
        if "q" in recorded and "k" in recorded:  # one product
            for name, tensor in zip("qk", last.attn.queries_keys(*given), strict=True):
                recorded[name].append(tensor)
        for name in recorded:
            if len(recorded[name]) < layers:
                recorded[name].append(last.attn.own(name, *given))
        return recorded


def _constant_code(m: config.Model) -> Tensor | None:
    """Return the position code that is no weight, (1, T, D), or the rotary table, (1, T, R)."""
    if m.pos_embed == "rope":
        table = codes.rotary_table(m.grid, m.grid, m.head_dim)
        still = torch.cat([torch.ones(1, m.head_dim // 2), torch.zeros(1, m.head_dim // 2)], dim=1)
        return torch.cat([still, table] if m.cls_token else [table])[None]  # class token: not turned
    code = codes.fixed_code(m)
    return None if code is None else codes.with_class_row(code, m.cls_token)


def drop_path_masks(depth: int, rate: float, batch: int, generator: torch.Generator) -> Tensor:
    """Return stochastic-depth factors (depth, 2, B): 0 or 1/(1 - rate_i), rates rising from 0 to `rate`.

    One factor per block, branch (attention, MLP) and sample (arXiv 1603.09382); the mean is 1.
    """
    keep = 1 - torch.linspace(0, rate, depth)[:, None, None]  # depth 1 1
    return (torch.rand(depth, 2, batch, generator=generator) < keep) / keep


def build_vit(
    config: config.Model,
    seed: int,
    *,
    drop_path: float = 0.0,
    logit_scale: float | None = None,
    stream: str = "init",
) -> ViT:
    """Return a ViT drawn from the named stream; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):  # constructors draw, too
        vit = ViT(config, drop_path=drop_path, logit_scale=logit_scale)
    init_weights(vit, config.weight_init, randomness.generator(seed, stream))
    return vit
