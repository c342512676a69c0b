"""Overrides are merged key by key, and keys that lose their meaning go."""

import pytest

from attnprior.config import Student, build, recipe_of
from attnprior.errors import UserError
from attnprior.recipe_keys import check_recipe, merged
from attnprior.workflow.params import read_yaml
from tests.workflow.project import ROOT

RECIPES = read_yaml(ROOT / "params.yaml")["recipes"]


def made(recipe, overrides):
    values = {
        **{"model": "m", "init": {"source": "random"}, "transfer": {"method": "none"}, "recipe": recipe},
        **{"overrides": overrides, "labels": 10, "permute_labels": False, "freeze": "none"},
    }
    return recipe_of(build(Student, values, "students.s"), RECIPES[recipe], "students.s")


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_is_complete(name):
    check_recipe(RECIPES[name], f"recipes.{name}")
    assert made(name, {}).augment.crop in ("none", "padded", "resized")


def test_a_nested_override_leaves_its_neighbours():
    found = made("mae_finetune", {"lr": 0.1, "augment": {"flip": 0.0, "randaugment": {"std": 0.1}}})
    plain = made("mae_finetune", {})
    assert found.lr == 0.1 and found.augment.flip == 0.0 and found.augment.randaugment.std == 0.1
    assert found.augment.randaugment.ops == 2 and found.augment.scale == plain.augment.scale == (0.08, 1.0)
    assert RECIPES["mae_finetune"]["augment"]["flip"] == 0.5


def test_a_mapping_is_put_in_place_of_nothing_and_the_other_way_round():
    jitter = {"brightness": 0.1, "contrast": 0.1, "saturation": 0.1, "hue": 0.0}
    assert made("student", {"augment": {"color_jitter": jitter}}).augment.color_jitter.brightness == 0.1
    assert made("mae_finetune", {"augment": {"randaugment": None}}).augment.randaugment is None


def test_another_optimizer_or_crop_drops_the_keys_of_the_former():
    found = made("student", {"optimizer": "sgd", "momentum": 0.9})
    assert found.betas is None and found.eps is None and found.momentum == 0.9
    assert made("student", {"augment": {"crop": "none"}}).augment.padding is None
    assert made("student", {"warmup_epochs": 0}).warmup_lr is None
    assert made("student", {"weight_decay": 0.0}).decay is None


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"epoch": 1}, ["students.s.overrides.epoch", "'epochs'"]),
        ({"augment": {"crp": "none"}}, ["students.s.overrides.augment.crp", "'crop'"]),
        ({"momentum": 0.9}, ["students.s.overrides.momentum is not used here", "sgd or lars"]),
        (
            {"augment": {"crop": "resized"}},
            ["missing key students.s.overrides.augment.scale", "resized"],
        ),
        ({"accumulate": 2}, ["missing key students.s.overrides.processes, needed by accumulate above 1"]),
        ({"processes": 1}, ["students.s.overrides.processes is not used here", "accumulate above 1"]),
        (
            {"accumulate": 2, "processes": 3, "sharded": False},
            ["students.s.overrides.processes is 3, must be at most accumulate, 2"],
        ),
        (
            {"accumulate": 2, "processes": 2},
            ["missing key students.s.overrides.sharded, needed by processes above 1"],
        ),
        (
            {"accumulate": 2, "processes": 1, "sharded": False},
            ["students.s.overrides.sharded is not used here", "processes above 1"],
        ),
        (
            {
                **{"optimizer": "lars", "momentum": 0.9, "trust": 0.01},
                **{"accumulate": 2, "processes": 2, "sharded": True},
            },
            ["students.s.overrides.sharded is True, but lars needs the norms of whole weights;"],
        ),
        ({"augment": {"crop": "none", "padding": 1}}, ["students.s.overrides.augment.padding is not used"]),
        ({"optimizer": "lars", "momentum": 0.9}, ["missing key students.s.overrides.trust"]),
    ],
)
def test_an_override_that_the_recipe_cannot_use_is_named(overrides, parts):
    with pytest.raises(UserError) as caught:
        made("student", overrides)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_merging_leaves_both_sides_as_they_were():
    base, over = {"augment": {"flip": 0.5}, "lr": 1.0}, {"augment": {"flip": 0.0}}
    assert merged(base, over, "w") == {"augment": {"flip": 0.0}, "lr": 1.0}
    assert base["augment"]["flip"] == 0.5 and over == {"augment": {"flip": 0.0}}
