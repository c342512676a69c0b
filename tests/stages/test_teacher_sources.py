"""Teachers that are students or files."""

from pathlib import Path

import pytest
import torch

from attnprior import files
from attnprior.config import Model
from attnprior.models.mae import encoder_config
from attnprior.models.vit import build_vit
from attnprior.stages import pretrain_teacher, train_student
from tests.oracle import randomised
from tests.stages import commands

STANDARD = commands.MODEL | {
    **{"patch_norm": False, "qkv_bias": True, "proj_bias": True, "pos_embed": "sincos2d", "pos_at": "input"},
    **{"alpha": 1.0, "cls_token": True, "pool": "mean_fc_norm"},
}
FILE = "weights/given.safetensors"
OUT = "teachers/digits/{}/seed0"


@pytest.fixture(autouse=True)
def own_teachers(project, made):
    """A folder of teachers to which a test can add; those that were made before are linked."""
    (project / "teachers").unlink()
    for path in (made / "teachers").glob("*/*"):
        target = project / path.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)


def plain(model, seed=5):
    """A network and its state dict as timm and MAE write it, with the position code and what is not used."""
    vit = randomised(build_vit(encoder_config(Model(**model)), seed))
    state = dict(vit.state_dict())
    if model["pos_at"] == "input":
        state["pos_embed"] = vit.pos_embed
    extra = ("decoder_embed.weight", "mask_token", "decoder_blocks.0.norm1.weight", "head.weight")
    return vit, state | {name: torch.zeros(3, 8) for name in extra}


def encoder(name):
    tensors, header = files.load_tensors(f"{OUT.format(name)}/weights.safetensors")
    return {k.removeprefix("encoder."): v for k, v in tensors.items()}, header


def make(path=FILE, model=STANDARD, **changes):
    given = changes | {"path": path}
    return pretrain_teacher.main(commands.teacher("given", source=path, model=model, **given))


@pytest.mark.parametrize(
    ("path", "wrapped"),
    [(FILE, None), ("weights/mae.pth", "model"), ("weights/x.pt", "state_dict"), ("w.bin", None)],
)
def test_a_state_dict_of_timm_or_mae_becomes_a_teacher(path, wrapped, capsys):
    vit, state = plain(STANDARD)
    if path.endswith("safetensors"):
        files.save_tensors(path, state, {})
    else:
        Path(path).parent.mkdir(exist_ok=True)
        torch.save({wrapped: state, "epoch": 3} if wrapped else state, path)
    assert make(path) == 0
    tensors, header = encoder("given")
    assert all(torch.equal(tensors[k], v) for k, v in vit.state_dict().items())
    assert header["kind"] == "teacher" and header["source"] == "file" and header["logit_scale"] == 8**-0.5
    assert header["flops"] == {"own": 0.0, "teacher": 0.0}
    metrics = files.read_json(f"{OUT.format('given')}/metrics.json")
    assert 0 <= metrics["probe_val_top1"] <= 1 and metrics["final_loss"] is None
    record = files.read_json(f"{OUT.format('given')}/run.json")
    assert record["inputs"][path] == files.sha256(path)
    assert "decoder_embed.weight" in capsys.readouterr().out


def test_a_norm_after_pooling_takes_the_place_of_a_missing_one():
    _, state = plain(STANDARD)
    norm = {part: state.pop(f"norm.{part}") for part in ("weight", "bias")}
    files.save_tensors(FILE, state | {f"fc_norm.{k}": v for k, v in norm.items()}, {})
    assert make() == 0
    assert torch.equal(encoder("given")[0]["norm.weight"], norm["weight"])
    files.save_tensors(FILE, state, {})
    assert make() == 0
    assert (encoder("given")[0]["norm.weight"] == 1).all() and (encoder("given")[0]["norm.bias"] == 0).all()


def test_a_teacher_file_of_this_project_keeps_its_logit_scale(made):
    source = made / "teachers/digits/mae/seed0/weights.safetensors"
    tensors, header = files.load_tensors(source)
    files.save_tensors(FILE, tensors, header | {"logit_scale": 0.25})
    assert make(model=commands.MODEL, format="attnprior") == 0
    found, about = encoder("given")
    assert about["logit_scale"] == 0.25
    kept = {k: v for k, v in tensors.items() if k.startswith("encoder.")}
    assert {f"encoder.{k}": v for k, v in found.items()}.keys() == kept.keys()
    assert all(torch.equal(found[k.removeprefix("encoder.")], v) for k, v in kept.items())


def broken(state, change):
    if change == "shape":
        state["blocks.1.mlp.fc1.weight"] = torch.zeros(8, 16)
    elif change == "missing":
        del state["blocks.0.attn.qkv.bias"]
    elif change == "left over":
        state["blocks.7.attn.qkv.bias"] = torch.zeros(3)
    elif change == "position":
        state["pos_embed"] = state["pos_embed"] + 0.01
    return state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("shape", "blocks.1.mlp.fc1.weight has shape (8, 16) and not (32, 16)"),
        ("missing", "missing blocks.0.attn.qkv.bias"),
        ("left over", "unexpected blocks.7.attn.qkv.bias"),
        ("position", "pos_embed is not the position code 'sincos2d' of the model"),
    ],
)
def test_weights_that_do_not_fit_are_one_line_and_leave_nothing(change, said, capsys):
    files.save_tensors(FILE, broken(plain(STANDARD)[1], change), {})
    assert make() == 1
    error = capsys.readouterr().err
    assert f"teachers.given: {FILE}: " in error and said in error and error.count("\n") == 1
    assert not Path(OUT.format("given"), "weights.safetensors").exists()


def test_a_pickle_with_code_in_it_is_not_run(capsys):
    class Evil:
        def __reduce__(self):
            return (open, ("ran", "w"))

    torch.save({"model": Evil()}, "evil.pth")
    assert make("evil.pth") == 1
    error = capsys.readouterr().err
    assert "evil.pth: cannot be read as tensors alone" in error and error.count("\n") == 1
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ([1, 2], "timm", "holds no state dict"),
        ({"model": {"a": 1}}, "timm", "holds no state dict"),
        ({"a": torch.zeros(1)}, "attnprior", "set format to timm"),
    ],
)
def test_other_files_are_named(content, kind, said, capsys):
    torch.save(content, "x.pth")
    assert make("x.pth", format=kind) == 1
    assert said in capsys.readouterr().err


def test_a_file_is_given_exactly_where_it_is_used(capsys):
    assert pretrain_teacher.main(commands.teacher("given", model=STANDARD)) == 1
    assert "--source: teachers.given with source file is made of a file; give it" in capsys.readouterr().err
    assert pretrain_teacher.main(commands.teacher("untrained", seed=3, source="data/digits.safetensors")) == 1
    assert "leave the option out" in capsys.readouterr().err


def test_a_student_becomes_the_teacher_of_another_one():
    assert train_student.main(commands.train("finetune")) == 0
    weights = "runs/digits/finetune/seed0/weights.safetensors"
    assert pretrain_teacher.main(commands.teacher("tuned", source=weights)) == 0
    student, about = files.load_tensors(weights)
    tensors, header = encoder("tuned")
    assert all(torch.equal(tensors[k], v) for k, v in student.items() if not k.startswith("head"))
    assert header["flops"] == {"own": 0.0, "teacher": sum(about["flops"].values())}
    transfer = commands.COPY | {"teacher": "tuned"}
    assert train_student.main(commands.train("copy", transfer=transfer)) == 0
    saved = files.read_header("runs/digits/copy/seed0/weights.safetensors")
    assert saved["flops"]["teacher"] == header["flops"]["teacher"]


def test_a_student_that_copies_is_no_teacher(capsys):
    assert train_student.main(commands.train("copy")) == 0
    weights = "runs/digits/copy/seed0/weights.safetensors"
    assert pretrain_teacher.main(commands.teacher("tuned", source=weights)) == 1
    assert "copies attention, so its own is not trained" in capsys.readouterr().err


def test_two_teachers_have_two_files(capsys):
    assert train_student.main(commands.train("two_teachers")) == 0
    record = files.read_json("runs/digits/two_teachers/seed0/run.json")
    assert {f"teachers/digits/{t}/seed0/weights.safetensors" for t in ("mae", "untrained")} <= set(
        record["inputs"]
    )
    swapped = {"init": {"source": "teacher", "teacher": "untrained"}}
    first = files.load_tensors("runs/digits/two_teachers/seed0/weights.safetensors")[0]
    assert train_student.main(commands.train("two_teachers", **swapped)) == 0
    second = files.load_tensors("runs/digits/two_teachers/seed0/weights.safetensors")[0]
    assert not torch.equal(first["head.weight"], second["head.weight"])
