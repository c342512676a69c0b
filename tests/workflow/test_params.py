"""Wrong settings are named in one line: the key, the value, what is allowed."""

import contextlib
import copy
import json

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attnprior.errors import UserError
from attnprior.workflow import params as settings
from tests.workflow.project import ROOT


def shipped() -> dict:
    return settings.read_yaml(ROOT / "params.yaml")


SCHEMA = settings.read_yaml(ROOT / settings.SCHEMA)
FOLDER = {"source": "folder", "path": "x.tar", "train": 9, "val": 97, "test": 500, "split_seed": 0}
FOLDER |= {"resize": None, "resident_limit": 64, "channels": 1, "skip_bad": False}


def complaint(change) -> str:
    params = copy.deepcopy(shipped())
    change(params)
    with pytest.raises(UserError) as caught:
        settings.validate(params, SCHEMA)
    message = str(caught.value)
    assert "\n" not in message
    return message


def put(key: str, value):
    def change(params):
        *parents, last = key.split(".")
        node = params
        for part in parents:
            node = node[part]
        node[last] = value

    return change


def drop(key: str):
    def change(params):
        *parents, last = key.split(".")
        node = params
        for part in parents:
            node = node[part]
        del node[last]

    return change


def test_the_shipped_settings_are_valid():
    settings.validate(shipped(), SCHEMA)


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("recipes.mae.epoch", 3, ["unknown key recipes.mae.epoch", "did you mean 'epochs'", "allowed:"]),
        ("studnets", {}, ["unknown key studnets", "did you mean 'students'"]),
        ("students.copy.transfer.teachr", "x", ["students.copy.transfer.teachr", "'teacher'"]),
        ("recipes.mae.lr", "1e-3", ["recipes.mae.lr is '1e-3'", "must be number", "write 0.001"]),
        ("recipes.mae.epochs", 2.5, ["recipes.mae.epochs is 2.5", "integer"]),
        ("recipes.mae.epochs", 0, ["recipes.mae.epochs is 0", "at least 1"]),
        ("recipes.student.drop_path", 1, ["recipes.student.drop_path is 1", "below 1"]),
        ("models.model_i.alpha", 1.5, ["models.model_i.alpha is 1.5", "at most 1"]),
        ("models.model_i.pool", "men", ["models.model_i.pool is 'men'", "'mean'"]),
        ("studies.digits.seeds", [1, 1], ["studies.digits.seeds", "twice"]),
        ("studies.digits.seeds", [], ["studies.digits.seeds", "1"]),
        ("students.Copy", {}, ["'Copy' is no valid name"]),
        (
            "students.copy.transfer.teacher",
            "mae_model",
            ["students.copy.transfer.teacher", "'mae_model'", "'mae_model_i'"],
        ),
        ("students.impulse.init.fit", "impulse5", ["students.impulse.init.fit", "'impulse5'", "impulse3"]),
        ("students.copy.model", "vitt", ["students.copy.model", "'vitt'", "'vit'"]),
        ("students.copy.recipe", "studen", ["students.copy.recipe", "'studen'", "'student'"]),
        ("students.copy.overrides.epoch", 3, ["students.copy.overrides.epoch", "'epochs'"]),
        ("studies.digits.panels.vit.arms", ["vit_randm"], ["studies.digits.panels.vit.arms", "'vit_randm'"]),
        ("studies.digits.panels.vit.baseline", "copy", ["panels.vit.baseline is 'copy'", "one of its arms"]),
        ("studies.digits.datasets", ["digit"], ["studies.digits.datasets", "'digit'", "'digits'"]),
        ("active", ["digts"], ["active", "'digts'", "'digits'"]),
        (
            "students.copy.transfer.weight",
            1.0,
            ["students.copy.transfer.weight is not used by 'copy'", "distil_features", "remove"],
        ),
        ("students.distil.transfer.maps", None, ["students.distil.transfer.maps is None", "allowed"]),
        ("students.copy.transfer.class_token", True, ["transfer.class_token: True", "neither model"]),
        ("students.copy.transfer.what", "qkv", ["students.copy.transfer.what is 'qkv'", "map, q, k"]),
        ("students.copy.transfer.heads", "every", ["students.copy.transfer.heads: 'every'", "{first: n}"]),
        ("students.copy.transfer.heads", {"first": 5}, ["transfer.heads.first: 5", "1 to 4"]),
        ("students.copy.transfer.layers", {"list": [3, 1]}, ["transfer.layers.list: [3, 1]", "rising"]),
        ("students.copy.transfer.layers", {"first": 1, "last": 1}, ["exactly one of first, last, list"]),
        ("students.distil.transfer.weight", {"from": 1.0, "to": 0.0}, ["weight.schedule"]),
        (
            "teachers.mae_vit",
            {"source": "file", "path": "/x.pth", "format": "timm", "model": "vit", "dataset": None},
            ["probe"],
        ),
        ("teachers.mae_vit.path", "x.pth", ["teachers.mae_vit.path is not used by 'mae'", "file"]),
        ("teachers.mae_vit.dataset", "digit", ["teachers.mae_vit.dataset is 'digit'", "'digits'"]),
        (
            "students.random.init.fit",
            "impulse3",
            ["students.random.init.fit is not used by 'random'", "impulse"],
        ),
        (
            "students.random.transfer.layers",
            {"first": 4},
            ["students.random.transfer.layers is not used by 'none'"],
        ),
        (
            "teachers.random_model_i.mask_ratio",
            0.5,
            ["teachers.random_model_i.mask_ratio is not used by 'random'"],
        ),
        ("fits.impulse3.signal", 40.0, ["fits.impulse3.signal is not used by 'adam'", "svd"]),
        ("fits.impulse3.filter_size", 4, ["fits.impulse3.filter_size: 4", "odd"]),
        ("fits.impulse3.model", "vit", ["students.impulse.init.fit is 'impulse3'", "made for model 'vit'"]),
        ("fits.impulse3.model", "convmixer", ["models.convmixer is a convmixer", "kind vit"]),
        ("fits.impulse3.inputs", None, ["fits.impulse3.inputs is None", "object"]),
        ("fits.impulse3.inputs.first", "noise", ["fits.impulse3.inputs.first is 'noise'", "gaussian"]),
        ("models.vit.kind", "cnn", ["models.vit.kind is 'cnn'", "vit, convmixer"]),
        ("models.vit.kernel_size", 3, ["unknown key models.vit.kernel_size"]),
        ("models.convmixer.kernel_size", 4, ["models.convmixer.kernel_size: 4", "odd"]),
        ("students.random.freeze", "all", ["students.random.freeze is 'all'", "spatial"]),
        ("students.random.model", "convmixer", ["students.random.init.source: 'random'", "filters"]),
        ("students.copy.freeze", "encoder", ["students.copy.transfer.method: 'copy'", "freeze: encoder"]),
        ("students.copy.freeze", "all", ["students.copy.freeze is 'all'"]),
        ("students.distil.freeze", "spatial", ["students.distil.freeze: 'spatial'", "freeze: none"]),
        ("teachers.mae_vit.masking", "grid", ["teachers.mae_vit.masking: 'grid'", "mask_ratio 0.75"]),
        ("teachers.random_model_i.masking", "grid", ["teachers.random_model_i.masking is not used"]),
        ("models.model_i.image_size", 9, ["models.model_i.patch_size", "image_size 9"]),
        ("models.model_i.num_heads", 5, ["models.model_i.num_heads: 5", "embed_dim 64"]),
        ("models.vit", None, ["models.vit is None", "object"]),
        ("students.copy.transfer.layers", {"last": 5}, ["students.copy.transfer.layers.last: 5", "1 to 4"]),
        (
            "students.copy.transfer.teacher",
            "mae_vit",
            ["students.copy.transfer.class_token", "missing key"],
        ),
        (
            "students.finetune.init.teacher",
            "mae_vit",
            ["students.finetune.init.teacher: 'mae_vit'", "qkv_bias True and the student's False"],
        ),
        ("teachers.mae_model_i.mask_ratio", 0.99, ["teachers.mae_model_i.mask_ratio: 0.99", "of 16 patches"]),
        (
            "teachers.mae_model_i.decoder.embed_dim",
            30,
            ["teachers.mae_model_i.decoder.num_heads: 4", "embed_dim 30"],
        ),
        (
            "recipes.student.momentum",
            0.9,
            ["recipes.student.momentum is not used here", "sgd or lars"],
        ),
        ("recipes.student.optimizer", "sgd", ["recipes.student.betas is not used here", "adamw or adam"]),
        (
            "recipes.student.optimizer",
            "adagrad",
            ["optimizer is 'adagrad'", "adamw, adam, sgd"],
        ),
        (
            "recipes.student.augment.crop",
            "resized",
            ["recipes.student.augment.padding is not used"],
        ),
        ("recipes.student.augment.crop", "none", ["recipes.student.augment.padding is not used"]),
        ("recipes.student.augment.padding", 0, ["recipes.student.augment.padding is 0", "at least 1"]),
        ("recipes.student.augment.shift", 1, ["unknown key recipes.student.augment.shift", "allowed:"]),
        (
            "recipes.student.augment.mixup",
            0.8,
            ["missing key recipes.student.augment.mix_probability"],
        ),
        ("recipes.student.warmup_epochs", 0, ["recipes.student.warmup_lr is not used here", "warmup_epochs"]),
        ("recipes.student.warmup_epochs", 41, ["recipes.student.warmup_epochs is 41", "at most epochs, 40"]),
        ("recipes.student.min_lr", 1, ["recipes.student.min_lr is 1", "at most lr, 0.002"]),
        ("recipes.student.weight_decay", 0.0, ["recipes.student.decay is not used here", "weight_decay"]),
        (
            "recipes.simple_vit_code.augment.scale",
            [1.0, 0.5],
            ["recipes.simple_vit_code.augment.scale is [1.0, 0.5]", "[smallest, largest]"],
        ),
        (
            "recipes.simple_vit_code.augment.randaugment.magnitude",
            14.5,
            ["augment.randaugment.magnitude is 14.5", "whole number from 0 to 30"],
        ),
        (
            "recipes.simple_vit_code.augment.randaugment.style",
            "timm",
            ["missing key recipes.simple_vit_code.augment.randaugment.std", "style timm"],
        ),
        ("recipes.mae.drop_path", 0.1, ["recipes.mae.drop_path is 0.1", "pre-training", "set it to 0"]),
        ("recipes.mae.label_smoothing", 0.1, ["recipes.mae.label_smoothing is 0.1", "pre-training"]),
        (
            "students.copy.overrides.augment",
            {"pading": 2},
            ["students.copy.overrides.augment.pading", "'padding'"],
        ),
        ("students.copy.overrides.momentum", 0.9, ["students.copy.overrides.momentum is not used", "sgd"]),
        ("students.copy.overrides.optimizer", "sgd", ["missing key students.copy.overrides.momentum"]),
        ("students.copy.permute_labels", 1, ["students.copy.permute_labels is 1", "boolean"]),
        (
            "students.copy.labels",
            1201,
            ["students.copy.labels is 1201", "10 (one per class) to 1200", "digits"],
        ),
        ("students.copy.labels", 9, ["students.copy.labels is 9", "10 (one per class) to 1200"]),
        (
            "students.copy_1400.labels",
            1401,
            ["students.copy_1400.labels is 1401", "to 1400", "'digits_1400'"],
        ),
        ("teachers.mae_vit.probe.labels", 1201, ["teachers.mae_vit.probe.labels is 1201", "to 1200"]),
        ("datasets.digits.test", 1700, ["datasets.digits: val 97 and test 1700", "1797 images", "lower"]),
        ("datasets.digits.train", 9, ["datasets.digits.train is 9", "at least 10 (one per class)"]),
        ("datasets.digits", FOLDER, ["datasets.digits.train is 9", "at least 10"]),
        ("students.copy.freeze", "spatial", ["students.copy.freeze", "all maps are copied"]),
        ("datasets.digits.val", 1200, ["students.random.labels is 200", "to 97 (training images of digits)"]),
    ],
)
def test_wrong_value_is_named_with_what_is_allowed(key, value, parts):
    message = complaint(put(key, value))
    assert message.startswith("params.yaml: ")
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    "key",
    [
        "compute",
        "recipes.mae.lr",
        "recipes.mae.augment.flip",
        "recipes.mae.warmup_lr",
        "recipes.mae.decay",
        "students.copy.transfer.layers",
        "fits.impulse3.steps",
        "students.copy_50.permute_labels",
    ],
)
def test_missing_key_is_named(key):
    assert f"missing key {key}" in complaint(drop(key))


def test_as_many_labels_as_training_images_are_allowed_and_students_of_no_study_are_not_judged():
    params = copy.deepcopy(shipped())
    put("students.copy.labels", 1200)(params)
    params["students"]["apart"] = params["students"]["random"] | {"labels": 5000}
    settings.validate(params, SCHEMA)


def test_studies_that_share_an_arm_must_agree_on_the_teacher_seed():
    def change(params):
        other = copy.deepcopy(params["studies"]["digits"])
        params["studies"]["other"] = other | {"teacher_seed": 0}
        params["active"].append("other")

    assert "studies.other.teacher_seed is 0" in complaint(change)


def test_broken_yaml_and_missing_file_are_one_line(tmp_path):
    (tmp_path / "params.yaml").write_text("a: [1\nb: 2\n")
    with pytest.raises(UserError, match=r"params\.yaml: not valid YAML") as caught:
        settings.load(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        settings.load(tmp_path / "nowhere")


def test_every_key_of_the_schema_has_a_description():
    def keys(node, path=""):
        for name, child in node.get("properties", {}).items():
            where = f"{path}.{name}"
            target = SCHEMA["$defs"][child["$ref"].rsplit("/", 1)[1]] if "$ref" in child else child
            yield where, "description" in child or "description" in target
            yield from keys(child, where)

    found = dict(keys(SCHEMA))
    for name, definition in SCHEMA["$defs"].items():
        found.update(keys(definition, name))
    assert len(found) > 80
    assert [k for k, described in found.items() if not described and k not in ("teacher.probe",)] == []


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
LEAVES = []


def _leaves(node, path=()):
    if isinstance(node, dict):
        for key, child in node.items():
            LEAVES.append((*path, key))
            _leaves(child, (*path, key))


_leaves(shipped())


@given(st.sampled_from(LEAVES), values)
@hypothesis.settings(deadline=None)
def test_any_value_at_any_key_is_accepted_or_refused_in_one_line(path, value):
    params = copy.deepcopy(shipped())
    node = params
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    with contextlib.suppress(UserError):
        settings.validate(params, SCHEMA)
        return
    with pytest.raises(UserError) as caught:
        settings.validate(params, SCHEMA)
    message = str(caught.value)
    assert message.startswith("params.yaml: ")
    assert "\n" not in message


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.integers(), max_size=5), st.randoms())
def test_settings_string_ignores_the_order_of_keys(mapping, random):
    items = list(mapping.items())
    random.shuffle(items)
    a, b = ({"x": {"y": dict(m)}} for m in (mapping.items(), items))
    assert settings.settings(a, "x.y") == settings.settings(b, "x.y")
    assert json.loads(settings.settings(a, "x.y")) == {"x.y": mapping}


def test_numbers_read_the_same_by_both_yaml_readers():
    from ruamel.yaml import YAML

    text = (ROOT / "params.yaml").read_text()
    assert YAML(typ="safe").load(text) == yaml.safe_load(text)
