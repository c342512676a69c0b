"""The training loop of every objective: MAE, supervised, copy and distillation."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnprior.config import Recipe
from attnprior.data.augment import Images
from attnprior.data.loader import batches, steps_per_epoch
from attnprior.errors import UserError
from attnprior.ranks import leads, size
from attnprior.train import parallel, sharding, stopping
from attnprior.train.checkpoint import Checkpoint
from attnprior.train.ema import Average
from attnprior.train.flops import count_flops
from attnprior.train.optim import Optimizer
from attnprior.train.schedule import rate

CHECK_EVERY = 20  # steps between two looks at a CUDA device, which each wait for it


@dataclass(frozen=True)
class Batch:
    images: Tensor  # B C H W, augmented and normalised
    labels: Tensor  # B
    epoch: int
    step: int  # number of the batch within the epoch


class Objective(Protocol):
    """Returns named scalars of a batch; "loss" is minimised and all are averaged for the history."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]: ...


def train(
    model: nn.Module,
    objective: Objective,
    images: Images,
    labels: Tensor,
    recipe: Recipe,
    seed: int,
    checkpoint: Checkpoint,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    on_row: Callable[[dict], None] | None = None,
) -> list[dict[str, Any]]:
    """Train `model` in place and return the history, one row per epoch.

    A row has epoch (from 1), step (optimizer steps so far), lr (of the last step), the image-weighted
    means of what `objective` returns, and what `evaluate` returns after the epoch. A step takes the
    gradient of `accumulate` batches, averaged over their images, which several processes may share
    (`attnprior.train.parallel`; only process 0 evaluates). With `ema` it is the running mean of the weights
    that is evaluated and left in `model`. The state goes to `checkpoint` after a step or an epoch when it is
    due, and comes from there if an earlier attempt left one; every draw is a function of (seed, epoch,
    batch), so both give the same bytes. With `sharded` the processes share the weights, too
    (`attnprior.train.sharding`), and process 0 alone has them in the end.

    Raises:
        UserError: the loss or a gradient is not finite; parameters are as before that step.
        Stopped: a signal or the time limit ends the attempt after a step; its state is saved.
    """
    parallel.copied(list(model.state_dict().values()))
    rest = (model, objective, images, labels, recipe, seed, checkpoint, evaluate, on_row)
    if not recipe.sharded:
        return _train(*rest)
    with sharding.spread(model):
        return _train(*rest)


def _train(
    model: nn.Module,
    objective: Objective,
    images: Images,
    labels: Tensor,
    recipe: Recipe,
    seed: int,
    checkpoint: Checkpoint,
    evaluate: Callable[[], dict[str, float]] | None,
    on_row: Callable[[dict], None] | None,
) -> list[dict[str, Any]]:
    optimizer = Optimizer(model.named_parameters(), recipe)
    average = Average(model, recipe.ema) if recipe.ema > 0 else None
    rows: list[dict[str, Any]] = []
    # Of the epoch under way: steps done, sums of the values and their names.
    begin: int = 0
    total: Tensor | float = 0.0
    names: list[str] = []
    own: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    own |= {"ema": average.state_dict()} if average is not None else {}  # all that a step changes
    sharding.restore(own, checkpoint.state)
    if checkpoint.state is not None:
        rows = checkpoint.state["rows"]
        begin, total, names = (checkpoint.state[k] for k in ("step", "total", "names"))
        checkpoint.state = None
    rows, begin, total, names = parallel.told((rows, begin, total, names))
    total = total.to(labels.device) if isinstance(total, Tensor) else total
    parameters = [p for _, p in optimizer.named]
    guard = Guard(model, optimizer, objective, checkpoint)
    per_epoch = steps_per_epoch(len(images), recipe.batch_size * recipe.accumulate)

    def save(epoch: int, step: int) -> None:
        done = {"rows": rows, "step": step, "total": total, "names": names}
        checkpoint.save(epoch, {**sharding.gathered(own), **done}, step)

    with stopping.watching(lambda: checkpoint.slowest_save) as watch:
        for epoch in range(len(rows), recipe.epochs):
            model.train()
            reason: str | None = None
            parts = batches(len(images), recipe.batch_size, seed, epoch, labels.device)
            for step in range(begin, per_epoch):
                first = step * recipe.accumulate
                group = parts[first : first + recipe.accumulate]
                lr = rate(recipe, epoch, step, per_epoch)
                count = sum(len(i) for i in group)
                seen: Tensor | float = 0.0
                for number, index, counts in parallel.dealt(group):
                    at = first + number
                    batch = Batch(images.batch(index, seed, epoch, at), labels[index], epoch, at)
                    values = objective(batch)
                    share = counts * len(index) / count
                    (values["loss"] if share == 1 else values["loss"] * share).backward()
                    seen = seen + torch.stack([v.detach() for v in values.values()]) * (counts * len(index))
                names = list(values)
                last = step == per_epoch - 1
                due = not last and checkpoint.due(within=True)
                seen, reason, due = parallel.summed(parameters, seen, watch.wanted(), due)  # type: ignore[arg-type]
                total = total + seen
                loss = values["loss"] if size() == 1 else seen[names.index("loss")] / count
                norm = optimizer.gradient_norm()
                look = (batch, loss, norm, epoch * per_epoch + step, lr)
                skip = guard.look(*look, last)
                if recipe.grad_clip > 0:
                    optimizer.scale_gradients(torch.clamp(recipe.grad_clip / (norm + 1e-6), max=1.0))
                optimizer.step(lr, skip)
                optimizer.zero_grad()
                if average is not None:
                    average.update()
                if reason is not None or due:
                    guard.look(*look, True)
                    save(epoch, step + 1)
                if reason is not None:
                    raise _stopped(reason, epoch + 1, step + 1)
            means = (total / len(images)).tolist()  # type: ignore[union-attr]
            row = {
                "epoch": epoch + 1,
                "step": (epoch + 1) * per_epoch,
                "lr": rate(recipe, epoch, per_epoch - 1, per_epoch),
                **dict(zip(names, means, strict=True)),
            }
            if evaluate is not None and (leads() or recipe.sharded):
                model.eval()
                with average.applied() if average is not None else nullcontext(), sharding.together(model):
                    try:
                        row |= evaluate() if leads() else {}
                    except stopping.Asked as e:
                        reason = str(e)
            reason = parallel.told(reason)
            if reason is not None:
                save(epoch, per_epoch)  # it is evaluated by the next attempt
                raise _stopped(reason, epoch + 1, per_epoch)
            rows.append(row)
            begin, total, names = 0, 0.0, []
            if on_row is not None:
                on_row(row)
            reason, due = parallel.told((watch.wanted(), checkpoint.due(last=epoch + 1 == recipe.epochs)))
            if reason is not None or due:
                save(epoch + 1, 0)
            if reason is not None:
                raise _stopped(reason, epoch + 1, per_epoch)
    if average is not None:
        average.apply()
    model.eval()
    return rows


class Guard:
    """Stops training at a loss or gradient that is not finite.

    A CPU is asked at every step, for nothing waits there. A CUDA device is asked every CHECK_EVERY
    steps and at the end of an epoch, so before a checkpoint; until then a step with a bad gradient is
    left out on the device, which keeps the parameters for the diagnosis.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, objective: Objective, checkpoint: Checkpoint
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._objective, self._checkpoint = objective, checkpoint
        self._bad: Tensor | None = None

    def look(
        self, batch: Batch, loss: Tensor, norm: Tensor, step: int, lr: float, last: bool
    ) -> Tensor | None:
        """Check step number `step` and return the `skip` flag for the optimizer (CUDA only)."""
        if loss.device.type == "cpu":
            if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
                raise self._error(batch, loss, norm, step, lr)
            return None
        bad = ~(loss.detach().isfinite() & norm.isfinite())
        self._bad = bad if self._bad is None else self._bad | bad
        if (last or step % CHECK_EVERY == 0) and bool(self._bad):
            raise self._error(batch, loss, norm, step, lr)
        return self._bad.float()

    def _error(self, batch: Batch, loss: Tensor, norm: Tensor, step: int, lr: float) -> UserError:
        when = "" if loss.device.type == "cpu" else f" or up to {CHECK_EVERY} steps before"
        kept = (
            f"last good checkpoint kept: {self._checkpoint.path}"
            if self._checkpoint.path.exists()
            else "no checkpoint yet"
        )
        return UserError(
            f"training diverged at step {step}{when} (epoch {batch.epoch + 1}): loss {loss.item():.6g},"
            f" gradient norm {norm.item():.6g}, learning rate {lr:.6g},"
            f" first not finite: {self._first(batch)};"
            f" lower the recipe's lr, lengthen warmup_epochs or set grad_clip ({kept})"
        )

    def _first(self, batch: Batch) -> str:
        """Return the first layer of the forward pass, or else of the backward pass, that is not finite."""
        for name, parameter in self._model.named_parameters():
            if not _finite(parameter):
                return f"parameter {name}"
        # Before the forward pass: there processes differ, and of spread gradients each has a part.
        bad = [n for n, p in self._optimizer.named if p.grad is not None and not _finite(p.grad)]
        seen: list[str] = []

        def hook(name: str) -> Callable:
            def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
                tensors = output if isinstance(output, tuple) else (output,)
                if not all(t.isfinite().all() for t in tensors if isinstance(t, Tensor)):
                    seen.append(name)

            return note

        handles = [m.register_forward_hook(hook(n or "model")) for n, m in self._model.named_modules()]
        with torch.no_grad():
            self._objective(batch)
        for handle in handles:
            handle.remove()
        if seen:
            return f"output of {seen[0]}"
        return f"gradient of {bad[-1]}" if bad else "the loss"


def _stopped(reason: str, epoch: int, step: int) -> stopping.Stopped:
    parallel.told(None)  # the launcher ends all once one has ended: not before process 0 has saved
    return stopping.Stopped(reason, epoch, step)


def _finite(tensor: Tensor) -> bool:
    return bool(parallel.whole(tensor).isfinite().all())


def training_flops(objective: Objective, images: Images, labels: Tensor, recipe: Recipe, seed: int) -> float:
    """Return the operations of a whole training: those of the first batch, per image, times all images."""
    index = batches(len(images), recipe.batch_size, seed, 0, labels.device)[0]
    batch = Batch(images.batch(index, seed, 0, 0), labels[index], 0, 0)
    return count_flops(lambda: objective(batch)) / len(index) * len(images) * recipe.epochs
