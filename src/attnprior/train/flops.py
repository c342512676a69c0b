"""Floating-point operations of a step, counted from the matrix products it makes."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Counter(TorchFunctionMode):
    """Adds up matrix products: 2 operations a multiply-add, and one more product for each operand's gradient.

    torch's own FlopCounterMode does not know the CPU's fused attention and imports the compiler.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.linear, torch.conv2d):
            size = prod(args[1].shape[1:])  # multiply-adds of an output element
            self._add(2 * result.numel() * size, args[:2])
        elif func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm):
            self._add(2 * result.numel() * args[0].shape[-1], args[:2])
        elif func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            rows = q.numel() // q.shape[-1]
            self._add(2 * rows * k.shape[-2] * q.shape[-1], (q, k))
            self._add(2 * rows * k.shape[-2] * v.shape[-1], (v, q if q.requires_grad else k))
        return result

    def _add(self, forward: int, operands: tuple) -> None:
        backward = sum(o.requires_grad for o in operands) if torch.is_grad_enabled() else 0
        self.total += forward * (1 + backward)


def count_flops(step: Callable[[], Any]) -> int:
    """Return the operations of the forward pass `step` and of the backward pass that would follow it.

    Counted are products by matrices (linear maps, convolutions, attention; the recomputation that fused
    attention does in its backward pass is not): what remains is small.
    """
    with _Counter() as counter:
        step()
    return counter.total
