import csv
import json

import numpy as np
import pytest
import torch

from attnprior import files
from attnprior.config import Init, Model, build_model
from attnprior.data import datasets
from attnprior.errors import UserError
from attnprior.init.filters import build_convmixer
from attnprior.models.vit import ViT
from attnprior.stages import fit_impulse, pretrain_teacher, train_student
from tests import processes
from tests.stages import commands

OUTPUTS = ("weights.safetensors", "history.csv", "predictions.safetensors")


def folder(name, seed=0):
    return f"runs/digits/{name}/seed{seed}"


def weights(name):
    return files.load_tensors(f"{folder(name)}/weights.safetensors")


def columns(name):
    with open(f"{folder(name)}/history.csv") as f:
        return f.readline().strip().split(",")


@pytest.mark.parametrize("name", list(commands.STUDENTS))
def test_every_kind_of_student_trains_and_its_outputs_fit_together(project, name):
    assert train_student.main(commands.train(name)) == 0
    tensors, header = weights(name)
    assert header["kind"] == "student" and header["model"] == commands.MODEL
    assert header["parameters"] == sum(t.numel() for t in tensors.values())
    assert header["logit_scale"] == (0.5 if name == "impulse" else 8**-0.5)
    teacher = files.read_header("teachers/digits/mae/seed0/weights.safetensors")["flops"]["own"]
    uses_teacher = name not in ("plain", "mimetic", "impulse")
    fit = files.read_header("fits/adam/seed0/fit.safetensors")["flops"]["own"]
    assert header["flops"]["teacher"] == (teacher if uses_teacher else 0) and header["flops"]["own"] > 0
    assert header["flops"]["fit"] == (fit if name == "impulse" else 0)
    extra = ["transfer_loss"] if name in ("distil", "distil_v", "features", "two_teachers") else []
    extra += ["transfer_kl"] if name in ("distil", "two_teachers") else []
    assert columns(name) == [
        *["epoch", "step", "lr", "loss", "task_loss", *extra, "train_top1", "val_loss", "val_top1"]
    ]
    found, about = files.load_tensors(f"{folder(name)}/predictions.safetensors", "numpy")
    data = datasets.load("data/digits.safetensors")
    assert found["logits"].shape == (597, 10) and found["logits"].dtype == np.float32
    np.testing.assert_array_equal(found["labels"], data.labels[found["index"]])
    np.testing.assert_array_equal(found["split"], data.split[found["index"]])
    assert (
        sorted(found["index"]) == sorted(np.flatnonzero(data.split > 0)) and about["classes"] == data.classes
    )
    record = files.read_json(f"{folder(name)}/run.json")
    assert set(record["outputs"]) == {f"{folder(name)}/{o}" for o in OUTPUTS}
    assert record["images_per_second"] > 0 and record["versions"]["torch"] == torch.__version__
    log = f"logs/train_student/{name}.seed0.events.jsonl"
    with open(log) as f:
        begin, *_, last, _ = map(json.loads, f)
    assert begin["total"] == last["step"] and begin["images"] == 60


def test_predictions_are_those_of_the_saved_weights(project):
    assert train_student.main(commands.train("plain")) == 0
    tensors, header = weights("plain")
    vit = ViT(Model(**header["model"]), logit_scale=header["logit_scale"])
    vit.load_state_dict(tensors)
    data = datasets.load("data/digits.safetensors")
    found, _ = files.load_tensors(f"{folder('plain')}/predictions.safetensors", "numpy")
    pixels = data.images[found["index"]] / 255.0
    images = torch.from_numpy((pixels - data.mean[0]) / data.std[0]).float()
    with torch.no_grad():
        logits = vit(images)[0].numpy()
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    val = found["split"] == 1
    accuracy = (found["logits"][val].argmax(1) == found["labels"][val]).mean()
    last = open(f"{folder('plain')}/history.csv").read().splitlines()[-1].split(",")  # noqa: SIM115
    assert float(last[-1]) == pytest.approx(accuracy)


def test_test_images_do_not_influence_weights_and_history(project):
    assert train_student.main(commands.train("plain")) == 0
    before = {name: files.sha256(f"{folder('plain')}/{name}") for name in OUTPUTS}
    tensors, header = files.load_tensors("data/digits.safetensors", "numpy")
    test = tensors["split"] == 2
    tensors["images"][test] = 255 - tensors["images"][test]
    tensors["labels"][test] = 0
    header["sha256"] = datasets.content_hash(tensors["images"], tensors["labels"])
    (project / "data").unlink()
    files.save_tensors("data/digits.safetensors", tensors, header)
    assert train_student.main(commands.train("plain")) == 0
    after = {name: files.sha256(f"{folder('plain')}/{name}") for name in OUTPUTS}
    assert [name for name in OUTPUTS if before[name] != after[name]] == ["predictions.safetensors"]


def test_reruns_give_the_same_bytes_and_seeds_differ(project):
    for _ in range(2):
        assert train_student.main(commands.train("distil")) == 0
        first = {name: files.sha256(f"{folder('distil')}/{name}") for name in OUTPUTS}
    again = {name: files.sha256(f"{folder('distil')}/{name}") for name in OUTPUTS}
    assert first == again
    assert train_student.main(commands.train("plain")) == 0
    assert train_student.main(commands.train("plain", seed=1)) == 0
    for name in OUTPUTS:
        assert files.sha256(f"{folder('plain')}/{name}") != files.sha256(f"{folder('plain', 1)}/{name}")


def test_the_maps_of_another_image_change_the_result(project):
    for name in ("copy", "other"):
        assert train_student.main(commands.train(name)) == 0
    assert any(
        not torch.equal(a, b)
        for a, b in zip(weights("copy")[0].values(), weights("other")[0].values(), strict=True)
    )


def test_overrides_change_the_recipe_of_one_student(project):
    assert train_student.main(commands.train("plain", overrides={"epochs": 1})) == 0
    assert len(open(f"{folder('plain')}/history.csv").read().splitlines()) == 2  # noqa: SIM115


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("plain", {"labels": 1201}, "students.plain.labels: 1201 labels; allowed: 10"),
        ("plain", {"labels": 9}, "students.plain.labels: 9 labels"),
        ("plain", {"overrides": {"epoch": 3}}, "students.plain.overrides.epoch, did you mean 'epochs'"),
        (
            "plain",
            {"init": {"source": "magic"}},
            "students.plain.init.source: 'magic'; allowed: random, mimetic",
        ),
        ("plain", {"transfer": {"method": "steal"}}, "students.plain.transfer.method: 'steal'"),
        (
            "copy",
            {"inputs": False},
            "--teacher: students.copy uses a teacher for its transfer; give its file",
        ),
        (
            "finetune",
            {"inputs": False},
            "--init-teacher: students.finetune uses a teacher for its first weights; give its file",
        ),
        ("impulse", {"inputs": False}, "--fit: students.impulse uses a fit; give its file"),
        ("copy", {"transfer": {**commands.COPY, "layers": {"first": 3}}}, "transfer.layers.first: 3"),
        ("copy", {"model": {**commands.MODEL, "num_heads": 4}}, "num_heads 2 and the student's 4"),
        ("distil", {"model": {**commands.MODEL, "patch_size": 4}}, "num_patches 16 and the student's 4"),
        ("finetune", {"model": {**commands.MODEL, "embed_dim": 32}}, "has shape"),
        ("impulse", {"model": {**commands.MODEL, "depth": 3}}, "fitted for depth 2, the student has 3"),
        ("probe", {"overrides": {}}, "students.probe.recipe.drop_path: 0.1"),
        ("probe", {"labels": 33}, "students.probe.recipe.batch_size: 32"),
        ("probe", {"transfer": commands.COPY}, "students.probe.transfer.method: 'copy'"),
        ("copy_q", {"model": {**commands.MODEL, "embed_dim": 32}}, "'q' needs heads of one width"),
    ],
)
def test_wrong_settings_name_their_key_and_leave_no_output(project, capsys, name, changes, message):
    assert train_student.main(commands.train(name, **changes)) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (project / folder(name) / "weights.safetensors").exists()


def test_a_truncated_teacher_is_a_user_error(project, made, capsys):
    path = project / "teachers/digits/mae/seed0/weights.safetensors"
    content = path.read_bytes()
    (project / "teachers").unlink()
    path.parent.mkdir(parents=True)
    path.write_bytes(content[:1000])
    assert train_student.main(commands.train("copy")) == 1
    assert "weights.safetensors: corrupt or truncated" in capsys.readouterr().err


def test_training_imports_no_package_that_costs_seconds(project):
    code = (
        "import sys\nfrom attnprior.stages import pretrain_teacher, train_student\n"
        f"assert train_student.main({commands.train('distil')!r}) == 0\n"
        f"assert pretrain_teacher.main({commands.teacher('mae', seed=7)!r}) == 0\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'torchvision', 'sklearn', 'scipy', 'mlflow'}\n"
        "print('found', *sorted(heavy & set(sys.modules)))"
    )
    (project / "teachers").unlink()
    assert pretrain_teacher.main(commands.teacher("mae")) == 0
    assert processes.output(code).splitlines()[-1] == "found"


def test_permuted_labels_keep_images_and_class_counts_and_depend_on_the_seed(project, monkeypatch):
    seen = {}

    def spy(model, objective, shifted, labels, recipe, seed, checkpoint, **rest):
        seen[seed, recipe.epochs] = (shifted.plain().clone(), labels.clone(), rest["evaluate"]())
        raise UserError("seen")

    monkeypatch.setattr("attnprior.train.students.train", spy)
    for seed, epochs, permute in ((0, 1, False), (0, 2, True), (0, 3, True), (1, 2, True)):
        changes = {"permute_labels": permute, "overrides": {"epochs": epochs}}
        assert train_student.main(commands.train("plain", seed, **changes)) == 1
    (images, true, measured), (own, one, val), (_, again, _), (_, other, _) = seen.values()
    assert torch.equal(images, own) and val == measured  # the same untrained network, true validation labels
    assert not torch.equal(one, true) and torch.equal(one.sort().values, true.sort().values)
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_permuted_labels_leave_validation_and_test_labels_true(project):
    assert train_student.main(commands.train("plain", permute_labels=True)) == 0
    found, _ = files.load_tensors(f"{folder('plain')}/predictions.safetensors", "numpy")
    data = datasets.load("data/digits.safetensors")
    np.testing.assert_array_equal(found["labels"], data.labels[found["index"]])


MIXER = {
    "kind": "convmixer",
    "image_size": 8,
    "in_chans": 1,
    "num_classes": 10,
    "patch_size": 2,
    "embed_dim": 16,
    "depth": 2,
    "kernel_size": 3,
    "gelu_after_spatial": True,
    "norm_eps": 1e-5,
}
FREE = commands.MODEL | {"attention": "free", "pos_embed": "none", "pos_at": "none", "alpha": 1.0}
LEARNED = commands.MODEL | {"pos_embed": "learned", "pos_at": "input", "alpha": 1.0, "cls_token": True}
STILL = commands.RECIPE | {"drop_path": 0.0}
IMPULSE = {"source": "filters", "kind": "impulse", "heads": 16, "squared_norm": 1 / 3}


@pytest.mark.parametrize("kind", [IMPULSE, {"source": "filters", "kind": "softmax", "heads": 3}])
@pytest.mark.parametrize("freeze", ["none", "spatial"])
def test_a_convmixer_trains_and_predicts_from_its_file(project, kind, freeze):
    arguments = commands.train(model=MIXER, recipe=STILL, init=kind, freeze=freeze)
    assert train_student.main(arguments) == 0
    tensors, header = weights("plain")
    assert header["filters"] == {"kind": kind["kind"], "heads": kind["heads"]}
    held = 2 * (kind["heads"] * 9 + 16) if freeze == "spatial" else 0
    assert header["parameters"] - header["trained"] == held
    start = build_convmixer(build_model(MIXER, "m"), Init(**kind), 0).state_dict()
    same = torch.equal(tensors["blocks.0.spatial.weight"], start["blocks.0.spatial.weight"])
    assert same == (freeze == "spatial")
    assert (tensors["stem_norm.running_mean"] != 0).any()
    assert tensors["stem_norm.num_batches_tracked"] == 3 * 2  # 60 images in batches of 32, counted once


def test_a_linear_probe_leaves_its_teacher_as_it_is_and_is_measured_as_it_is_saved(project):
    assert train_student.main(commands.train("probe", overrides={"drop_path": 0.0, "ema": 0.5})) == 0
    tensors, header = weights("probe")
    teacher, _ = files.load_tensors("teachers/digits/mae/seed0/weights.safetensors")
    for name, tensor in tensors.items():
        if not name.startswith("head."):
            assert torch.equal(tensor, teacher[f"encoder.{name}"]), name
    assert header["trained"] == tensors["head.weight"].numel() + tensors["head.bias"].numel() == 10 * 17
    found, _ = files.load_tensors(f"{folder('probe')}/predictions.safetensors")
    val = found["split"] == datasets.VAL
    loss = torch.nn.functional.cross_entropy(found["logits"][val], found["labels"][val]).item()
    with open(f"{folder('probe')}/history.csv", newline="") as f:
        last = list(csv.DictReader(f))[-1]
    assert float(last["val_loss"]) == pytest.approx(loss, rel=1e-5)
    top1 = (found["logits"][val].argmax(1) == found["labels"][val]).float().mean().item()
    assert float(last["val_top1"]) == pytest.approx(top1, abs=1 / 97)
    assert train_student.main(commands.train("finetune")) == 0
    assert header["flops"]["own"] < weights("finetune")[1]["flops"]["own"] / 2.5


@pytest.mark.parametrize(("model", "fit"), [(FREE, "adam"), (LEARNED, "svd")])
def test_impulse_students_of_other_models_start_from_their_fit(project, model, fit):
    changes = {"inputs": None} if model is FREE else {"position_norm": 18.0, "value_norm": 1.0}
    (project / "fits").unlink()
    assert fit_impulse.main(commands.fit(fit, model=model, **changes)) == 0
    student = {"init": {"source": "impulse", "fit": fit}, "freeze": "spatial"}
    assert train_student.main(commands.train(model=model, **student)) == 0
    made, _ = files.load_tensors(f"fits/{fit}/seed0/fit.safetensors")
    tensors, header = weights("plain")
    assert header["logit_scale"] == 0.5
    for layer in range(2):
        at = f"blocks.{layer}.attn"
        if model is FREE:
            assert torch.equal(tensors[f"{at}.q"], made["q"][layer])
            assert torch.equal(tensors[f"{at}.k"], made["k"][layer])
        else:
            own = tensors[f"{at}.qkv.weight"]
            assert torch.equal(own[:16], made["q"][layer].mT.flatten(0, 1))
            assert torch.equal(own[16:32], made["k"][layer].flatten(0, 1))
            assert not torch.equal(own[32:], made["v"][layer])  # trained since
            torch.testing.assert_close(own[32:], made["v"][layer], rtol=0, atol=0.1)
    if model is LEARNED:
        torch.testing.assert_close(tensors["pos_embed"], made["pos_embed"], rtol=0, atol=0.1)
        assert tensors["pos_embed"].std() > 0.3


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (MIXER, {}, "students.plain.init.source: 'random'"),
        (commands.MODEL, {"init": IMPULSE}, "students.plain.init.source: 'filters'"),
        (MIXER, {"init": IMPULSE | {"heads": 99}}, "students.plain.init.heads: 99"),
    ],
)
def test_filters_and_attention_do_not_mix(project, capsys, model, changes, message):
    assert train_student.main(commands.train(model=model, recipe=STILL, **changes)) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
