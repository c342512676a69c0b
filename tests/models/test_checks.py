import subprocess
import sys
from dataclasses import replace

import pytest

from attnprior import config
from attnprior.errors import UserError
from attnprior.models import checks
from tests.oracle import DECODER, FREE, MIXER, MODEL, ROPE, STANDARD

PROBE = config.Probe(labels=10, weight_decay=0.01, steps=10)
MAE = config.Teacher("mae", "m", PROBE, "mae", 0.6, False, DECODER, "random")
POSITION = config.Inputs("position", "position")
FIT = config.Fit("m", 3, "random", "adam", "each", 0.1, 10, 1e-4, 100, inputs=POSITION)


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
        ("alpha", {"pos_at": "input", "alpha": 0.0}),
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
        (FIT, replace(MODEL, pos_embed="none", pos_at="none", alpha=1.0), "model"),
        (FIT, ROPE, "model"),
        (FIT, replace(MODEL, logit_scale=0.2), "logit_scale"),
        (replace(FIT, layers="both"), MODEL, "layers"),
        (replace(FIT, inputs=config.Inputs("noise", "position")), MODEL, "inputs.first"),
        (replace(FIT, inputs=config.Inputs("position", "uniform")), replace(MODEL, depth=1), "inputs.rest"),
        (replace(FIT, value_norm=1.0), replace(MODEL, value=False), "value_norm"),
    ):
        refused(lambda f=fit, m=model: checks.validate_fit(f, m, "fits.f"), f"fits.f.{key}")


def test_a_fit_has_exactly_the_options_that_its_model_uses():
    learned = replace(MODEL, pos_embed="learned")
    checks.validate_fit(replace(FIT, position_norm=18.0), learned, "fits.f")
    checks.validate_fit(replace(FIT, inputs=None), FREE, "fits.f")
    checks.validate_fit(FIT, STANDARD, "fits.f")  # a code at the input, normalised as its layers do
    for fit, model, key in (
        (FIT, learned, "position_norm"),
        (replace(FIT, position_norm=18.0), MODEL, "position_norm"),
        (FIT, FREE, "inputs"),
        (replace(FIT, inputs=None), MODEL, "inputs"),
    ):
        with pytest.raises(UserError, match=rf"fits\.f\.{key}[, ]"):
            checks.validate_fit(fit, model, "fits.f")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("pos_at", {"pos_at": "input"}),
        ("alpha", {"alpha": 0.5}),
        ("num_heads", {"num_heads": 16}),
    ],
)
def test_rotary_codes_turn_queries_and_keys_alone(key, change):
    checks.validate_model(ROPE, "models.m")
    refused(lambda: checks.validate_model(replace(ROPE, **change), "models.m"), f"models.m.{key}")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("pos_at", {"pos_embed": "identity", "pos_at": "qk"}),
        ("cls_token", {"cls_token": True}),
        ("qkv_bias", {"value": False, "qkv_bias": True}),
    ],
)
def test_free_attention_has_no_input(key, change):
    checks.validate_model(FREE, "models.m")
    checks.validate_model(replace(FREE, value=False), "models.m")
    refused(lambda: checks.validate_model(replace(FREE, **change), "models.m"), f"models.m.{key}")


def test_masked_autoencoders_of_model_iii_and_grids_that_do_not_fit_are_refused():
    checks.validate_teacher(MAE, ROPE, "teachers.t")
    checks.validate_teacher(replace(MAE, masking="grid", mask_ratio=0.75), MODEL, "teachers.t")
    checks.validate_teacher(replace(MAE, masking="block"), MODEL, "teachers.t")
    refused(lambda: checks.validate_teacher(MAE, FREE, "teachers.t"), "teachers.t.model")
    grid = replace(MAE, masking="grid")
    refused(lambda: checks.validate_teacher(grid, MODEL, "teachers.t"), "teachers.t.masking")
    odd = replace(MODEL, image_size=10)
    quarter = replace(grid, mask_ratio=0.75)
    refused(lambda: checks.validate_teacher(quarter, odd, "teachers.t"), "teachers.t.masking")


def test_convmixers_are_checked():
    checks.validate_model(MIXER, "models.m")
    for key, value in (("kernel_size", 4), ("patch_size", 3)):
        wrong = replace(MIXER, **{key: value})
        refused(lambda m=wrong: checks.validate_model(m, "models.m"), f"models.m.{key}")


def test_weights_are_handed_on_between_grids_but_not_between_shapes():
    larger = replace(MODEL, image_size=12, num_classes=3, pool="mean_fc_norm")
    checks.validate_hand_over(MODEL, larger, "t", "students.s")
    for change in ({"embed_dim": 64}, {"patch_size": 4}, {"alpha": 0.5}, {"pos_embed": "learned"}):
        other = replace(MODEL, **change)
        refused(
            lambda m=other: checks.validate_hand_over(m, MODEL, "t", "students.s"), "students.s.init.teacher"
        )
    free = replace(FREE, image_size=12)
    refused(lambda: checks.validate_hand_over(free, FREE, "t", "students.s"), "students.s.init.teacher")


def test_checking_settings_does_not_import_torch():
    load = "import attnprior.models.checks, attnprior.models.student_checks"
    code = f"import sys; sys.path = {sys.path}; {load}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
