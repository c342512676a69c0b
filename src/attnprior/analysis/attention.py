"""Attention maps that follow from weights alone, in NumPy and float64.

Token i = y * width + x; rows of maps are queries, columns keys.
"""

import numpy as np

from attnprior.config import Model


def sincos2d(grid: int, dim: int, *, simple: bool) -> np.ndarray:
    """Return the code [sin x, cos x, sin y, cos y] of a square grid, (N, dim); see models/position.py."""
    quarter = dim // 4
    omega = 10000.0 ** -(np.arange(quarter) / (quarter - 1 if simple else quarter))
    y, x = np.divmod(np.arange(grid**2), grid)
    return np.concatenate([f(np.outer(c, omega)) for c in (x, y) for f in (np.sin, np.cos)], axis=1)


def position_code(model: Model) -> np.ndarray | None:
    """Return the model's constant code of its patches, (N, D); None where it has none or learns it.

    Free queries and keys have the identity (N, N) as their input.
    """
    if model.attention == "free":
        return np.eye(model.num_patches)
    if model.pos_embed == "identity":
        return np.eye(model.num_patches, model.embed_dim)
    if model.pos_embed in ("sincos2d", "sincos2d_simple"):
        return sincos2d(model.grid, model.embed_dim, simple=model.pos_embed == "sincos2d_simple")
    return None


def target_maps(offsets: np.ndarray, grid: int) -> np.ndarray:
    """Return the maps (H, N, N) that offsets (H, 2) = (dy, dx) ask for; rows that leave the grid are 0."""
    y, x = np.divmod(np.arange(grid**2), grid)
    dy, dx = y[None, :] - y[:, None], x[None, :] - x[:, None]  # N N: key minus query
    return np.stack([(dy == o[0]) & (dx == o[1]) for o in offsets]).astype(np.float64)


def heads_of(qkv: np.ndarray, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Q (H, D, R) and K (H, R, D) of a fused weight (2 or 3 D, D), rows q, k (and v), head-major."""
    dim = qkv.shape[1]
    q, k = qkv.astype(np.float64).reshape(-1, num_heads, dim // num_heads, dim)[:2]  # H R D
    return q.swapaxes(1, 2), k


def query_key_input(position: np.ndarray, model: Model) -> np.ndarray:
    """Return what a code (N, D) is as the input of queries and keys, float64; see init/impulse.py."""
    position = position.astype(np.float64)
    if model.pos_at == "qk":
        return position
    centred = position - position.mean(1, keepdims=True)
    return centred / np.sqrt(position.var(1, keepdims=True) + 1e-5)


def position_maps(position: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    """Return softmax(scale P Q K P^T), (H, N, N), of P (N, D), Q (H, D, R) and K (H, R, D)."""
    logits = scale * (position @ q.astype(np.float64)) @ (k.astype(np.float64) @ position.T)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def mass_on(maps: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the mean attention of each head (H,) on its target, over the rows (queries) that have one."""
    return (maps * target).sum((1, 2)) / np.maximum(target.sum((1, 2)), 1)
