"""Attention of which a part comes from another network: a whole map, or queries, keys or values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from attnprior.models.attention import Attention


@dataclass(frozen=True)
class Copied:
    """What one layer takes from a teacher in the heads `heads`, h of them (arXiv 2411.09702, section 3).

    Either any of `q`, `k` and `v`, each (B, h, n, R), or a finished `map` (B, h, n, n) whose rows sum to 1.
    n is the number T of all tokens, or of the patches alone: then the student computes its own for the
    tokens in front of them. A map among the patches keeps the student's own row of the class token and
    the own weight that each patch gives it; what is left of a row is spread as the map says. `scale` is
    the factor of q k^T where both are given; otherwise it is the student's.
    """

    heads: tuple[int, ...]
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    scale: float | None = None
    map: Tensor | None = None


def mix(q: Tensor, k: Tensor, v: Tensor, scale: float, logits: bool) -> tuple[Tensor, Tensor | None]:
    """Return softmax(scale q k^T) v, (B, H, T, R), and the logits (B, H, T, T) if they are asked for.

    Queries and keys (1, H, T, R) are those of all images; their map is computed once.
    """
    one = len(q) == 1 < len(v)
    if not logits and not one:
        return F.scaled_dot_product_attention(q, k, v, scale=scale), None
    z = scale * (q @ k.transpose(-2, -1))  # 1|B H T T
    out = _one_map(z.softmax(-1), v) if one else z.softmax(-1) @ v
    return out, z.expand(len(v), -1, -1, -1) if logits else None


def _one_map(attention: Tensor, v: Tensor) -> Tensor:
    """Return attention (1, H, N, N) times v (B, H, N, R); the map is not repeated for every image."""
    b, h, n, r = v.shape
    side_by_side = v.permute(1, 2, 0, 3).reshape(h, n, b * r)  # H N B*R
    return (attention[0] @ side_by_side).view(h, n, b, r).permute(2, 0, 1, 3)


def attend(
    attn: Attention, x: Tensor, position: Tensor | None, alpha: float, copied: Copied, logits: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the output per head (B, H, T, R) of tokens x (B, T, D), and the logits if asked for.

    Of the student's own queries, keys and values only those are computed that the result depends on.
    """
    found = [_of_copied_heads(attn, x, position, alpha, copied, logits)]
    others = tuple(h for h in range(attn.num_heads) if h not in copied.heads)
    if others:
        q, k, v = (attn.own(part, x, position, alpha, others) for part in "qkv")
        found.append(mix(q, k, v, attn.logit_scale, logits))
    if len(found) == 1:
        return found[0]
    order = torch.tensor([*copied.heads, *others], device=x.device).argsort()
    outputs, maps = zip(*found, strict=True)
    return torch.cat(outputs, dim=1)[:, order], torch.cat(maps, dim=1)[:, order] if logits else None


def _of_copied_heads(
    attn: Attention, x: Tensor, position: Tensor | None, alpha: float, copied: Copied, logits: bool
) -> tuple[Tensor, Tensor | None]:
    if copied.map is not None:
        v = attn.own("v", x, heads=copied.heads)
        rows = copied.map  # B h n n
        if front := x.shape[1] - rows.shape[-1]:
            q, k = (attn.own(part, x, position, alpha, copied.heads) for part in "qk")
            rows = _among_patches((attn.logit_scale * (q @ k.transpose(-2, -1))).softmax(-1), rows, front)
        return rows @ v, rows.log() if logits else None
    parts = []
    for name, given in (("q", copied.q), ("k", copied.k), ("v", copied.v)):
        front = x.shape[1] if given is None else x.shape[1] - given.shape[2]
        if front:
            place = None if position is None else position[:, :front]
            own = attn.own(name, x[:, :front], place, alpha, copied.heads)
            given = own if given is None else torch.cat([own, given], dim=2)
        assert given is not None
        parts.append(given)
    return mix(parts[0], parts[1], parts[2], copied.scale or attn.logit_scale, logits)


def _among_patches(own: Tensor, given: Tensor, front: int) -> Tensor:
    """Return the map (B, h, T, T) of `Copied` from the own one and a map (B, h, n, n) of the patches."""
    share = own[:, :, front:, :front]  # B h n front
    patches = torch.cat([share, (1 - share.sum(-1, keepdim=True)) * given], dim=-1)  # B h n T
    return torch.cat([own[:, :, :front], patches], dim=-2)
