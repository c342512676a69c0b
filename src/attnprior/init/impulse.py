"""Impulse initialisation: queries and keys whose attention map imitates a one-hot convolution filter.

Sources: arXiv 2401.12511 (Adam fit) and arXiv 2505.19985 (closed form). Token i = y * width + x; rows of
maps and targets are queries, columns keys. Leading axes (layers) are solved side by side, independently.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior.models.attention import Attention

ORDER = (4, 1, 5, 3, 7, 0, 2, 6, 8)  # centre, up, right, left, down, diagonals: filter index of head h mod 9
BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's defaults, as published


def offsets_of(index: Tensor, filter_size: int) -> Tensor:
    """Return (dy, dx) of each flat filter index, int64 (..., 2); the filter's centre is (0, 0)."""
    half = filter_size // 2
    return torch.stack([index // filter_size - half, index % filter_size - half], dim=-1)


def offsets_random(filter_size: int, num_heads: int, generator: torch.Generator) -> Tensor:
    """Return an offset (dy, dx) per head, uniform over the filter and with replacement, int64 (H, 2)."""
    return offsets_of(torch.randint(filter_size**2, (num_heads,), generator=generator), filter_size)


def offsets_ordered(num_heads: int) -> Tensor:
    """Return the fixed 3x3 offsets of arXiv 2505.19985, repeating after nine heads, int64 (H, 2)."""
    return offsets_of(torch.tensor([ORDER[h % 9] for h in range(num_heads)]), 3)


def targets(offsets: Tensor, height: int, width: int) -> Tensor:
    """Return the maps that offsets (..., 2) ask for, float32 (..., N, N), zero padded.

    Entry (i, j) is 1 where token j lies at offset (dy, dx) from token i; a row whose impulse leaves the
    grid is zero.
    """
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    place = torch.stack([y.flatten(), x.flatten()], dim=1)  # N 2
    difference = place[None, :] - place[:, None]  # N N 2: key minus query
    return (difference == offsets[..., None, None, :]).all(-1).float()


def attention_map(position: Tensor, q: Tensor, k: Tensor, logit_scale: float) -> Tensor:
    """Return softmax(logit_scale P Q K P^T), (..., H, N, N), of P (N, D), Q (..., D, R), K (..., R, D).

    P may also have the leading axes of Q and K.
    """
    return (logit_scale * ((position @ q) @ (k @ position.mT))).softmax(-1)


def fit_report(attention: Tensor, target: Tensor) -> dict[str, float]:
    """Return how well maps (..., N, N) meet their targets.

    `mse` over all entries; `hit_rate`, the fraction of rows with a target whose largest entry is the target;
    `target_mass`, the mean attention on the target in these rows.
    """
    valid = target.sum(-1) > 0  # ... N
    hit = attention.argmax(-1) == target.argmax(-1)
    mass = (attention * target).sum(-1)
    return {
        "mse": (attention - target).square().mean().item(),
        "hit_rate": hit[valid].float().mean().item(),
        "target_mass": mass[valid].mean().item(),
    }


def query_key_input(position: Tensor, pos_at: str) -> Tensor:
    """Return what a fit uses as the input of queries and keys, (N, D).

    A code blended into the Q/K input enters as it is. One that is added to the tokens reaches queries and
    keys through a LayerNorm, so it is normalised (without gain), as in arXiv 2505.19985.
    """
    return position if pos_at == "qk" else F.layer_norm(position, position.shape[-1:])


def initial(draw: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """Return the start of the Adam fit, uniform on +-(R H)^-1/2, of a draw that is uniform on [0, 1)."""
    return (2 * draw - 1) * (head_dim * num_heads) ** -0.5


def normalise(weights: Tensor, length: Tensor) -> None:
    """Give Q[h, :, r] and K[h, :, d] the norm `length`, in place.

    `weights` (2, ..., H, R, D) stacks Q^T and K.
    The first is a norm over the D inputs, the second over the R head dimensions, as published.
    """
    weights[0] *= length / weights[0].norm(dim=-1, keepdim=True)
    weights[1] *= length / weights[1].norm(dim=-2, keepdim=True)


def gradient(weights: Tensor, position: Tensor, target: Tensor, logit_scale: float) -> tuple[Tensor, Tensor]:
    """Return the loss (...) and its gradient (2, ..., H, R, D) with respect to `weights` = stack(Q^T, K).

    The loss is the mean over H, N, N of (map - target)^2; P is (N, D) or (..., 1, N, D), the target
    (..., H, N, N).
    """
    left, right = (weights @ position.mT).unbind(0)  # ... H R N: one product for Q and K of all heads
    attention = torch.matmul(left.mT, right).mul_(logit_scale).softmax(-1)  # ... H N N
    error = attention - target
    loss = error.square().mean(dim=(-3, -2, -1))
    error.mul_(attention)  # through the softmax: A * E - A * sum(A * E) per row
    error.addcmul_(attention, error.sum(-1, keepdim=True), value=-1)
    error.mul_(2 * logit_scale / target.shape[-3:].numel())
    return loss, torch.stack([right @ error.mT, left @ error]) @ position


def fit_adam_from(
    position: Tensor,
    target: Tensor,
    q: Tensor,
    k: Tensor,
    logit_scale: float,
    steps: int,
    lr: float,
    norm_every: int,
    on_step: Callable[[int, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit given Q (..., H, D, R) and K (..., H, R, D) to `target` (..., H, N, N) by Adam.

    Before the iterations 0, norm_every, 2 norm_every, ... Q[h, :, r] and K[h, :, d] are rescaled to the mean
    norm c of the first Q[h, :, r] of their layer (0: never). Returns Q, K and the losses (steps, ...), each
    read before its step. `on_step(i, loss)` is called with every one. Source: arXiv 2401.12511.
    """
    length = q.norm(dim=-2).mean(dim=(-2, -1))[..., None, None, None]  # c: ... 1 1 1
    weights = torch.stack([q.mT, k])  # 2 ... H R D: one tensor, as Adam acts entry by entry
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    losses = []
    for i in range(steps):
        if norm_every and i % norm_every == 0:
            normalise(weights, length)
        loss, grad = gradient(weights, position, target, logit_scale)
        losses.append(loss)
        if on_step is not None:
            on_step(i, loss)
        mean.lerp_(grad, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        root = (square / (1 - BETAS[1] ** (i + 1))).sqrt_().add_(EPS)
        weights.addcdiv_(mean, root, value=-lr / (1 - BETAS[0] ** (i + 1)))
    return weights[0].mT.contiguous(), weights[1], torch.stack(losses)


def fit_adam(
    position: Tensor,
    target: Tensor,
    head_dim: int,
    logit_scale: float,
    steps: int,
    lr: float,
    norm_every: int,
    generator: torch.Generator,
    on_step: Callable[[int, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw Q and K and fit them to `target` (..., H, N, N); see `fit_adam_from` and `initial`.

    `position`, (N, D) or (..., 1, N, D), is the input of queries and keys. Returns Q (..., H, D, R),
    K (..., H, R, D), losses.
    """
    heads, dim = target.shape[:-2], position.shape[-1]
    q = initial(torch.rand(*heads, dim, head_dim, generator=generator), heads[-1], head_dim)
    k = initial(torch.rand(*heads, head_dim, dim, generator=generator), heads[-1], head_dim)
    return fit_adam_from(position, target, q, k, logit_scale, steps, lr, norm_every, on_step)


def pseudo_inverse(position: Tensor, rank: int) -> Tensor:
    """Return the pseudo-inverse (D, N) of P (N, D) kept to its `rank` largest singular values, float64.

    Singular values that are zero to working precision of P are left out, too: a sine-cosine code has far
    fewer than D independent columns.
    """
    u, s, vt = torch.linalg.svd(position.double(), full_matrices=False)
    rank = min(rank, int((s > s[0] * max(position.shape) * torch.finfo(position.dtype).eps).sum()))
    return (vt[:rank].T / s[:rank]) @ u[:, :rank].T


def closed_form(position: Tensor, logits: Tensor, head_dim: int, norm: float) -> tuple[Tensor, Tensor]:
    """Return Q (..., D, R), K (..., R, D), each of Frobenius norm `norm`, with Q K nearest to P^+ G P^+T.

    Nearest up to a factor, among products of rank R.
    `logits` (..., N, N) are the wanted logits G, `position` (N, D) the input of queries and keys. Computed in
    float64, returned in the type of `position`. Source: arXiv 2505.19985, square-root split of the SVD.
    """
    inverse = pseudo_inverse(position, head_dim)  # D N
    u, s, vt = torch.linalg.svd(inverse @ logits.double() @ inverse.T)
    root = s[..., :head_dim].sqrt()
    q, k = u[..., :head_dim] * root[..., None, :], root[..., :, None] * vt[..., :head_dim, :]
    q = norm * q / q.norm(dim=(-2, -1), keepdim=True)
    k = norm * k / k.norm(dim=(-2, -1), keepdim=True)
    return q.to(position.dtype), k.to(position.dtype)


def wanted_logits(target: Tensor, draw: Tensor, signal: float, noise: float) -> Tensor:
    """Return `signal` where the target is 1 and `noise` times the draw elsewhere, all (..., N, N)."""
    return torch.where(target > 0, signal, noise * draw)


def fit_svd(
    position: Tensor,
    target: Tensor,
    head_dim: int,
    signal: float,
    noise: float,
    norm: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return Q (..., D, R) and K (..., R, D) for `target` (..., N, N) in closed form.

    Off the target the wanted logits are `noise` times a normal draw of std 0.6 cut at +-2; only the ratio
    signal : noise matters. `norm` is the Frobenius norm of each head's Q and of its K.
    """
    draw = nn.init.trunc_normal_(torch.empty(target.shape), std=0.6, generator=generator)
    return closed_form(position, wanted_logits(target, draw, signal, noise), head_dim, norm)


@torch.no_grad()
def write_qk(attention: Attention, q: Tensor, k: Tensor) -> None:
    """Write Q (H, D, R) and K (H, R, D) into the fused weight; values, output map and biases stay.

    Row h R + r of `qkv` (or `qk`) becomes Q[h, :, r], row D + h R + r becomes K[h, r, :]. Free queries and
    keys become Q and K themselves, with N in the place of D.
    """
    if attention.q is not None and attention.k is not None:
        attention.q.copy_(q)
        attention.k.copy_(k)
        return
    linear = attention.qkv if attention.qkv is not None else attention.qk
    assert linear is not None
    linear.weight[: 2 * q.shape[1]] = torch.cat([q.mT.flatten(0, 1), k.flatten(0, 1)])
