"""Attention maps and reconstructions of trained networks: which images, which maps, which bytes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attnprior.analysis.looks import attention
from attnprior.analysis.saved_maps import read_maps
from attnprior.config import Teacher, build
from attnprior.data import datasets
from attnprior.data.loader import normalise
from attnprior.errors import UserError
from attnprior.files import load_tensors, save_tensors
from attnprior.models.mae import load_teacher_encoder
from attnprior.models.vit import patchify
from attnprior.stages import extract_maps, train_student
from attnprior.train.students import load_network
from tests.stages import commands
from tests.stages.test_train_student import IMPULSE, MIXER, STILL

ARMS = ("plain", "copy", "other")
OUT = "results/s/maps.safetensors"


def weights(*names):
    known = {"mae": "teachers", "untrained": "teachers"}
    return [f"{known.get(n, 'runs')}/digits/{n}/seed0/weights.safetensors" for n in names]


def argv(files, rebuild=("mae",)):
    params = {"compute": commands.COMPUTE, **{f"teachers.{t}": commands.TEACHERS[t] for t in rebuild}}
    return [
        *("--study", "s", "--data", "data/digits.safetensors", "--weights", *files, "--output", OUT),
        *("--run-json", "results/s/maps.run.json", *commands.common("extract_maps", "s", params)),
    ]


@pytest.fixture(scope="module")
def trained(made, tmp_path_factory):
    """The project of `made` with three students and their maps; never changed."""
    root = tmp_path_factory.mktemp("trained")
    for name in ("data", "teachers", "fits"):
        (root / name).symlink_to(made / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for arm in ARMS:
            assert train_student.main(commands.train(arm)) == 0
        assert extract_maps.main(argv(weights(*ARMS, "mae", "untrained"))) == 0
    return root


@pytest.fixture
def maps(trained, monkeypatch):
    monkeypatch.chdir(trained)
    return load_tensors(OUT, "numpy")


def test_images_are_of_different_classes_and_of_the_validation_split(maps):
    tensors, header = maps
    data = datasets.load("data/digits.safetensors")
    index = header["images"]["digits"]["index"]
    assert (data.split[index] == datasets.VAL).all()
    assert len(set(data.labels[index])) == 4
    np.testing.assert_array_equal(tensors["images/digits"], data.images[index])


def test_maps_are_those_of_the_softmax_of_the_network_itself(maps):
    tensors, _ = maps
    data = datasets.load("data/digits.safetensors")
    shown = normalise(torch.from_numpy(tensors["images/digits"]), data.mean, data.std)
    vit = load_network(weights("plain")[0], None).student
    _, recorded = vit(shown, record=("q", "k"))
    for layer, (q, k) in enumerate(zip(recorded["q"], recorded["k"], strict=True)):
        logits = (q.double() @ k.double().transpose(-2, -1)) * vit.logit_scale  # n H N N
        attention = np.exp(logits.detach().numpy())
        attention /= attention.sum(-1, keepdims=True)
        found = tensors["student/digits/plain/looked"][layer]
        np.testing.assert_allclose(found.reshape(4, 16), attention.mean((1, 2)), atol=1e-6)
        centre = tensors["student/digits/plain/centre"][layer]
        np.testing.assert_allclose(centre.reshape(4, 16), attention[:, :, 10].mean(1), atol=1e-6)
        if layer == 0:
            heads = tensors["student/digits/plain/heads"]
            np.testing.assert_allclose(heads.reshape(2, 4, 16).swapaxes(0, 1), attention[:, :, 10], atol=1e-6)


def test_students_that_copy_are_shown_with_their_teachers_maps(maps):
    tensors, _ = maps
    for part in ("looked", "centre", "heads"):
        teacher = tensors[f"teacher/digits/mae/{part}"]
        np.testing.assert_allclose(tensors[f"student/digits/copy/{part}"], teacher, atol=1e-6)
        other = tensors[f"student/digits/other/{part}"]
        np.testing.assert_allclose(other, np.roll(teacher, -1, axis=1), atol=1e-6)
    assert not np.allclose(tensors["student/digits/plain/looked"], tensors["teacher/digits/mae/looked"])


def test_only_masked_autoencoders_are_rebuilt_and_from_visible_patches_alone(maps):
    tensors, header = maps
    assert [r["name"] for r in header["reconstructions"]] == ["mae"]
    hidden = tensors["reconstruction/digits/mae/hidden"]
    predicted = tensors["reconstruction/digits/mae/predicted"]
    assert hidden.sum((1, 2)).tolist() == [10.0] * 4  # of 16 patches, 0.6
    assert predicted.shape == (4, 1, 8, 8)
    data = datasets.load("data/digits.safetensors")
    mae = extract_maps.load_mae(
        weights("mae")[0],
        load_network(weights("plain")[0], None).student.config,
        build(Teacher, commands.TEACHERS["mae"], "t"),
    )
    images = torch.from_numpy(tensors["images/digits"].copy())
    covered = torch.from_numpy(hidden.repeat(2, 1).repeat(2, 2))[:, None] > 0
    images[covered] = 200  # what is hidden must not matter
    from attnprior.analysis.looks import reconstruction

    again = reconstruction(mae, images, data, 0)
    np.testing.assert_array_equal(again["hidden"], hidden)
    np.testing.assert_allclose(again["predicted"], predicted, atol=1e-6)


def test_the_same_bytes_when_repeated(trained, monkeypatch):
    monkeypatch.chdir(trained)
    first = Path(OUT).read_bytes()
    assert extract_maps.main(argv(weights(*ARMS, "mae", "untrained"))) == 0
    assert Path(OUT).read_bytes() == first
    record = json.loads(Path("results/s/maps.run.json").read_text())
    read = [p for p in record["inputs"] if not p.startswith("src/")]
    assert sorted(read) == sorted(["data/digits.safetensors", *weights(*ARMS, "mae", "untrained")])
    assert list(record["outputs"]) == [OUT]


def ranked(header):
    """The normalised images whose tokens are looked at."""
    data = datasets.load("data/digits.safetensors")
    images = torch.from_numpy(data.images[header["ranked_images"]["digits"]["index"]])
    return normalise(images, data.mean, data.std)


def assert_ranks(name, tokens):
    """Compare the ranks of a network with those that NumPy finds of its tokens (n, N, C), layer by layer."""
    (found,) = [e for e in read_maps(OUT, "s").entering if e.name == name]
    assert (found.tokens, found.channels) == tuple(tokens[0].shape[1:])
    for which in ("loose", "strict"):
        ranks = found.ranks(which)
        assert ranks.shape == (len(tokens), len(tokens[0]))
        for layer, own in enumerate(tokens):
            for image, x in enumerate(own.detach().double().numpy()):
                least = found.tolerance(which) * np.linalg.norm(x, 2)
                assert ranks[layer, image] == np.linalg.matrix_rank(x, tol=least)


def relative_svd(tokens):
    """Singular values of tokens (n, N, C) over the largest of each image."""
    values = np.linalg.svd(tokens.detach().double().numpy(), compute_uv=False)
    return values / values[:, :1]


def test_ranks_are_those_of_the_tokens_that_enter_each_layer(maps):
    _, header = maps
    about = header["ranked_images"]["digits"]
    assert about["split"] == "val" and len(about["index"]) == 16
    assert about["index"][:4] == header["images"]["digits"]["index"]
    encoder = load_teacher_encoder(*load_tensors(weights("mae")[0]))
    for name, vit in (("plain", load_network(weights("plain")[0], None).student), ("mae", encoder)):
        patches = patchify(ranked(header), 2)
        _, recorded = vit(ranked(header), record=("tokens",))
        assert_ranks(name, [vit.embed(patches)[0], recorded["tokens"][0]])


@pytest.mark.parametrize(("arm", "shift"), [("copy", 0), ("other", -1)])
def test_ranks_of_students_that_copy_are_those_with_the_copied_maps(maps, arm, shift):
    tensors, header = maps
    network, images = load_network(weights(arm)[0], weights("mae")[0]), ranked(header)
    _, recorded = network.teacher(images.roll(shift, 0), record=("logits",))
    copied = recorded["logits"][0].softmax(-1)  # n H N N
    vit = network.student
    block, (x, _) = vit.blocks[0], vit.embed(patchify(images, 2))  # n N D
    mixed = copied @ block.attn.values(block.norm1(x))  # n H N R
    x = x + block.attn.proj(mixed.transpose(1, 2).flatten(2))
    x = x + block.mlp(block.norm2(x))
    found = tensors[f"student/digits/{arm}/singular"]
    np.testing.assert_allclose(found[1], relative_svd(x), atol=1e-6)
    _, alone = vit(images, record=("tokens",))  # with maps of its own queries and keys
    assert not np.allclose(found[1], relative_svd(alone["tokens"][0]), atol=1e-4)


def test_a_class_token_is_left_out_of_the_grid(tmp_path):
    from attnprior.analysis.looks import attention
    from attnprior.config import Model
    from attnprior.models.vit import build_vit

    model = {**commands.MODEL, "cls_token": True, "pool": "cls", "pos_embed": "sincos2d", "pos_at": "input"}
    vit = build_vit(build(Model, {**model, "alpha": 1.0}, "m"), 0)
    found = attention(vit, torch.randn(3, 1, 8, 8))
    assert found["looked"].shape == (2, 3, 4, 4)
    _, recorded = vit(torch.randn(3, 1, 8, 8), record=("logits",))
    assert recorded["logits"][0].shape[-1] == 17
    assert (found["looked"].sum((-2, -1)) < 1).all()


def test_without_a_validation_split_training_images_are_shown_never_test_images():
    from attnprior.analysis.looks import choose_images

    images = np.arange(10, dtype=np.uint8).repeat(4).reshape(10, 1, 2, 2)
    labels, split = np.array([0] * 5 + [1] * 5), np.array([2, 0, 0, 0, 2, 2, 0, 0, 2, 2])
    data = datasets.Data(images, labels, split, ["a", "b"], [0.5], [0.5], 0)
    chosen, about = choose_images(data)
    assert about == {"split": "train", "index": [1, 6, 2, 7], "classes": ["a", "b", "a", "b"]}
    assert chosen[:, 0, 0, 0].tolist() == [1, 6, 2, 7]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (weights("copy"), "copies teacher mae; give its weights, too"),
        (["fits/adam/seed0/fit.safetensors"], "no student's or teacher's weights"),
        (["runs/letters/plain/seed0/weights.safetensors"], "cannot be read"),
        (["runs/digits/foreign/seed0/weights.safetensors"], "not the weights of a student"),
    ],
)
def test_wrong_files_are_one_line(trained, project, capsys, files, complaint):
    (project / "runs").mkdir()
    for arm in ARMS:
        (project / "runs/digits").mkdir(exist_ok=True)
        (project / "runs/digits" / arm).symlink_to(trained / "runs/digits" / arm)
    save_tensors("runs/digits/foreign/seed0/weights.safetensors", {"x": np.zeros(2)}, {})
    assert extract_maps.main(argv(files)) == 1
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1
    assert not Path(OUT).exists()


def test_another_decoder_than_the_files_is_one_line(trained, project, capsys):
    params = {"compute": commands.COMPUTE, "teachers.mae": {**commands.TEACHERS["mae"]}}
    params["teachers.mae"]["decoder"] = {**commands.DECODER, "embed_dim": 16}
    given = argv(weights("mae"))
    given[given.index("--params") + 1] = json.dumps(params)
    assert extract_maps.main(given) == 1
    err = capsys.readouterr().err
    assert "made with another decoder" in err
    assert err.count("\n") == 1


def test_a_teacher_alone_shows_its_encoder(maps):
    tensors, _ = maps
    data = datasets.load("data/digits.safetensors")
    encoder = load_teacher_encoder(*load_tensors(weights("untrained")[0]))
    shown = normalise(torch.from_numpy(tensors["images/digits"]), data.mean, data.std)
    _, recorded = encoder(shown, record=("logits",))
    expected = recorded["logits"][1].softmax(-1).mean((1, 2))
    np.testing.assert_allclose(
        tensors["teacher/digits/untrained/looked"][1].reshape(4, 16), expected, atol=1e-6
    )


def test_students_without_attention_have_ranks_alone_and_are_named(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "teachers", "fits"):
        (tmp_path / name).symlink_to(trained / name)
    mixer = commands.train("mixer", model=MIXER, recipe=STILL, init=IMPULSE)
    assert train_student.main(mixer) == 0
    assert extract_maps.main(argv(weights("mixer", "mae"))) == 0
    tensors, header = load_tensors(OUT, "numpy")
    assert header["without_attention"] == [["digits", "mixer"]]
    assert [n["name"] for n in header["networks"]] == ["mae"]
    assert [k for k in tensors if "mixer" in k] == ["student/digits/mixer/singular"]
    network = load_network(weights("mixer")[0], None)
    first = network.student.embed(ranked(header))  # n C y x
    second = network.student.blocks[0](first)
    assert_ranks("mixer", [first.flatten(2).mT, second.flatten(2).mT])
    with pytest.raises(UserError, match="cannot be shown"):
        attention(network, torch.zeros(1, 1, 8, 8))
