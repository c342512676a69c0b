"""A training small enough for tests: images with a learnable rule, a tiny ViT."""

from dataclasses import replace

import torch

from attnprior.config import Augment, Recipe, Transfer
from attnprior.data.augment import Shifted
from attnprior.models.mae import encoder_config
from attnprior.models.vit import build_vit
from attnprior.train.supervised import Network
from tests.oracle import MODEL

AUGMENT = Augment(
    crop="padded",
    padding=1,
    flip=0.0,
    randaugment=None,
    color_jitter=None,
    erasing=None,
    mixup=0.0,
    cutmix=0.0,
)
RECIPE = Recipe(
    optimizer="adamw",
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.05,
    decay="matrices",
    lr=0.01,
    schedule="cosine",
    per="step",
    min_lr=0.0,
    warmup_epochs=1,
    warmup_lr=0.0,
    epochs=3,
    batch_size=8,
    accumulate=1,
    layer_decay=1.0,
    ema=0.0,
    grad_clip=0.0,
    label_smoothing=0.0,
    drop_path=0.0,
    augment=AUGMENT,
)
TINY = replace(MODEL, patch_norm=False, embed_dim=16, depth=2, num_heads=2, num_classes=3)


class NoCheckpoint:
    """Stands in for a Checkpoint that is never due."""

    def __init__(self, path):
        self.path, self.state, self.epoch, self.saves = path / "state.pt", None, 0, []
        self.slowest_save = 0.0

    def due(self, *, within=False, last=False):
        return False


class MemoryCheckpoint(NoCheckpoint):
    """Keeps a deep copy of every state in memory."""

    def __init__(self, path, *, within=False):
        super().__init__(path)
        self._within = within  # after every step, too

    def due(self, *, within=False, last=False):
        return self._within or not within

    def save(self, epoch, state, step=0):
        import copy

        self.saves.append(copy.deepcopy(state))


def data(count=20, seed=0, shift=1):
    """Shifted uint8 images whose label is the brightest of three rows of patches."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 60, (count, 1, 8, 8), generator=rng, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * int(label) : 2 * int(label) + 2] += 150
    return Shifted(images, [0.3], [0.25], shift), labels


def network(method="none", seed=0, **settings):
    """A student, with a random frozen teacher where `method` needs one."""
    if method in ("copy", "distil"):
        settings = {"what": "map", "layers": {"first": 2}, "heads": "all", "maps": "same_image"} | settings
    transfer = Transfer(method, **settings)
    student = build_vit(TINY, seed)
    if method == "none":
        return Network(student, transfer)
    teacher = build_vit(encoder_config(TINY), seed + 100, stream="teacher_init").eval().requires_grad_(False)
    for block in teacher.blocks:  # sharper maps than those of fresh weights
        block.attn.qkv.weight[: 2 * TINY.embed_dim] *= 4
    return Network(student, transfer, teacher)
