"""Linear probe: what a linear classifier reads from a frozen encoder."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprior.config import Probe
from attnprior.data.datasets import TRAIN, VAL, Data
from attnprior.data.loader import normalise, part
from attnprior.data.streaming import Images, choose
from attnprior.models.vit import ViT

MEMORY = 10  # pairs of L-BFGS
BATCH = 256  # images of a forward pass


def pooled_features(encoder: ViT, images: Images, batch_size: int) -> Tensor:
    """Return the mean of the patch tokens after the final norm, (M, D), of images (M, C, H, W)."""
    with torch.inference_mode():
        parts = []
        for batch in images.split(batch_size):
            _, recorded = encoder(batch, record=("tokens",))
            tokens = encoder.norm(recorded["tokens"][-1])  # B T D
            parts.append(tokens[:, encoder.prefix :].mean(1))
    return torch.cat(parts)


def linear_probe(
    train: Tensor, train_labels: Tensor, val: Tensor, val_labels: Tensor, classes: int, settings: Probe
) -> float:
    """Return the accuracy on `val` (M, D) of softmax regression fitted to `train` (n, D).

    Features are standardised with the mean and deviation of `train`. The objective is the mean
    cross-entropy plus weight_decay / 2 times the squared norm of the weights (not of the bias),
    minimised by L-BFGS in double precision on the CPU.
    """
    train, val = train.double().cpu(), val.double().cpu()
    mean, std = train.mean(0), train.std(0, correction=0)
    scale = torch.where(std > 1e-12, std, torch.ones_like(std))  # a constant feature stays 0
    train, val = (train - mean) / scale, (val - mean) / scale
    labels = train_labels.cpu()
    dim = train.shape[1]

    def split(theta: Tensor) -> tuple[Tensor, Tensor]:
        return theta[: classes * dim].view(classes, dim), theta[classes * dim :]

    def objective(theta: Tensor) -> Tensor:
        weight, bias = split(theta)
        penalty = settings.weight_decay / 2 * weight.square().sum()
        return F.cross_entropy(F.linear(train, weight, bias), labels) + penalty

    theta = torch.zeros(classes * (dim + 1), dtype=torch.float64)
    weight, bias = split(lbfgs(objective, theta, settings.steps))
    return (F.linear(val, weight, bias).argmax(1) == val_labels.cpu()).double().mean().item()


def lbfgs(objective, start: Tensor, steps: int, tolerance: float = 1e-9) -> Tensor:
    """Return the minimiser of a convex `objective` of a vector by L-BFGS with backtracking.

    Stops after `steps` iterations or when no gradient component exceeds `tolerance`. Source: Nocedal
    and Wright, Numerical Optimization, algorithms 7.4 and 3.1. (`torch.optim.LBFGS` would import the
    compiler.)
    """

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        value = objective(x)
        return value.detach(), torch.autograd.grad(value, x)[0]

    x = start
    value, gradient = evaluate(x)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # s, y, 1 / (s y)
    for _ in range(steps):
        if gradient.abs().max() <= tolerance:
            break
        direction = -_inverse_hessian_product(gradient, pairs)
        length = 1.0 if pairs else min(1.0, 1.0 / gradient.norm().item())
        slope = gradient @ direction
        for _ in range(40):
            new = x + length * direction
            new_value, new_gradient = evaluate(new)
            if new_value <= value + 1e-4 * length * slope:
                break
            length /= 2
        else:
            break  # no decrease left in double precision
        s, y = new - x, new_gradient - gradient
        if s @ y > 1e-12 * y @ y:
            pairs = [*pairs, (s, y, 1 / (s @ y))][-MEMORY:]
        x, value, gradient = new, new_value, new_gradient
    return x


def _inverse_hessian_product(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    q, factors = gradient, []
    for s, y, rho in reversed(pairs):
        a = rho * (s @ q)
        q = q - a * y
        factors.append(a)
    if pairs:
        s, y, _ = pairs[-1]
        q = q * ((s @ y) / (y @ y))
    for (s, y, rho), a in zip(pairs, reversed(factors), strict=True):
        q = q + (a - rho * (y @ q)) * s
    return q


def probe_encoder(encoder: ViT, data: Data, chosen, settings: Probe, device: torch.device) -> float | None:
    """Return the validation accuracy of the probe fitted to the training images `chosen` (n,).

    None where the data set has no validation images. The test split is not read.
    """
    images, labels, _ = part(data, TRAIN, device)
    val, val_labels, _ = part(data, VAL, device)
    if not len(val):
        return None
    index = torch.from_numpy(chosen).to(device)
    train, val = (normalise(i, data.mean, data.std) for i in (choose(images, index), val))
    found = [pooled_features(encoder, i, BATCH) for i in (train, val)]
    return linear_probe(found[0], labels[index], found[1], val_labels, len(data.classes), settings)
