"""Every kind of transfer against plain torch in double precision: no code of the project but its weights."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior.config import Transfer
from attnprior.models.mae import encoder_config
from attnprior.models.vit import build_vit
from attnprior.train.engine import Batch, train
from attnprior.train.supervised import Network, Supervised
from tests.oracle import STANDARD, random_images, randomised
from tests.train.small import RECIPE, NoCheckpoint, data, network

MODEL = replace(STANDARD, embed_dim=16, num_heads=4, depth=3, num_classes=3)
LABELS = torch.tensor([0, 1, 2, 0, 1])


def pair(transfer, student=MODEL, teacher=MODEL) -> Network:
    """A network in double precision whose student and teacher have nothing in common."""
    vits = [
        randomised(build_vit(m, seed), seed + 1).double()
        for seed, m in ((0, student), (1, encoder_config(teacher)))
    ]
    return Network(vits[0], transfer, vits[1].eval().requires_grad_(False))


def split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def run(vit, images, change=lambda layer, q, k, v, own: own):
    """Return (logits, per layer q k v and map, block outputs) of a standard ViT, written out.

    `change` gets each layer's own parts and map and returns (map, v).
    """
    m, b = vit.config, len(images)
    p = m.patch_size
    patches = (
        images.view(b, m.in_chans, m.grid, p, m.grid, p).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    )
    x = patches @ vit.patch_embed.proj.weight.flatten(1).T + vit.patch_embed.proj.bias
    if m.cls_token:
        x = torch.cat([vit.cls_token.expand(b, -1, -1), x], 1)
    x = x + vit.pos_embed.double()
    parts, outputs = [], []
    for layer, block in enumerate(vit.blocks):
        norm = F.layer_norm(x, (m.embed_dim,), block.norm1.weight, block.norm1.bias, m.norm_eps)
        w, bias = block.attn.qkv.weight.chunk(3), block.attn.qkv.bias.chunk(3)
        q, k, v = (split(norm @ w[i].T + bias[i], m.num_heads) for i in range(3))
        own = (q @ k.transpose(-1, -2) * m.head_dim**-0.5).softmax(-1)
        parts.append({"q": q, "k": k, "v": v, "map": own})
        used, value = change(layer, q, k, v, (own, v))
        out = (used @ value).transpose(1, 2).flatten(2)
        x = x + out @ block.attn.proj.weight.T + block.attn.proj.bias
        norm = F.layer_norm(x, (m.embed_dim,), block.norm2.weight, block.norm2.bias, m.norm_eps)
        x = x + block.mlp.fc2(F.gelu(block.mlp.fc1(norm)))
        outputs.append(x)
    pooled = x[:, m.cls_token :].mean(1)
    return vit.head(vit.fc_norm(pooled)), parts, outputs


def patch_map(logits_of, front):
    """Return the map among the patches: softmax over patches alone."""
    q, k = logits_of["q"][:, :, front:], logits_of["k"][:, :, front:]
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)


COPY = Transfer("copy", "t", "map", {"first": 2}, "all", True, "same_image")


@pytest.mark.parametrize("what", ["q", "k", "v", "qk", "qv", "kv", "map"])
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("heads", ["all", {"first": 1}, {"list": [1, 3]}])
@pytest.mark.parametrize("layers", [{"first": 2}, {"last": 1}, {"list": [0, 2]}])
def test_copying_equals_attention_written_out(what, class_token, heads, layers):
    net = pair(replace(COPY, what=what, class_token=class_token, heads=heads, layers=layers))
    images = random_images(model=MODEL).double()
    _, theirs, _ = run(net.teacher, images)
    which = {"first": [0, 1], "last": [2], "list": [0, 2]}[next(iter(layers))]
    some = range(4) if heads == "all" else [0] if "first" in heads else [1, 3]
    front = 0 if class_token else 1

    def change(layer, q, k, v, own):
        if layer not in which:
            return own
        maps, value = own[0].clone(), own[1].clone()
        for h in some:
            mine = {"q": q[:, h].clone(), "k": k[:, h].clone(), "v": v[:, h].clone()}
            for part in what if what != "map" else ():
                mine[part][:, front:] = theirs[layer][part][:, h, front:]
            if what == "map" and front:
                share = own[0][:, h, 1:, :1]
                maps[:, h, 1:, 1:] = (1 - share) * patch_map(theirs[layer], 1)[:, h]
            elif what == "map":
                maps[:, h] = theirs[layer]["map"][:, h]
            else:
                maps[:, h] = (mine["q"] @ mine["k"].transpose(-1, -2) * MODEL.head_dim**-0.5).softmax(-1)
            value[:, h] = mine["v"]
        return maps, value

    expected, _, _ = run(net.student, images, change)
    torch.testing.assert_close(net.student(images, copied=net.copied(images, None, None))[0], expected)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("how", ["mean_images", "mean_queries", "other_image"])
def test_averaged_and_foreign_maps_are_copied(how, class_token):
    net = pair(replace(COPY, maps=how, class_token=class_token))
    images, other = random_images(model=MODEL).double(), torch.tensor([3, 0, 4, 1, 2])
    _, theirs, _ = run(net.teacher, images)
    front = 0 if class_token else 1

    def change(layer, q, k, v, own):
        if layer > 1:
            return own
        given = patch_map(theirs[layer], front)
        if how == "mean_images":
            given = given.mean(0, keepdim=True).expand_as(given)
        elif how == "mean_queries":
            given = given.mean(2, keepdim=True).expand_as(given)
        else:
            given = given[other]
        maps = own[0].clone()
        maps[:, :, front:, front:] = given * (1 - own[0][:, :, front:, :front].sum(-1, keepdim=True))
        return maps, v

    expected, _, _ = run(net.student, images, change)
    given_other = other if how == "other_image" else None
    torch.testing.assert_close(net.student(images, copied=net.copied(images, given_other, None))[0], expected)


@pytest.mark.parametrize("what", ["map", "q", "k", "v", "qk", "qv", "kv"])
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("heads", ["all", {"list": [0, 2]}])
@pytest.mark.parametrize("maps", ["same_image", "mean_images", "mean_queries"])
def test_distillation_equals_its_definition(what, class_token, heads, maps):
    if what != "map" and maps != "same_image":
        return  # refused by the checks of settings
    transfer = Transfer("distil", "t", what, {"last": 2}, heads, class_token, maps, 2.5)
    net, images = pair(transfer), random_images(model=MODEL).double()
    values = Supervised(net, RECIPE, 0)(Batch(images, LABELS, 0, 0))
    logits, own, _ = run(net.student, images)
    _, theirs, _ = run(net.teacher, images)
    some, front = (list(range(4)) if heads == "all" else [0, 2]), 0 if class_token else 1
    total = 0.0
    for layer in (1, 2):
        if what == "map":
            p, q = (patch_map(parts[layer], front)[:, some] for parts in (theirs, own))
            if maps == "mean_images":
                p = p.mean(0, keepdim=True).expand_as(q)
            if maps == "mean_queries":
                p = p.mean(2, keepdim=True).expand_as(q)
            total = total - (p * q.log()).sum() / q.shape[:3].numel()
        else:
            for part in what:
                gap = (own[layer][part] - theirs[layer][part])[:, some, front:]
                total = total + gap.square().sum() / gap.numel()
    torch.testing.assert_close(values["transfer_loss"], total)
    torch.testing.assert_close(values["loss"], F.cross_entropy(logits, LABELS) + 2.5 * total)
    if what == "map":
        assert 0 <= values["transfer_kl"] < values["transfer_loss"]
    else:
        assert "transfer_kl" not in values


@pytest.mark.parametrize("class_token", [True, False])
def test_features_are_the_outputs_of_blocks(class_token):
    transfer = Transfer("distil_features", "t", layers={"list": [0, 2]}, class_token=class_token, weight=0.5)
    net, images = pair(transfer), random_images(model=MODEL).double()
    values = Supervised(net, RECIPE, 0)(Batch(images, LABELS, 0, 0))
    outputs = [run(vit, images)[2] for vit in (net.student, net.teacher)]
    front = 0 if class_token else 1
    gaps = [(outputs[0][i] - outputs[1][i])[:, front:].square().mean() for i in (0, 2)]
    torch.testing.assert_close(values["transfer_loss"], sum(gaps))
    assert set(values) == {"loss", "task_loss", "transfer_loss", "train_top1"}


def test_the_last_layers_of_unlike_depths_belong_together():
    deep = replace(MODEL, depth=5)
    transfer = Transfer("distil_features", "t", layers={"last": 2}, class_token=True, weight=1.0)
    net, images = pair(transfer, MODEL, deep), random_images(model=MODEL).double()
    values = Supervised(net, RECIPE, 0)(Batch(images, LABELS, 0, 0))
    own, theirs = (run(vit, images)[2] for vit in (net.student, net.teacher))
    expected = sum((own[1 + i] - theirs[3 + i]).square().mean() for i in (0, 1))
    torch.testing.assert_close(values["transfer_loss"], expected)


@pytest.mark.parametrize("class_token", [True, False])
def test_a_teacher_without_class_token_drives_the_patches_of_a_student_that_has_one(class_token):
    net = pair(
        replace(COPY, class_token=False),
        *((MODEL, replace(MODEL, cls_token=False))[:: 1 if class_token else -1]),
    )
    images = random_images(model=MODEL).double()
    before = net.student(images, copied=net.copied(images, None, None))[0]
    net.teacher.blocks[0].attn.qkv.weight[:32] += 0.1
    assert not torch.allclose(net.student(images, copied=net.copied(images, None, None))[0], before)


@pytest.mark.parametrize("what", ["map", "q", "k", "v", "qk", "qv", "kv"])
@pytest.mark.parametrize("heads", ["all", {"list": [1, 2]}])
def test_what_is_copied_gets_no_gradient_in_the_student_and_the_teacher_gets_none(what, heads):
    net = pair(replace(COPY, what=what, heads=heads))
    Supervised(net, RECIPE, 0)(Batch(random_images(model=MODEL).double(), LABELS, 0, 0))["loss"].backward()
    some = range(4) if heads == "all" else [1, 2]
    for layer, block in enumerate(net.student.blocks):
        gradient = block.attn.qkv.weight.grad.view(3, 4, 4, 16)
        for part, name in enumerate("qkv"):
            for h in range(4):
                copied = layer < 2 and h in some and name in ("qk" if what == "map" else what)
                assert (gradient[part, h].abs().max() == 0) == copied
    assert all(p.grad is None for p in net.teacher.parameters())


@pytest.mark.parametrize("what", ["map", "q", "v", "kv"])
def test_distilling_reaches_no_teacher(what):
    net = pair(Transfer("distil", "t", what, {"first": 3}, "all", True, "same_image", 1.0))
    net.teacher.requires_grad_(True)
    Supervised(net, RECIPE, 0)(Batch(random_images(model=MODEL).double(), LABELS, 0, 0))["loss"].backward()
    assert all(p.grad is None for p in net.teacher.parameters())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_teacher_that_is_the_student_changes_nothing(data):
    what = data.draw(st.sampled_from(["map", "q", "k", "v", "qk", "qv", "kv"]))
    layers = data.draw(
        st.one_of(
            st.integers(1, 3).map(lambda n: {"first": n}),
            st.integers(1, 3).map(lambda n: {"last": n}),
            st.sets(st.integers(0, 2), min_size=1).map(lambda s: {"list": sorted(s)}),
        )
    )
    heads = data.draw(
        st.one_of(
            st.just("all"),
            st.integers(1, 4).map(lambda n: {"first": n}),
            st.sets(st.integers(0, 3), min_size=1).map(lambda s: {"list": sorted(s)}),
        )
    )
    net = pair(replace(COPY, what=what, layers=layers, heads=heads, class_token=data.draw(st.booleans())))
    state = {k: v for k, v in net.student.state_dict().items() if not k.startswith(("fc_norm", "head"))}
    net.teacher.load_state_dict(state, strict=False)
    images = random_images(model=MODEL).double()
    copied = net.copied(images, None, None)
    torch.testing.assert_close(net.student(images, copied=copied)[0], net.student(images)[0])
    recorded = [net.student(images, copied=c, record=("logits",))[1]["logits"] for c in (copied, None)]
    for ours, plain in zip(*recorded, strict=True):  # the maps in figures
        torch.testing.assert_close(ours.softmax(-1), plain.softmax(-1))


# One other value for every key of a transfer.
BASES = {
    "copy": {"what": "map", "layers": {"first": 1}, "heads": "all", "maps": "same_image"},
    "distil": {"what": "map", "layers": {"first": 1}, "heads": "all", "maps": "same_image", "weight": 3.0},
    "distil_features": {"layers": {"first": 1}, "weight": 3.0},
}
OTHERS = {
    "what": ["q", "k", "v", "qv", "kv"],
    "layers": [{"first": 2}, {"last": 1}, {"list": [1]}],
    "heads": [{"first": 1}, {"list": [1]}],
    "class_token": [False],
    "maps": ["other_image", "mean_images", "mean_queries"],
    "weight": [
        1.0,
        {"schedule": "linear", "from": 3.0, "to": 0.0},
        {"schedule": "cosine", "from": 3.0, "to": 0.1},
    ],
}


def trained(method, **changes):
    """Return the weights of a tiny student after two epochs."""
    model = replace(STANDARD, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    settings_of = BASES[method] | {"class_token": True} | changes
    net = network("none")
    net.transfer = Transfer(method, "t", **settings_of)
    net.student, net.teacher = (
        build_vit(model, 0),
        randomised(build_vit(encoder_config(model), 9)).requires_grad_(False),
    )
    recipe = replace(RECIPE, epochs=3)
    train(net.student, Supervised(net, recipe, 0), *data(), recipe, 0, NoCheckpoint(Path()))
    return torch.cat([p.detach().flatten() for p in net.student.parameters()])


@pytest.mark.parametrize("method", list(BASES))
def test_every_key_of_a_transfer_changes_the_training(method):
    found = [trained(method)]
    for key in [*BASES[method], "class_token"]:
        found += [trained(method, **{key: value}) for value in OTHERS[key]]
    for i, one in enumerate(found):
        for j, other in enumerate(found[:i]):
            # {last: 1} and {list: [1]} of two layers are two names of one thing, as are the second heads.
            same = {OTHERS["layers"].index(v) for v in ({"last": 1}, {"list": [1]})}
            first = 1 + (len(OTHERS["what"]) if "what" in BASES[method] else 0)
            if {i, j} == {first + s for s in same}:
                assert torch.equal(one, other)
            else:
                assert not torch.equal(one, other), (i, j)


def test_methods_differ_and_a_training_repeats():
    weights = [trained(m) for m in BASES]
    assert not any(torch.equal(a, b) for a, b in pairwise([*weights, weights[0]]))
    assert torch.equal(trained("copy"), weights[0])
