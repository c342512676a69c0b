"""Optimizers, with the groups of parameters that a recipe treats unlike."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attnprior.recipes import Recipe
from attnprior.train.parallel import is_spread, joint_norm, local

TOKENS = ("cls_token", "pos_embed", "mask_token")
HEAD = ("head", "norm", "fc_norm")  # what comes after the last block
Members = list[tuple[str, nn.Parameter]]


def decays(name: str, parameter: Tensor) -> bool:
    """Return whether `decay: matrices` decays it: not 1-D parameters, tokens and position codes."""
    return parameter.ndim > 1 and name.rpartition(".")[2] not in TOKENS


def layer_scale(name: str, depth: int, decay: float) -> float:
    """Return the factor of a parameter's rate: 1 after the last block, `decay` times less block by block.

    Block k of 0..depth-1 has decay^(depth - k), what comes before the blocks decay^(depth + 1). Source:
    arXiv 2111.06377, appendix A.1, and its code; that of arXiv 2411.09702 gives the last block 1 as well.
    """
    block = re.match(r"blocks\.(\d+)\.", name)
    if block is not None:
        return decay ** (depth - int(block[1]))
    return 1.0 if name.partition(".")[0] in HEAD else decay ** (depth + 1)


class Optimizer:
    """The optimizer of a recipe: adamw, adam, sgd (with momentum) or lars.

    It calls torch's fused kernels itself: constructing a `torch.optim` optimizer imports the compiler,
    which costs a process 2.5 s and 150 MB. Same arithmetic and same bytes as `torch.optim.AdamW`, `Adam`
    (decay added to the gradient) and `SGD` with `fused=True`. lars is that of arXiv 2111.06377's linear
    probe: a matrix's gradient, decay added, is scaled by trust * |p| / |g|, then momentum. Of parameters
    that several processes share, each changes its own part (not with lars, which needs their norms).
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], recipe: Recipe) -> None:
        self.named = [(n, p) for n, p in named if p.requires_grad]
        self._recipe = recipe
        adaptive = recipe.optimizer in ("adamw", "adam")
        self._update = self._adam if adaptive else self._sgd if recipe.optimizer == "sgd" else self._lars
        keys = ("exp_avg", "exp_avg_sq") if adaptive else ("momentum",)
        self._state = {n: {k: torch.zeros_like(p) for k in keys} for n, p in self.named}
        if adaptive:
            for n, p in self.named:
                self._state[n]["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
        self.groups = self._grouped()

    def _grouped(self) -> list[tuple[float, float, Members]]:
        """Return (factor of the rate, weight decay, members), decayed ones first."""
        recipe = self._recipe
        blocks = [int(m[1]) for n, _ in self.named if (m := re.match(r"blocks\.(\d+)\.", n))]
        depth = max(blocks, default=-1) + 1
        groups: dict[tuple[float, float], Members] = {}
        for wanted in (True, False):
            for n, p in self.named:
                if (recipe.decay == "all" or decays(n, p)) is wanted:
                    scale = layer_scale(n, depth, recipe.layer_decay) if recipe.layer_decay < 1 else 1.0
                    groups.setdefault((scale, recipe.weight_decay if wanted else 0.0), []).append((n, p))
        return [(scale, weight_decay, members) for (scale, weight_decay), members in groups.items()]

    @torch.no_grad()
    def step(self, lr: float, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient; `skip` (a float tensor) of 1 leaves all as they are."""
        for scale, weight_decay, members in self.groups:
            members = [(n, p) for n, p in members if p.grad is not None]
            if members:
                self._update(members, lr * scale, weight_decay, skip)

    def _adam(self, members: Members, lr: float, weight_decay: float, skip: Tensor | None) -> None:
        recipe, states = self._recipe, [self._state[n] for n, _ in members]
        assert recipe.betas is not None and recipe.eps is not None
        steps = [s["step"] for s in states]
        torch._foreach_add_(steps, 1)
        fused = torch._fused_adamw_ if recipe.optimizer == "adamw" else torch._fused_adam_
        fused(
            [local(p) for _, p in members],
            [local(p.grad) for _, p in members if p.grad is not None],
            [local(s["exp_avg"]) for s in states],
            [local(s["exp_avg_sq"]) for s in states],
            [],
            steps,
            lr=lr,
            beta1=recipe.betas[0],
            beta2=recipe.betas[1],
            weight_decay=weight_decay,
            eps=recipe.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )

    def _sgd(self, members: Members, lr: float, weight_decay: float, skip: Tensor | None) -> None:
        assert self._recipe.momentum is not None
        torch._fused_sgd_(
            [local(p) for _, p in members],
            [local(p.grad) for _, p in members if p.grad is not None],
            [local(self._state[n]["momentum"]) for n, _ in members if self._recipe.momentum],
            weight_decay=weight_decay,
            momentum=self._recipe.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=skip,
        )

    def _lars(self, members: Members, lr: float, weight_decay: float, skip: Tensor | None) -> None:
        assert self._recipe.momentum is not None and self._recipe.trust is not None
        for name, p in members:
            assert p.grad is not None
            moment, change = self._state[name]["momentum"], p.grad
            if p.ndim > 1:
                change = change.add(p, alpha=weight_decay)
                size, length = p.norm(), change.norm()
                trusted = (size > 0) & (length > 0)
                change = change * torch.where(trusted, self._recipe.trust * size / length, 1.0)
            moment_then = moment * self._recipe.momentum + change
            if skip is not None:  # a bad gradient must not enter the momentum
                moment_then = torch.where(skip > 0, moment, moment_then)
                p.copy_(torch.where(skip > 0, p, p - lr * moment_then))
            else:
                p.sub_(moment_then, alpha=lr)
            moment.copy_(moment_then)

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        """Return the Euclidean norm of all gradients together, a scalar."""
        norm = torch.stack(torch._foreach_norm(self._gradients())).norm()
        return joint_norm(norm) if any(is_spread(p) for _, p in self.named) else norm

    @torch.no_grad()
    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients by a scalar."""
        torch._foreach_mul_(self._gradients(), factor)

    def _gradients(self) -> list[Tensor]:
        return [local(p.grad) for _, p in self.named if p.grad is not None]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for _, p in self.named:
            p.grad = None

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the state by parameter name, the tensors themselves."""
        return self._state
