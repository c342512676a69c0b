"""Learning-rate schedules, and the line that a job logs of them."""

import math

from attnprior.recipes import Recipe


def rate(recipe: Recipe, epoch: int, step: int, per_epoch: int) -> float:
    """Return the rate of the optimizer step `step` (from 0) of `per_epoch` in `epoch` (from 0).

    Schedules take the epoch with the share of it that is done, or with `per: epoch` without; the
    triangle takes that after the step, as its program does.
    """
    if recipe.per == "epoch":
        return learning_rate(recipe, epoch)
    return learning_rate(recipe, epoch + (step + (recipe.schedule == "triangular")) / per_epoch)


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Return the rate at the fractional `epoch`; E epochs in all, w of warm-up from `warmup_lr` on.

    cosine: linear warm-up, then half a cosine to `min_lr`: lr(e) = warmup_lr + (lr - warmup_lr) e / w for
    e < w, else min + (lr - min)/2 (1 + cos(pi (e - w) / (E - w))). Source: arXiv 2111.06377, appendix A.1.
    cosine_whole: half a cosine over the whole run, the warm-up in place of its beginning (timm).
    cosine_capped: lr times the smaller of (e + 1) / w and (1 + cos(pi e / E))/2 (IcarusWizard/MAE).
    constant: lr after the warm-up.
    triangular: linear from 0 to lr at 2/5 of the epochs, to lr / 20 at 4/5, to 0 (locuslab's ConvMixer).
    """
    lr, end = recipe.lr, recipe.epochs
    if recipe.schedule == "triangular":
        peak, knee = 0.4 * end, 0.8 * end
        if epoch <= peak:
            return lr * epoch / peak
        if epoch <= knee:
            return lr + (lr / 20 - lr) * (epoch - peak) / (knee - peak)
        return lr / 20 * max(end - epoch, 0.0) / (end - knee)
    warm = recipe.warmup_epochs
    assert warm is not None
    if recipe.schedule == "cosine_capped":
        return lr * min((epoch + 1) / warm, (1 + math.cos(math.pi * epoch / end)) / 2)
    if epoch < warm:
        start = recipe.warmup_lr
        assert start is not None
        return start + (lr - start) * epoch / warm
    if recipe.schedule == "constant" or end <= warm:
        return lr
    low = recipe.min_lr
    assert low is not None
    share = epoch / end if recipe.schedule == "cosine_whole" else (epoch - warm) / (end - warm)
    return low + (lr - low) / 2 * (1 + math.cos(math.pi * min(share, 1.0)))


def describe(recipe: Recipe, images: int) -> str:
    """Return a line on the steps that a recipe makes of so many training images."""
    batch = recipe.batch_size * recipe.accumulate
    steps = -(-images // batch)
    shared = f" in {recipe.processes} processes" if (recipe.processes or 1) > 1 else ""
    shared += ", weights sharded" if recipe.sharded else ""
    return (
        f"{recipe.optimizer}: effective batch {batch} ({recipe.batch_size} x {recipe.accumulate}{shared}),"
        f" {images} images, {steps} steps an epoch, {steps * recipe.epochs} in all;"
        f" peak rate {recipe.lr:g}, {recipe.schedule}"
    )
