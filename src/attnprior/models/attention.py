"""Multi-head self-attention whose map can come from its own queries and keys or from another network's."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior.models.copying import Copied, attend, mix


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return heads x (B, H, N, R) with each pair of channels turned by the angles of its token.

    `table` (1 or B, N, R) holds the cosines of the R/2 angles, then their sines (arXiv 2104.09864).
    """
    cos, sin = table[:, None].chunk(2, dim=-1)  # 1|B 1 N R/2
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    """Self-attention softmax(scale q k^T) v with timm's fused `qkv` (rows q, k, v; head-major) and `proj`.

    Queries and keys read alpha * x + (1 - alpha) * position if a position is given (arXiv 2401.12511,
    Models I and II), values always read x. With `rotary` the position is the table of `rotate` instead.
    Without `value` the values are x itself, cut into heads, and `qk` stands in the place of `qkv`. With
    `tokens` the map is softmax(scale Q K) of the parameters `q` (H, N, R) and `k` (H, R, N) (Model III), and
    `v` stands in the place of `qkv`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool,
        proj_bias: bool,
        logit_scale: float,
        *,
        value: bool = True,
        tokens: int | None = None,
        rotary: bool = False,
    ):
        super().__init__()
        self.num_heads, self.logit_scale = num_heads, logit_scale
        self.value, self.rotary = value, rotary
        self.qkv: nn.Linear | None = None
        self.qk: nn.Linear | None = None
        self.v: nn.Linear | None = None
        self.q: nn.Parameter | None = None
        self.k: nn.Parameter | None = None
        if tokens is not None:
            self.q = nn.Parameter(torch.zeros(num_heads, tokens, dim // num_heads))
            self.k = nn.Parameter(torch.zeros(num_heads, dim // num_heads, tokens))
            self.v = nn.Linear(dim, dim, bias=qkv_bias) if value else None
        elif value:
            self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        else:
            self.qk = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)

    @property
    def free(self) -> bool:
        """Whether the map is that of free parameters, the same for all images."""
        return self.q is not None

    def _linear(self, x: Tensor, values: bool) -> Tensor:
        """Return the values of x (B, N, D), or queries and keys side by side (B, N, 2 D)."""
        own = self.v if values else self.qk
        if own is not None:
            return own(x)
        assert self.qkv is not None
        dim = self.proj.in_features
        rows = slice(2 * dim, None) if values else slice(2 * dim)
        bias = self.qkv.bias
        return F.linear(x, self.qkv.weight[rows], None if bias is None else bias[rows])

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the `parts` tensors (B, H, N, R) that lie side by side in x (B, N, parts * D)."""
        b, n, _ = x.shape
        return x.view(b, n, parts, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def values(self, x: Tensor) -> Tensor:
        """Return the values (B, H, N, R) of normalised tokens x (B, N, D)."""
        return self._heads(self._linear(x, True) if self.value else x, 1)[0]

    def _turned(self, q: Tensor, k: Tensor, position: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self.rotary or position is None:
            return q, k
        return rotate(q, position), rotate(k, position)

    def _blended(self, x: Tensor, position: Tensor | None, alpha: float) -> Tensor:
        """Return what queries and keys read, (B, N, D), or (1, N, D) where it is the same for every image."""
        if position is None or alpha == 1 or self.rotary:
            return x
        return position if alpha == 0 else torch.lerp(position, x, alpha)

    def _queries_keys(self, x: Tensor, position: Tensor | None, alpha: float) -> tuple[Tensor, Tensor]:
        """Return q and k, each (1 or B, H, N, R): one for the batch where no image has its own."""
        if self.q is not None and self.k is not None:
            return self.q[None], self.k.mT[None]
        q, k = self._heads(self._linear(self._blended(x, position, alpha), False), 2)
        return self._turned(q, k, position)

    def queries_keys(
        self, x: Tensor, position: Tensor | None = None, alpha: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return q and k, each (B, H, N, R), of normalised tokens x (B, N, D), and nothing else."""
        q, k = self._queries_keys(x, position, alpha)
        return q.expand(len(x), -1, -1, -1), k.expand(len(x), -1, -1, -1)

    def own(
        self,
        part: str,
        x: Tensor,
        position: Tensor | None = None,
        alpha: float = 1.0,
        heads: Sequence[int] | None = None,
    ) -> Tensor:
        """Return own queries "q", keys "k" or values "v" (B, h, N, R) of the given heads (all if None)."""
        b, dim = len(x), self.proj.in_features
        chosen = slice(None) if heads is None or len(heads) == self.num_heads else list(heads)
        if part != "v" and self.q is not None and self.k is not None:
            return (self.q if part == "q" else self.k.mT)[None, chosen].expand(b, -1, -1, -1)
        if part == "v" and not self.value:
            return self._heads(x, 1)[0][:, chosen]
        if part != "v":
            x = self._blended(x, position, alpha)
        fused, names = self.qkv, "qkv"
        if fused is None:
            fused, names = (self.v, "v") if part == "v" else (self.qk, "qk")
        assert fused is not None
        index, split = names.index(part), (len(names), self.num_heads, -1)
        weight = fused.weight.view(*split, dim)[index][chosen].flatten(0, 1)  # h*R D
        bias = None if fused.bias is None else fused.bias.view(*split)[index][chosen].flatten()
        out = F.linear(x, weight, bias).unflatten(-1, (-1, dim // self.num_heads)).transpose(1, 2)
        if part != "v" and self.rotary and position is not None:
            out = rotate(out, position)
        return out.expand(b, -1, -1, -1)  # B h N R

    def forward(
        self,
        x: Tensor,
        *,
        position: Tensor | None = None,
        alpha: float = 1.0,
        copied: Copied | None = None,
        record: Mapping[str, list[Tensor]] | None = None,
    ) -> Tensor:
        """Return the attention output (B, N, D) of normalised tokens x (B, N, D).

        `position` (1 or B, N, D) is blended into the input of queries and keys. `copied` puts a teacher's
        map, queries, keys or values into the place of the own ones, which are then not computed. To each of
        the lists "q", "k" and "v" (B, H, N, R) and "logits" (B, H, N, N) that `record` holds, the tensor in
        use is appended; with `copied` only logits can be recorded.
        """
        logits = record is not None and "logits" in record
        if copied is not None:
            out, z = attend(self, x, position, alpha, copied, logits)
        else:
            if self.qkv is not None and (position is None or alpha == 1):
                q, k, v = self._heads(self.qkv(x), 3)
                q, k = self._turned(q, k, position)
            else:
                v = self.values(x)
                q, k = self._queries_keys(x, position, alpha)
            for name, tensor in (("q", q), ("k", k), ("v", v)):
                if record is not None and name in record:
                    record[name].append(tensor.expand(len(x), -1, -1, -1))
            out, z = mix(q, k, v, self.logit_scale, logits)
        if record is not None and z is not None:
            record["logits"].append(z)
        return self.proj(out.transpose(1, 2).flatten(2))  # B N D

    @torch.no_grad()
    def freeze_queries_keys(self) -> None:
        """Make constants of queries and keys: they get no gradient, and an optimizer does not see them.

        A fused `qkv` is parted into `qk` and `v`; `fused` of models/freeze.py joins them for a file.
        """
        if self.qkv is not None:
            dim, bias = self.proj.in_features, self.qkv.bias is not None
            self.qk, self.v = (
                nn.utils.skip_init(nn.Linear, dim, n * dim, bias=bias, device=self.qkv.weight.device)
                for n in (2, 1)
            )
            for part, rows in ((self.qk, slice(2 * dim)), (self.v, slice(2 * dim, None))):
                part.weight.copy_(self.qkv.weight[rows])
                if bias:
                    part.bias.copy_(self.qkv.bias[rows])
            self.qkv = None
        for frozen in (self.q, self.k, self.qk):
            if frozen is not None:
                frozen.requires_grad_(False)
