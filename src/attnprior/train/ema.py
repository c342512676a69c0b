"""Running mean of a network's state, which is what is measured and kept where a recipe asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnprior.train.parallel import local


class Average:
    """Mean of a model's parameters and buffers: decay * mean + (1 - decay) * value after every step.

    Whole numbers among the buffers are taken over as they are.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._own = dict(model.state_dict())  # the tensors themselves
        self._mean = {name: value.detach().clone() for name, value in self._own.items()}
        self._floats = [n for n, v in self._own.items() if v.is_floating_point()]
        self._rest = [n for n in self._own if n not in self._floats]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model's present state."""
        means = [local(self._mean[n]) for n in self._floats]
        torch._foreach_lerp_(means, [local(self._own[n]) for n in self._floats], 1 - self._decay)
        for name in self._rest:
            self._mean[name].copy_(self._own[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Give the mean to the model for good."""
        for name, value in self._own.items():
            value.copy_(self._mean[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the mean to the model for the time of the block."""
        before = {name: value.detach().clone() for name, value in self._own.items()}
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in self._own.items():
                    value.copy_(before[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean by name, the tensors themselves."""
        return self._mean
