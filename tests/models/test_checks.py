import subprocess
import sys
from dataclasses import replace

import pytest

from attnprior import config
from attnprior.errors import UserError
from attnprior.models import checks
from tests.oracle import DECODER, MODEL, STANDARD

PROBE = config.Probe(labels=10, weight_decay=0.01, steps=10)
MAE = config.Teacher("mae", "m", PROBE, "mae", 0.6, False, DECODER)
FIT = config.Fit("m", 3, "random", "adam", 0.1, 10, 1e-4, 100)


@pytest.mark.parametrize("model", [MODEL, STANDARD])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pos_embed": "learned"},
        {"pos_embed": "identity"},
        {"pos_embed": "none", "pos_at": "none", "alpha": 1.0},
        {"cls_token": True, "pool": "cls"},
    ],
)
def test_models_that_work_pass(model, change):
    checks.validate_model(replace(model, **change), "models.m")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("patch_size", {"patch_size": 3}),
        ("num_heads", {"num_heads": 5}),
        ("embed_dim", {"embed_dim": 30, "num_heads": 2}),
        ("embed_dim", {"embed_dim": 4}),
        ("pos_embed", {"pos_embed": "identity", "embed_dim": 12}),
        ("patch_norm", {"patch_size": 1}),
        ("pool", {"pool": "cls"}),
        ("pos_at", {"pos_at": "none", "alpha": 1.0}),
        ("pos_at", {"pos_embed": "none"}),
        ("alpha", {"alpha": -0.1}),
        ("alpha", {"alpha": 1.5}),
        ("alpha", {"pos_at": "input"}),
        ("pos_embed", {"pos_embed": "sincos"}),
        ("pos_at", {"pos_at": "queries"}),
        ("pool", {"pool": "max"}),
        ("weight_init", {"weight_init": "xavier"}),
    ],
)
def test_models_that_do_not_work_are_refused_in_one_line_naming_the_key(key, change):
    refused(lambda: checks.validate_model(replace(MODEL, **change), "models.m"), f"models.m.{key}")


def refused(call, key):
    with pytest.raises(UserError) as caught:
        call()
    assert f"params.yaml: {key}:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_patch_of_one_value_works_without_its_norm():
    checks.validate_model(replace(MODEL, patch_size=1, patch_norm=False), "models.m")
    checks.validate_model(replace(MODEL, patch_size=1, in_chans=3), "models.m")


def test_teacher_settings_are_checked():
    checks.validate_teacher(MAE, MODEL, "teachers.t")
    checks.validate_teacher(config.Teacher("random", "m", PROBE), MODEL, "teachers.t")
    for change, key in (
        ({"mask_ratio": 1.0}, "mask_ratio"),
        ({"mask_ratio": 0.01}, "mask_ratio"),
        ({"decoder": replace(DECODER, num_heads=3)}, "decoder.num_heads"),
        ({"decoder": replace(DECODER, embed_dim=6)}, "decoder.embed_dim"),
    ):
        teacher = replace(MAE, **change)
        refused(lambda t=teacher: checks.validate_teacher(t, MODEL, "teachers.t"), f"teachers.t.{key}")
    single = replace(MODEL, patch_size=1, patch_norm=False)
    refused(
        lambda: checks.validate_teacher(replace(MAE, norm_pix_loss=True), single, "teachers.t"),
        "teachers.t.norm_pix_loss",
    )


@pytest.mark.parametrize(
    ("patches", "ratio", "keep"), [(20, 0.8, 4), (100, 0.9, 10), (10, 0.9, 1), (196, 0.75, 49), (64, 0.9, 6)]
)
def test_number_of_visible_patches_is_rounded_not_cut(patches, ratio, keep):
    assert checks.visible_patches(patches, ratio, "teachers.t") == keep


def test_fit_settings_are_checked():
    checks.validate_fit(FIT, MODEL, "fits.f")
    checks.validate_fit(replace(FIT, offsets="ordered"), MODEL, "fits.f")
    for fit, model, key in (
        (replace(FIT, filter_size=4), MODEL, "filter_size"),
        (replace(FIT, filter_size=5, offsets="ordered"), MODEL, "filter_size"),
        (FIT, replace(MODEL, pos_embed="learned"), "model"),
    ):
        refused(lambda f=fit, m=model: checks.validate_fit(f, m, "fits.f"), f"fits.f.{key}")


def test_checking_settings_does_not_import_torch():
    code = (
        f"import sys; sys.path = {sys.path}; import attnprior.models.checks; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
