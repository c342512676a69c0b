"""The formula against the counter of a real first batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior.analysis import flops, sizes
from attnprior.config import (
    Decoder,
    Fit,
    Init,
    Inputs,
    Model,
    Probe,
    Recipe,
    Student,
    Teacher,
    Transfer,
    build,
)
from attnprior.data.augment import Shifted
from attnprior.init import impulse
from attnprior.models.checks import validate_model
from attnprior.models.freeze import freeze_encoder, freeze_spatial
from attnprior.models.mae import build_mae, encoder_config
from attnprior.models.position import fixed_code
from attnprior.models.student_checks import FILTERS
from attnprior.models.transfer_checks import validate_transfer
from attnprior.models.vit import build_vit
from attnprior.train.engine import training_flops
from attnprior.train.flops import count_flops
from attnprior.train.pretrain import Pretraining
from attnprior.train.students import build_network
from attnprior.train.supervised import Network, Supervised
from attnprior.workflow import params
from tests.oracle import FREE, MIXER, MODEL
from tests.train.small import RECIPE

ROOT = Path(__file__).resolve().parents[2]
LABELS = 10


@st.composite
def models(draw) -> Model:
    """Models of every structure that the settings allow, small."""
    free, value = draw(st.booleans()), draw(st.booleans())
    pos_at = draw(st.sampled_from(["input", "none"] if free else ["input", "qk", "none"]))
    codes = ["sincos2d", "learned", "identity", *(["rope"] if pos_at == "qk" else [])]
    pos_embed = "none" if pos_at == "none" else draw(st.sampled_from(codes))
    cls_token = not free and draw(st.booleans())
    alphas = {"qk": [1.0] if pos_embed == "rope" else [0.0, 0.1, 1.0], "input": [0.5, 1.0], "none": [1.0]}
    model = replace(
        MODEL,
        image_size=8,
        in_chans=draw(st.sampled_from([1, 3])),
        num_classes=draw(st.integers(2, 7)),
        patch_size=draw(st.sampled_from([2, 4])),
        patch_norm=draw(st.booleans()),
        embed_dim=draw(st.sampled_from([16, 32])),
        depth=draw(st.integers(1, 3)),
        num_heads=draw(st.sampled_from([1, 2, 4])),
        mlp_ratio=draw(st.sampled_from([1.0, 2.5, 4.0])),
        attention="free" if free else "qk",
        value=value,
        qkv_bias=(value or not free) and draw(st.booleans()),
        proj_bias=draw(st.booleans()),
        pos_embed=pos_embed,
        pos_at=pos_at,
        alpha=draw(st.sampled_from(alphas[pos_at])),
        cls_token=cls_token,
        pool=draw(st.sampled_from(["mean", "mean_fc_norm", *(["cls"] if cls_token else [])])),
    )
    validate_model(model, "models.drawn")
    return model


def recipe(batch: int, epochs: int = 3) -> Recipe:
    return replace(RECIPE, batch_size=batch, epochs=epochs)


def images(model: Model, count: int = LABELS) -> tuple[Shifted, torch.Tensor]:
    pixels = torch.zeros(count, model.in_chans, 8, 8, dtype=torch.uint8)
    return Shifted(pixels, [0.5] * model.in_chans, [0.5] * model.in_chans, 1), torch.zeros(count).long()


def student(transfer: Transfer, **changes) -> Student:
    shipped = params.load(ROOT)["students"]["random"]
    return replace(build(Student, shipped, "students.random"), transfer=transfer, labels=LABELS, **changes)


@st.composite
def transfers(draw, model: Model) -> tuple[Transfer, Model | None]:
    """Transfers that fit a student, with the model of a teacher of another width where that is allowed."""
    method = draw(st.sampled_from(["none", "copy", "distil", "distil_features"]))
    if method == "none":
        return Transfer("none"), None
    most = model.depth
    layers = draw(
        st.one_of(
            st.integers(1, most).map(lambda n: {"first": n}),
            st.integers(1, most).map(lambda n: {"last": n}),
            st.sets(st.integers(0, most - 1), min_size=1).map(lambda s: {"list": sorted(s)}),
        )
    )
    common = {"layers": layers, "class_token": draw(st.booleans()) if model.cls_token else None}
    if method == "distil_features":
        return Transfer(method, "t", weight=3.0, **common), replace(model, depth=3)
    what = draw(st.sampled_from(["map", "map", "q", "k", "v", "qk", "qv", "kv"]))
    heads = draw(st.one_of(st.just("all"), st.integers(1, model.num_heads).map(lambda n: {"first": n})))
    maps = draw(
        st.sampled_from(
            ["same_image", "other_image", "mean_images", "mean_queries"][: 4 if what == "map" else 2]
        )
    )
    transfer = Transfer(
        method, "t", what, heads=heads, maps=maps, weight=3.0 if method == "distil" else None, **common
    )
    width = draw(st.sampled_from([16, 48])) if what == "map" else model.embed_dim
    return transfer, replace(model, embed_dim=width, depth=3)


@settings(max_examples=40, deadline=None)
@given(models(), st.data())
def test_students_take_what_the_counter_counts(model, data):
    transfer, teacher = data.draw(transfers(model))
    validate_transfer(transfer, model, teacher or model, "students.drawn")
    freeze = "none"
    if teacher is None:
        freeze = data.draw(st.sampled_from(["none", "spatial", "encoder"]))
    run = recipe(data.draw(st.sampled_from([4, 10, 64])))
    frozen = build_vit(encoder_config(teacher), 1).eval().requires_grad_(False) if teacher else None
    vit = build_vit(model, 0)
    if freeze == "spatial":
        freeze_spatial(vit)
    elif freeze == "encoder":
        freeze_encoder(vit, 0)
    objective = Supervised(Network(vit, transfer, frozen), run, 0)
    counted = training_flops(objective, *images(model), run, 0)
    said = flops.student_flops(student(transfer, freeze=freeze), model, run, teacher)
    assert said == pytest.approx(counted, rel=1e-12)
    trained = sum(p.numel() for p in vit.parameters() if p.requires_grad)
    every = sizes.student_parameters(model, Init("random"))
    held = {"none": 0, "spatial": sizes.spatial_parameters(model, Init("random"))}
    held["encoder"] = every - sizes.head_parameters(model)
    assert every - held[freeze] == trained


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_convmixers_take_what_the_counter_counts(data):
    kind, freeze = (data.draw(st.sampled_from(c)) for c in (list(FILTERS), ["none", "spatial"]))
    freeze = "none" if kind == "learned" else freeze
    model = replace(
        MIXER,
        in_chans=data.draw(st.sampled_from([1, 3])),
        patch_size=data.draw(st.sampled_from([2, 4])),
        kernel_size=data.draw(st.sampled_from([1, 3, 5])),
        depth=data.draw(st.integers(1, 3)),
        gelu_after_spatial=data.draw(st.booleans()),
    )
    numbers = {"entries": 1, "variance": 0.5, "squared_norm": 0.3}
    own = {key: numbers[key] for key in FILTERS[kind]}
    init = Init("filters", kind=kind, heads=data.draw(st.sampled_from([1, 5, 16])), **own)
    settled, run = (
        student(Transfer("none"), init=init, freeze=freeze),
        recipe(data.draw(st.sampled_from([4, 64]))),
    )
    network = build_network(settled, model, run, 0, None, None, None, "s")
    counted = training_flops(Supervised(network, run, 0), *images(model), run, 0)
    assert flops.student_flops(settled, model, run, None) == pytest.approx(counted, rel=1e-12)
    parameters = list(network.student.parameters())
    assert sizes.student_parameters(model, init) == sum(p.numel() for p in parameters)
    held = sizes.spatial_parameters(model, init) if freeze == "spatial" else 0
    assert sum(p.numel() for p in parameters if not p.requires_grad) == held
    with torch.inference_mode():
        one = count_flops(lambda: network.student(torch.zeros(1, model.in_chans, 8, 8)))
    assert flops.evaluation(settled, model) == one


@settings(max_examples=12, deadline=None)
@given(
    models().filter(lambda m: m.attention == "qk"),
    st.sampled_from([4, 64]),
    st.sampled_from([0.5, 0.6]),
    st.integers(1, 2),
)
def test_masked_autoencoders_take_what_the_counter_counts(model, batch, ratio, depth):
    decoder = Decoder(embed_dim=24, depth=depth, num_heads=2, mlp_ratio=2.0)
    teacher = Teacher("mae", "m", Probe(10, 0.01, 1), "r", ratio, False, decoder, "random")
    mae, run = build_mae(model, decoder, ratio, False, 0), recipe(batch)
    counted = training_flops(Pretraining(mae, 0), *images(model), run, 0)
    assert flops.teacher_flops(teacher, model, run, LABELS) == pytest.approx(counted, rel=1e-12)
    assert sizes.teacher_parameters(teacher, model) == sum(p.numel() for p in mae.parameters())


def test_untrained_teachers_take_nothing():
    for source in ("random", "student", "file"):
        assert flops.teacher_flops(Teacher(source, "m", Probe(10, 0.01, 1)), MODEL, None, 100) == 0


@given(models())
@settings(max_examples=12, deadline=None)
def test_parameters_are_those_of_the_network(model):
    vit = build_vit(model, 0)
    assert sizes.vit_parameters(model) == sum(p.numel() for p in vit.parameters())
    bare = build_vit(encoder_config(model), 0)
    encoder = Teacher("random", "m", Probe(10, 0.01, 1))
    assert sizes.teacher_parameters(encoder, model) == sum(p.numel() for p in bare.parameters())


@pytest.mark.parametrize(("size", "heads"), [(8, 4), (8, 1), (12, 2)])
def test_fits_take_what_the_counter_counts(size, heads):
    model = replace(MODEL, image_size=size, num_heads=heads)
    position = fixed_code(model)
    offsets = torch.zeros(model.depth, heads, 2, dtype=torch.long)
    target = impulse.targets(offsets, model.grid, model.grid)
    weights = torch.rand(2, model.depth, heads, model.head_dim, model.embed_dim)
    step = count_flops(lambda: impulse.gradient(weights, position, target, 0.1))
    adam = Fit("m", 3, "random", "adam", "each", 0.1, steps=70, lr=0.1, norm_every=0)
    assert flops.fit_flops(adam, model) == 70 * step
    shared = replace(adam, layers="shared", inputs=Inputs("position", "uniform"))
    assert flops.fit_flops(shared, model) == 70 * step * 2 / 3  # two fits for three layers
    assert flops.fit_flops(replace(shared, inputs=Inputs("position", "position")), model) == 70 * step / 3
    rng = torch.Generator().manual_seed(0)
    closed = count_flops(lambda: impulse.fit_svd(position, target, model.head_dim, 1.0, 0.1, 1.0, rng))
    svd = Fit("m", 3, "random", "svd", "each", 0.1, signal=1.0, noise=0.1, norm=1.0)
    assert 0.8 * flops.fit_flops(svd, model) < closed <= flops.fit_flops(svd, model)


def test_fits_of_free_queries_and_keys_take_what_the_counter_counts():
    target = torch.zeros(3, 4, 16, 16)
    weights = torch.rand(2, 3, 4, 8, 16)
    step = count_flops(lambda: impulse.gradient(weights, torch.eye(16), target, 0.1))
    adam = Fit("m", 3, "random", "adam", "each", 0.1, steps=70, lr=0.1, norm_every=0)
    assert flops.fit_flops(adam, FREE) == 70 * step
    assert 3 * sizes.fit_weights(FREE) == weights.numel()


def test_files_are_as_large_as_said(tmp_path):
    from attnprior.files import save_tensors

    vit = build_vit(MODEL, 0)
    save_tensors(tmp_path / "w", vit.state_dict(), {"model": vars(MODEL)})
    said = sizes.tensors_file(sizes.vit_parameters(MODEL), sizes.tensors_in(MODEL.depth))
    assert said == pytest.approx((tmp_path / "w").stat().st_size, rel=0.05)
    zeros = np.zeros(700, np.int64)
    made = {"logits": np.zeros((700, 10), np.float32), "labels": zeros, "index": zeros, "split": zeros}
    save_tensors(tmp_path / "p", made, {"classes": [str(c) for c in range(10)]})
    assert sizes.predictions_file(700, 10) == pytest.approx((tmp_path / "p").stat().st_size, rel=0.02)
