"""Multi-head self-attention whose map can come from its own queries and keys or from another network's."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior.models.copying import Copied, attend, mix


class Attention(nn.Module):
    """Self-attention softmax(scale q k^T) v with timm's fused `qkv` (rows q, k, v; head-major) and `proj`.

    Queries and keys read alpha * x + (1 - alpha) * position if a position is given (arXiv 2401.12511,
    Models I and II), values always read x.
    """

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool, proj_bias: bool, logit_scale: float):
        super().__init__()
        self.num_heads = num_heads
        self.logit_scale = logit_scale
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)

    def _split(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Return weight and bias of queries and keys together, then those of values."""
        dim = self.proj.in_features
        weight_qk, weight_v = self.qkv.weight.split([2 * dim, dim])
        if self.qkv.bias is None:
            return weight_qk, None, weight_v, None
        bias_qk, bias_v = self.qkv.bias.split([2 * dim, dim])
        return weight_qk, bias_qk, weight_v, bias_v

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the `parts` tensors (B, H, N, R) that lie side by side in x (B, N, parts * D)."""
        b, n, _ = x.shape
        return x.view(b, n, parts, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def queries_keys(
        self, x: Tensor, position: Tensor | None = None, alpha: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return q and k, each (B, H, N, R), of normalised tokens x (B, N, D), and nothing else."""
        b = len(x)
        if position is not None and alpha != 1:
            # with alpha 0 the map is the same for every image: one copy is enough
            x = position if alpha == 0 else torch.lerp(position, x, alpha)  # B|1 N D
        weight, bias, _, _ = self._split()
        q, k = self._heads(F.linear(x, weight, bias), 2)
        return q.expand(b, -1, -1, -1), k.expand(b, -1, -1, -1)

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
        if part != "v" and position is not None and alpha != 1:
            x = position if alpha == 0 else torch.lerp(position, x, alpha)  # B|1 N D
        index, split = "qkv".index(part), (3, self.num_heads, -1)
        chosen = slice(None) if heads is None or len(heads) == self.num_heads else list(heads)
        weight = self.qkv.weight.view(*split, dim)[index][chosen].flatten(0, 1)  # h*R D
        bias = None if self.qkv.bias is None else self.qkv.bias.view(*split)[index][chosen].flatten()
        out = F.linear(x, weight, bias).unflatten(-1, (-1, dim // self.num_heads)).transpose(1, 2)
        return out.expand(b, -1, -1, -1)  # B h N R

    def forward(
        self,
        x: Tensor,
        *,
        position: Tensor | None = None,
        alpha: float = 1.0,
        copied: Copied | None = None,
        record: dict[str, list[Tensor]] | None = None,
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
            if position is None or alpha == 1:
                q, k, v = self._heads(self.qkv(x), 3)
            else:
                _, _, weight, bias = self._split()
                (v,) = self._heads(F.linear(x, weight, bias), 1)
                q, k = self.queries_keys(x, position, alpha)
            for name, tensor in (("q", q), ("k", k), ("v", v)):
                if record is not None and name in record:
                    record[name].append(tensor)
            out, z = mix(q, k, v, self.logit_scale, logits)
        if record is not None and z is not None:
            record["logits"].append(z)
        return self.proj(out.transpose(1, 2).flatten(2))  # B N D
