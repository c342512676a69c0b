"""Spatial filters of a ConvMixer (arXiv 2401.12511): learned, random, softmax, impulse, box, gauss, perm.

Each kind has a mean squared norm over the filters of a layer: 1/3 in that paper, the norm of filters uniform
on +-1/k in expectation; 1/k in arXiv 2404.01139.
"""

import torch
from torch import Tensor

from attnprior import config, randomness
from attnprior.models.convmixer import MATRICES, ConvMixer
from attnprior.models.weights import init_weights


def uniform(draw: Tensor) -> Tensor:
    """Return filters (H, 1, k, k), uniform on +-1/k, of a draw that is uniform on [0, 1)."""
    return (2 * draw - 1) / draw.shape[-1]


def boxes(index: Tensor, kernel: int, squared_norm: float) -> Tensor:
    """Return filters (H, 1, k, k) that are equal at the b flat places `index` (H, b) and 0 elsewhere.

    One place is an impulse.
    """
    heads, entries = index.shape
    flat = torch.zeros(heads, kernel**2).scatter(1, index, (squared_norm / entries) ** 0.5)
    return flat.view(heads, 1, kernel, kernel)


def bells(centre: Tensor, kernel: int, variance: float, squared_norm: float) -> Tensor:
    """Return filters (H, 1, k, k) exp(-d^2 / (2 variance)), d the distance to the `centre` (H, 2).

    One common factor gives them the mean squared norm. `variance` is no standard deviation.
    """
    place = torch.arange(kernel)
    y, x = (place[None, :] - centre[:, i, None] for i in (0, 1))  # H k
    filters = torch.exp(-(y[:, :, None] ** 2 + x[:, None, :] ** 2) / (2 * variance))  # H k k
    filters = filters * (squared_norm / filters.square().sum((1, 2)).mean()).sqrt()
    return filters[:, None]


def matrices(column: Tensor, squared_norm: float) -> Tensor:
    """Return matrices (H, N, N) whose row i has one entry that is not 0, at `column` (H, N)."""
    return torch.nn.functional.one_hot(column, column.shape[1]).float() * squared_norm**0.5


def filter_matrix(filters: Tensor, grid: int) -> Tensor:
    """Return the matrices (H, N, N) that act on grid x grid patches as filters (H, 1, k, k) do."""
    pixels = torch.eye(grid**2).view(grid**2, 1, grid, grid)  # one image per patch
    acted = torch.nn.functional.conv2d(pixels, filters, padding=filters.shape[-1] // 2)  # N H y x
    return acted.flatten(2).permute(1, 2, 0)


def draw_filters(init: config.Init, model: config.ConvMixer, generator: torch.Generator) -> Tensor:
    """Return the distinct filters of a layer, (H, 1, k, k), or (H, N, N) for perm and fullperm."""
    kernel, n, heads = model.kernel_size, model.num_patches, init.heads or 0
    norm = init.squared_norm or 0.0
    places = kernel**2
    if init.kind in ("learned", "random", "softmax"):
        return uniform(torch.rand(heads, 1, kernel, kernel, generator=generator))
    if init.kind == "impulse":
        return boxes(torch.randint(places, (heads, 1), generator=generator), kernel, norm)
    if init.kind == "box":
        order = torch.rand(heads, places, generator=generator).argsort(dim=1, stable=True)
        return boxes(order[:, : init.entries], kernel, norm)
    if init.kind == "gauss":
        assert init.variance is not None
        centre = torch.randint(kernel, (heads, 2), generator=generator)
        return bells(centre, kernel, init.variance, norm)
    assert init.kind in MATRICES
    if init.kind == "perm":
        return matrices(torch.randint(n, (heads, n), generator=generator), norm)
    return matrices(torch.rand(heads, n, generator=generator).argsort(dim=1, stable=True), norm)


def assign(heads: int, channels: int, generator: torch.Generator) -> Tensor:
    """Return the filter of each channel, int64 (C,): a permutation if there are as many, else drawn."""
    if heads == channels:
        return torch.randperm(channels, generator=generator)
    return torch.randint(heads, (channels,), generator=generator)


@torch.no_grad()
def build_convmixer(model: config.ConvMixer, init: config.Init, seed: int) -> ConvMixer:
    """Return a ConvMixer; torch's global random state is left as it was.

    Layer l draws assignment, bias (uniform on +-1/k) and filters from the stream (seed, "filters", l);
    all else has PyTorch's defaults, drawn from (seed, "init"), the same for every kind of filters.
    """
    assert init.kind is not None and init.heads is not None
    with torch.random.fork_rng(devices=[]):  # constructors draw, too
        network = ConvMixer(model, init.kind, init.heads)
    init_weights(network, "torch", randomness.generator(seed, "init"))
    for index, layer in enumerate(network.spatial()):
        generator = randomness.generator(seed, "filters", index)
        layer.choice.copy_(assign(init.heads, model.embed_dim, generator))
        layer.bias.copy_((2 * torch.rand(model.embed_dim, generator=generator) - 1) / model.kernel_size)
        layer.weight.copy_(draw_filters(init, model, generator))
    return network
