"""Multi-head self-attention whose map can come from its own queries and keys or from another network's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Copied = tuple[Tensor, Tensor, float]  # q (B, H, N, R), k (B, H, N, R), factor of q k^T


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

        `position` (1 or B, N, D) is blended into the input of queries and keys. With `copied` the map is
        that of the given q and k; own queries and keys are not computed and get a zero gradient. To each of
        the lists "q", "k" and "logits" (B, H, N, N) that `record` holds, the tensor in use is appended.
        """
        if copied is None and (position is None or alpha == 1):
            q, k, v = self._heads(self.qkv(x), 3)
            scale = self.logit_scale
        else:
            _, _, weight, bias = self._split()
            (v,) = self._heads(F.linear(x, weight, bias), 1)
            if copied is None:
                q, k = self.queries_keys(x, position, alpha)
                scale = self.logit_scale
            else:
                q, k, scale = copied
        if record is not None:
            if "q" in record:
                record["q"].append(q)
            if "k" in record:
                record["k"].append(k)
        if record is not None and "logits" in record:
            logits = scale * (q @ k.transpose(-2, -1))  # B H N N
            record["logits"].append(logits)
            out = logits.softmax(-1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return self.proj(out.transpose(1, 2).flatten(2))  # B N D
