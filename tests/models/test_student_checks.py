from dataclasses import replace

import pytest

from attnprior import config
from attnprior.errors import UserError
from attnprior.models import student_checks
from tests.oracle import FREE, MIXER, MODEL
from tests.train.small import RECIPE


def refused(call, key):
    with pytest.raises(UserError) as caught:
        call()
    assert f"params.yaml: {key}:" in str(caught.value)
    assert "\n" not in str(caught.value)


def student(transfer=None, freeze="none", **init):
    transfer = transfer or config.Transfer("none")
    return config.Student("m", config.Init(**init), transfer, "r", {}, 10, False, freeze)


BOX = {"source": "filters", "kind": "box", "heads": 4, "entries": 3, "squared_norm": 1 / 3}


def check(settings, model, recipe=RECIPE):
    return lambda: student_checks.validate_student(settings, model, recipe, "students.s")


def test_filters_and_freezing_go_with_the_model():
    for init in (
        BOX,
        {"source": "filters", "kind": "softmax", "heads": 16},
        {"source": "filters", "kind": "gauss", "heads": 1, "variance": 0.1, "squared_norm": 0.2},
    ):
        check(student(**init), MIXER)()
        check(student(**init, freeze="spatial"), MIXER)()
    check(student(source="random", freeze="spatial"), FREE)()
    where = "students.s"
    for settings, model, key in (
        (student(source="random"), MIXER, "init.source"),
        (student(**BOX), MODEL, "init.source"),
        (student(config.Transfer("copy"), **BOX), MIXER, "transfer.method"),
        (student(**BOX | {"kind": "boxes"}), MIXER, "init.kind"),
        (student(**BOX | {"heads": 17}), MIXER, "init.heads"),
        (student(**BOX | {"entries": 10}), MIXER, "init.entries"),
        (student(source="filters", kind="learned", heads=4, freeze="spatial"), MIXER, "freeze"),
        (student(source="random", freeze="all"), MODEL, "freeze"),
        (student(config.Transfer("distil"), source="random", freeze="spatial"), MODEL, "freeze"),
        (student(source="mimetic", value=True), replace(FREE, value=False), "init.value"),
        (student(source="mimetic_reduced"), replace(FREE, patch_size=FREE.image_size), "init.source"),
    ):
        refused(check(settings, model), f"{where}.{key}")
    refused(check(student(**BOX), MIXER, replace(RECIPE, drop_path=0.1)), f"{where}.recipe.drop_path")
    several = replace(RECIPE, accumulate=2, processes=2)
    refused(check(student(**BOX), MIXER, several), f"{where}.recipe.processes")
    probe = student(source="random", freeze="encoder")
    refused(check(probe, MODEL, replace(several, drop_path=0.0)), f"{where}.recipe.processes")
    check(student(source="random"), MODEL, several)()
    for change, said in (
        ({"variance": 1.0}, "init.variance is not used by filters of kind box (only by gauss)"),
        ({"entries": None}, "missing key students.s.init.entries"),
    ):
        with pytest.raises(UserError) as caught:
            check(student(**BOX | change), MIXER)()
        assert said in str(caught.value) and "\n" not in str(caught.value)


LINEAR = replace(RECIPE, drop_path=0.0, layer_decay=1.0, batch_size=8)


@pytest.mark.parametrize("init", [{"source": "random"}, {"source": "teacher", "teacher": "t"}])
@pytest.mark.parametrize("recipe", [LINEAR, replace(LINEAR, ema=0.9, weight_decay=0.1), RECIPE])
def test_an_encoder_may_be_frozen(init, recipe):
    check(student(**init, freeze="encoder"), MODEL, recipe)()
    check(student(**init, freeze="encoder"), FREE, recipe)()


@pytest.mark.parametrize(
    ("settings", "model", "changes", "key"),
    [
        (student(**BOX, freeze="encoder"), MIXER, {}, "freeze"),
        (student(config.Transfer("copy"), "encoder", source="random"), MODEL, {}, "transfer.method"),
        (student(config.Transfer("distil"), "encoder", source="random"), MODEL, {}, "transfer.method"),
        (student(source="random", freeze="encoder"), MODEL, {"drop_path": 0.1}, "recipe.drop_path"),
        (student(source="random", freeze="encoder"), MODEL, {"layer_decay": 0.75}, "recipe.layer_decay"),
        (student(source="random", freeze="encoder"), MODEL, {"batch_size": 9}, "recipe.batch_size"),
        (student(source="random", freeze="encoder"), MODEL, {"batch_size": 1}, "recipe.batch_size"),
    ],
)
def test_nothing_is_asked_of_a_frozen_encoder(settings, model, changes, key):
    refused(check(settings, model, replace(LINEAR, **changes)), f"students.s.{key}")
