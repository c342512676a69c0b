import json

import pytest

from attnprior import files
from attnprior.models.mae import load_teacher_encoder
from attnprior.stages import pretrain_teacher
from tests.stages import commands

MAE = "teachers/digits/mae/seed0"


def test_a_teacher_has_weights_history_and_metrics(made):
    tensors, header = files.load_tensors(made / MAE / "weights.safetensors")
    assert header["kind"] == "teacher" and header["model"] == commands.MODEL
    assert header["logit_scale"] == 8**-0.5 and header["flops"]["teacher"] == 0 < header["flops"]["own"]
    assert {name.split(".")[0] for name in tensors} == {"encoder", "decoder"}
    encoder = load_teacher_encoder(tensors, header)
    assert header["parameters"] == sum(p.numel() for p in encoder.parameters())
    metrics = files.read_json(made / MAE / "metrics.json")
    lines = (made / MAE / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,lr,loss" and len(lines) == 4
    assert metrics["final_loss"] == float(lines[-1].split(",")[-1])
    assert 0.2 < metrics["probe_val_top1"] <= 1
    assert metrics["flops"] == header["flops"]["own"] and metrics["parameters"] == header["parameters"]
    assert not (made / "checkpoints" / MAE).exists()


def test_pretraining_lowers_the_loss(made):
    losses = [float(x.split(",")[-1]) for x in (made / MAE / "history.csv").read_text().splitlines()[1:]]
    assert losses[-1] < losses[0]


def test_the_events_hold_the_rows_of_the_history(made):
    events = [
        json.loads(x)
        for x in (made / "logs/pretrain_teacher/mae.seed0.events.jsonl").read_text().splitlines()
    ]
    rows = [x.split(",") for x in (made / MAE / "history.csv").read_text().splitlines()[1:]]
    assert [e["event"] for e in events] == ["start", "metrics", "metrics", "metrics", "end"]
    assert (events[0]["total"], events[0]["images"]) == (3, 1200)
    assert [[e["step"], e["values"]["lr"], e["values"]["loss"]] for e in events[1:-1]] == [
        [int(r[0]), float(r[2]), float(r[3])] for r in rows
    ]


def test_a_random_teacher_has_a_header_only_history_and_no_decoder(made):
    folder = made / "teachers/digits/untrained/seed0"
    tensors, header = files.load_tensors(folder / "weights.safetensors")
    assert all(name.startswith("encoder.") for name in tensors) and header["flops"]["own"] == 0
    assert (folder / "history.csv").read_text() == "epoch,step,lr,loss\n"
    assert files.read_json(folder / "metrics.json")["final_loss"] is None


def test_a_rerun_gives_the_same_bytes_and_another_seed_others(made, project, monkeypatch):
    (project / "teachers").unlink()
    assert pretrain_teacher.main(commands.teacher("mae")) == 0
    assert pretrain_teacher.main(commands.teacher("mae", seed=1)) == 0
    for name in ("weights.safetensors", "history.csv", "metrics.json"):
        mine = (project / MAE / name).read_bytes()
        assert mine == (made / MAE / name).read_bytes()
        assert mine != (project / "teachers/digits/mae/seed1" / name).read_bytes()


def test_labels_of_the_training_images_do_not_reach_the_pretraining(made, project):
    tensors, header = files.load_tensors("data/digits.safetensors", "numpy")
    train = tensors["split"] == 0
    from attnprior.data.datasets import content_hash

    tensors["labels"][train] = (tensors["labels"][train] + 1) % 10
    header["sha256"] = content_hash(tensors["images"], tensors["labels"])
    (project / "data").unlink()
    (project / "teachers").unlink()
    files.save_tensors("data/digits.safetensors", tensors, header)
    assert pretrain_teacher.main(commands.teacher("mae")) == 0
    for name in ("weights.safetensors", "history.csv"):
        assert (project / MAE / name).read_bytes() == (made / MAE / name).read_bytes()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"patch_size": 3}, "models.m.patch_size"),
        ({"image_size": 16}, "models.m.image_size: 16, but the data set"),
    ],
)
def test_a_model_that_does_not_fit_is_named(project, capsys, model, message):
    assert pretrain_teacher.main(commands.teacher(model={**commands.MODEL, **model})) == 1
    assert message in capsys.readouterr().err


def test_too_many_probe_labels_name_the_key(project, capsys, monkeypatch):
    monkeypatch.setitem(
        commands.TEACHERS, "mae", {**commands.TEACHERS["mae"], "probe": {**commands.PROBE, "labels": 1201}}
    )
    assert pretrain_teacher.main(commands.teacher()) == 1
    assert "teachers.mae.probe.labels: 1201 labels" in capsys.readouterr().err


def test_a_diverging_training_says_where_and_what_to_do(project, capsys):
    (project / "teachers").unlink()
    assert pretrain_teacher.main(commands.teacher(recipe={**commands.PRETRAINING, "lr": 1e30})) == 1
    error = capsys.readouterr().err
    assert (
        "training diverged at step" in error and "lower the recipe's lr" in error and error.count("\n") == 1
    )
    assert not (project / MAE / "run.json").exists()
