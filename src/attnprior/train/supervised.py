"""Training a student with labels: alone, with a teacher's maps copied, or distilled from them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnprior.config import Recipe, Transfer
from attnprior.data.mixing import mixed
from attnprior.data.streaming import Images
from attnprior.models.copying import Copied
from attnprior.models.vit import ViT, drop_path_masks
from attnprior.randomness import generator
from attnprior.selection import weight_at
from attnprior.train import stopping
from attnprior.train.engine import Batch
from attnprior.transfer import (
    chosen,
    copied_layers,
    distil_loss,
    mean_square_loss,
    pairs_of,
    parts_of,
    taught,
    teacher_kl,
)

BATCH = 256  # images of a forward pass at evaluation


@dataclass
class Network:
    """A student with what it needs to predict: in `copy` its teacher, whose maps it uses."""

    student: ViT
    transfer: Transfer
    teacher: ViT | None = None

    def to(self, device: torch.device) -> "Network":
        """Move all weights to `device`."""
        self.student.to(device)
        if self.teacher is not None:
            self.teacher.to(device)
        return self

    def copied(self, images: Tensor, other: Tensor | None, drop: Tensor | None) -> list[Copied | None] | None:
        """Return what is copied of the teacher for `images`, of image `other[i]` for image i; else None."""
        if self.transfer.method != "copy":
            return None
        assert self.teacher is not None
        given = taught(self.teacher, images, self.transfer, self.student.config, other, drop)
        return copied_layers(given, self.transfer, self.student.config, self.teacher)

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) of images (B, C, H, W) at evaluation, without gradient.

        The control `other_image` gives each image what the next one of the batch has; `mean_images`
        averages the maps of the batch.
        """
        with torch.inference_mode():
            other = torch.arange(len(images), device=images.device).roll(-1)
            copied = self.copied(images, other if self.transfer.maps == "other_image" else None, None)
            return self.student(images, copied=copied)[0]

    def predict(self, images: Images) -> Tensor:
        """Return the logits (M, classes) of images (M, C, H, W), in batches of nearly equal size."""
        found = []
        for part in images.tensor_split(-(-len(images) // BATCH)):
            found.append(self.logits(part))
            stopping.check()  # a training that evaluates may be asked to stop
        return torch.cat(found)


def derangement(count: int, rng: torch.Generator) -> Tensor:
    """Return a random permutation (count,) without fixed point: images lie on one random cycle.

    A batch of one image has none and keeps its own.
    """
    cycle = torch.randperm(count, generator=rng)
    other = torch.empty_like(cycle)
    other[cycle] = cycle.roll(-1)
    return other


def distilled(
    network: Network,
    images: Tensor,
    recorded: dict[str, list[Tensor]],
    other: Tensor | None,
    drop: Tensor | None,
) -> dict[str, Tensor]:
    """Return transfer_loss, and for maps transfer_kl, of what a student recorded of images (B, C, H, W)."""
    student, teacher, transfer = network.student, network.teacher, network.transfer
    assert teacher is not None
    given = taught(teacher, images, transfer, student.config, other, drop)
    layers = [s for s, _ in pairs_of(transfer, student.config, teacher.config)]
    own = chosen(recorded, layers, transfer, student.config)
    if transfer.what != "map":
        return {"transfer_loss": mean_square_loss(own, given)}
    qk, theirs = (list(zip(parts["q"], parts["k"], strict=True)) for parts in (own, given))
    rest = (student.logit_scale, teacher.logit_scale, transfer.maps)
    return {"transfer_loss": distil_loss(qk, theirs, *rest), "transfer_kl": teacher_kl(qk, theirs, *rest)}


class Supervised:
    """The objective of a student: cross-entropy, plus `weight` times the loss of what is distilled.

    Returns loss, task_loss, where something is distilled transfer_loss and for maps transfer_kl (both
    summed over layers, not weighted), and train_top1 (of an image's own label, mixed or not). Teacher and
    student share input and drop-path masks (arXiv 2411.09702).
    """

    def __init__(self, network: Network, recipe: Recipe, seed: int) -> None:
        self._network, self._recipe, self._seed = network, recipe, seed

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        network, transfer, seed = self._network, self._network.transfer, self._seed
        student, at = network.student, (batch.epoch, batch.step)
        count, device = len(batch.labels), batch.labels.device
        classes, augment = student.config.num_classes, self._recipe.augment
        images, targets = mixed(batch.images, batch.labels, classes, augment, seed, *at)
        batch = replace(batch, images=images)  # the teacher sees the mixed images, too
        drop = other = None
        if self._recipe.drop_path > 0:
            rng = generator(seed, "drop_path", *at)
            drop = drop_path_masks(student.config.depth, self._recipe.drop_path, count, rng).to(device)
        if transfer.maps == "other_image":
            other = derangement(count, generator(seed, "other_image", *at)).to(device)
        distils = transfer.method in ("distil", "distil_features")
        logits, recorded = student(
            batch.images,
            record=parts_of(transfer) if distils else (),
            copied=network.copied(batch.images, other, drop),
            drop_masks=drop,
        )
        task = F.cross_entropy(logits, targets, label_smoothing=self._recipe.label_smoothing)
        values: dict[str, Tensor] = {"loss": task, "task_loss": task}
        if distils:
            assert transfer.weight is not None
            values |= distilled(network, batch.images, recorded, other, drop)
            weight = weight_at(transfer.weight, batch.epoch, self._recipe.epochs)
            values["loss"] = task + weight * values["transfer_loss"]
        values["train_top1"] = (logits.detach().argmax(1) == batch.labels).float().mean()
        return values


def measure(logits: Tensor, labels: Tensor, prefix: str) -> dict[str, Any]:
    """Return mean cross-entropy and accuracy of logits (M, classes), named after `prefix`."""
    return {
        f"{prefix}_loss": F.cross_entropy(logits, labels).item(),
        f"{prefix}_top1": (logits.argmax(1) == labels).float().mean().item(),
    }
