"""No key of a recipe is ignored: another value of any gives other weights."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnprior.config import Transfer, build
from attnprior.data.augment import training_images
from attnprior.models.vit import build_vit
from attnprior.recipe_keys import CONDITIONAL, FIXED
from attnprior.recipes import Recipe
from attnprior.train.engine import train
from attnprior.train.supervised import Network, Supervised
from tests.train.small import TINY, NoCheckpoint

JITTER = {"brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1}
ERASING = {"probability": 0.9, "scale": [0.1, 0.3], "ratio": [0.5, 2.0], "value": "noise"}
TIMM = {
    **{"style": "timm", "ops": 2, "magnitude": 7.0, "std": 0.5, "increasing": True},
    **{"interpolation": "bilinear", "before_crop": False},
}
AUGMENT = {
    **{"crop": "padded", "padding": 1, "flip": 0.5, "randaugment": TIMM, "color_jitter": JITTER},
    **{"erasing": ERASING, "mixup": 0.8, "cutmix": 1.0, "mix_probability": 0.8, "mix_switch": 0.5},
}
ADAMW = {
    **{"optimizer": "adamw", "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.05, "decay": "matrices"},
    **{
        "lr": 0.01,
        "schedule": "cosine",
        "per": "step",
        "min_lr": 0.001,
        "warmup_epochs": 1,
        "warmup_lr": 0.002,
    },
    **{"epochs": 2, "batch_size": 4, "accumulate": 1, "layer_decay": 1.0, "ema": 0.0, "grad_clip": 1.0},
    **{"label_smoothing": 0.1, "drop_path": 0.1, "augment": AUGMENT},
}


def changed(recipe, *changes, without=()):
    found = copy.deepcopy(recipe)
    for key, value in changes:
        *parents, last = key.split(".")
        node = found
        for part in parents:
            node = node[part]
        node[last] = value
    for key in without:
        found.pop(key)
    return found


LARS = changed(ADAMW, ("optimizer", "lars"), ("momentum", 0.9), ("trust", 0.01), without=("betas", "eps"))
RESIZED = changed(ADAMW, ("augment.crop", "resized"))
RESIZED["augment"] |= {"scale": [0.3, 0.8], "ratio": [0.75, 1.5], "interpolation": "bilinear"}
del RESIZED["augment"]["padding"]
PLAIN_AUGMENT = AUGMENT | {"randaugment": None, "color_jitter": None, "erasing": None}
CASES = [
    (ADAMW, "betas", [0.8, 0.99]),
    (ADAMW, "eps", 1e-3),
    (LARS, "momentum", 0.5),
    (LARS, "trust", 0.02),
    (ADAMW, "weight_decay", 0.2),
    (ADAMW, "decay", "all"),
    (ADAMW, "lr", 0.02),
    (ADAMW, "per", "epoch"),
    (ADAMW, "min_lr", 0.002),
    (ADAMW, "warmup_epochs", 0.5),
    (ADAMW, "warmup_lr", 0.003),
    (ADAMW, "epochs", 3),
    (ADAMW, "batch_size", 5),
    (ADAMW, "layer_decay", 0.75),
    (ADAMW, "ema", 0.5),
    (ADAMW, "grad_clip", 0.5),
    (ADAMW, "label_smoothing", 0.2),
    (ADAMW, "drop_path", 0.4),
    (ADAMW, "augment.padding", 2),
    (ADAMW, "augment.flip", 0.0),
    (ADAMW, "augment.randaugment", None),
    (ADAMW, "augment.color_jitter", None),
    (ADAMW, "augment.erasing", None),
    (ADAMW, "augment.mixup", 0.3),
    (ADAMW, "augment.cutmix", 0.3),
    (ADAMW, "augment.mix_probability", 0.3),
    (ADAMW, "augment.mix_switch", 0.2),
    (RESIZED, "augment.scale", [0.3, 0.6]),
    (RESIZED, "augment.ratio", [0.75, 1.2]),
    (RESIZED, "augment.interpolation", "bicubic"),
    (ADAMW, "augment.randaugment.ops", 1),
    (ADAMW, "augment.randaugment.magnitude", 4.0),
    (ADAMW, "augment.randaugment.std", 2.0),
    (ADAMW, "augment.randaugment.increasing", False),
    (ADAMW, "augment.randaugment.interpolation", "bicubic"),
    (ADAMW, "augment.randaugment.before_crop", True),
    *((ADAMW, f"augment.color_jitter.{k}", 0.05) for k in JITTER),
    (ADAMW, "augment.erasing.probability", 0.4),
    (ADAMW, "augment.erasing.scale", [0.1, 0.5]),
    (ADAMW, "augment.erasing.ratio", [0.5, 4.0]),
    (ADAMW, "augment.erasing.value", "zero"),
]
# Keys that decide which others there are: (key, a recipe, another one).
CHOICES = [
    ("accumulate", ADAMW, changed(ADAMW, ("accumulate", 2), ("processes", 1))),
    ("optimizer", ADAMW, changed(ADAMW, ("optimizer", "adam"))),
    ("optimizer", LARS, changed(LARS, ("optimizer", "sgd"), without=("trust",))),
    ("schedule", ADAMW, changed(ADAMW, ("schedule", "cosine_whole"))),
    ("schedule", ADAMW, changed(ADAMW, ("schedule", "constant"), without=("min_lr",))),
    ("schedule", ADAMW, changed(ADAMW, ("schedule", "cosine_capped"), without=("min_lr", "warmup_lr"))),
    (
        "schedule",
        ADAMW,
        changed(ADAMW, ("schedule", "triangular"), without=("min_lr", "warmup_lr", "warmup_epochs")),
    ),
    ("augment.crop", ADAMW, RESIZED),
    (
        "augment.randaugment.style",
        ADAMW,
        changed(
            ADAMW,
            ("augment.randaugment", {"style": "torchvision", "ops": 2, "magnitude": 7, "before_crop": False}),
        ),
    ),
    ("augment", ADAMW, changed(ADAMW, ("augment", PLAIN_AUGMENT))),
]


def weights(settings):
    recipe = build(Recipe, settings, "recipes.test")
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 3, 8, 8), generator=rng, dtype=torch.uint8)
    labels = torch.arange(12) % 3
    student = build_vit(replace(TINY, in_chans=3), 0)
    net = Network(student, Transfer("none"))
    given = training_images(images, [0.5] * 3, [0.25] * 3, recipe.augment)
    train(student, Supervised(net, recipe, 0), given, labels, recipe, 0, NoCheckpoint(Path()))
    return torch.cat([p.detach().flatten() for p in student.parameters()])


BEFORE: dict[int, torch.Tensor] = {}


def differs(first, second):
    if id(first) not in BEFORE:
        BEFORE[id(first)] = weights(first)
    return not torch.equal(BEFORE[id(first)], weights(second))


@pytest.mark.parametrize(("recipe", "key", "value"), CASES, ids=[f"{k}-{v}" for _, k, v in CASES])
def test_another_value_gives_other_weights(recipe, key, value):
    assert differs(recipe, changed(recipe, (key, value)))


@pytest.mark.parametrize(("key", "first", "second"), CHOICES, ids=[str(i) for i in range(len(CHOICES))])
def test_another_choice_gives_other_weights(key, first, second):
    assert differs(first, second)


def test_every_key_of_a_recipe_is_tried():
    known = {prefix + key for prefix, keys in FIXED.items() for key in keys} | {k for k, _, _ in CONDITIONAL}
    # How processes share a training changes the order of sums alone: tests/stages/test_launch.py.
    assert {k for _, k, _ in CASES} | {k for k, _, _ in CHOICES} == known - {"processes", "sharded"}


def test_the_same_recipe_gives_the_same_weights():
    assert not differs(ADAMW, copy.deepcopy(ADAMW))
