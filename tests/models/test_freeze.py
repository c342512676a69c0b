from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior.config import Init
from attnprior.init.filters import build_convmixer
from attnprior.models.freeze import freeze_encoder, freeze_spatial, fused
from attnprior.models.vit import ViT, build_vit
from attnprior.train.optim import Optimizer
from tests.oracle import FREE, MIXER, MODEL, STANDARD, random_images, randomised
from tests.train.small import RECIPE

MODELS = [
    MODEL,
    STANDARD,
    FREE,
    replace(MODEL, alpha=0.0),
    replace(MODEL, value=False),
    replace(FREE, value=False),
]


DECAYING = replace(RECIPE, weight_decay=0.5)


def trained_steps(network, steps=3, recipe=DECAYING):
    optimizer = Optimizer(network.named_parameters(), recipe)
    for step in range(steps):
        F.cross_entropy(network(random_images(seed=step))[0], torch.arange(5)).backward()
        optimizer.step(0.01)
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("model", MODELS)
def test_frozen_queries_and_keys_stay_and_all_else_learns(model):
    vit, before = (randomised(build_vit(model, 0)) for _ in range(2))
    freeze_spatial(vit)
    torch.testing.assert_close(vit(random_images())[0], before(random_images())[0])
    optimizer = trained_steps(vit)
    assert not any(n.endswith(("attn.q", "attn.k")) or ".qk" in n for n, _ in optimizer.named)
    state, old = fused(vit), before.state_dict()
    assert state.keys() == old.keys()
    rows = 2 * model.embed_dim
    for name, tensor in state.items():
        if ".qkv." in name:
            assert torch.equal(tensor[:rows], old[name][:rows])
            assert not torch.equal(tensor[rows:], old[name][rows:])
        elif ".qk." in name or name.endswith(("attn.q", "attn.k")):
            assert torch.equal(tensor, old[name])
        else:
            assert not torch.equal(tensor, old[name]), name
    again = ViT(model)
    again.load_state_dict(state)
    torch.testing.assert_close(again(random_images())[0], vit(random_images())[0])


def test_freezing_the_attention_takes_its_queries_and_keys_out_of_the_count():
    vit = build_vit(MODEL, 0)
    total = sum(p.numel() for p in vit.parameters())
    freeze_spatial(vit)
    assert sum(p.numel() for p in vit.parameters()) == total
    assert sum(p.numel() for p in vit.parameters() if p.requires_grad) == total - 3 * 2 * 32**2


@pytest.mark.parametrize("kind", ["random", "softmax", "perm"])
def test_frozen_filters_and_their_bias_stay(kind):
    init = Init("filters", kind=kind, heads=16, squared_norm=None if kind != "perm" else 0.3)
    network, before = build_convmixer(MIXER, init, 0), build_convmixer(MIXER, init, 0)
    freeze_spatial(network)
    trained_steps(network)
    for name, tensor in fused(network).items():
        moved = not torch.equal(tensor, before.state_dict()[name])
        assert moved == (".spatial." not in name), name


LEARNED = replace(MODEL, pos_embed="learned", pos_at="input", cls_token=True, pool="cls")
ENCODERS = [MODEL, STANDARD, FREE, LEARNED, replace(MODEL, pool="mean_fc_norm")]
LARS = replace(
    RECIPE, optimizer="lars", betas=None, eps=None, momentum=0.9, trust=0.001, weight_decay=0.0, decay=None
)


@pytest.mark.parametrize("model", ENCODERS)
@pytest.mark.parametrize("recipe", [LARS, DECAYING])
def test_of_a_frozen_encoder_no_bit_moves_and_the_head_learns(model, recipe):
    vit = randomised(build_vit(model, 0))
    before = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    freeze_encoder(vit, 0)
    start = fused(vit)
    vit.train()
    optimizer = trained_steps(vit, recipe=recipe)
    assert [n for n, _ in optimizer.named] == ["head.1.weight", "head.1.bias"]
    state = fused(vit)
    assert state.keys() == before.keys()
    for name, tensor in state.items():
        assert tensor.dtype == before[name].dtype and tensor.shape == before[name].shape
        if name.startswith("head."):
            assert not torch.equal(tensor, start[name])
        else:
            assert torch.equal(tensor, before[name]), name


def test_a_frozen_encoder_builds_no_graph():
    vit = build_vit(LEARNED, 0)
    freeze_encoder(vit, 0)
    logits, recorded = vit.train()(random_images(), record=("tokens", "features"))
    assert not any(t.requires_grad for tensors in recorded.values() for t in tensors)
    following = [node for node, _ in logits.grad_fn.next_functions if node is not None]
    assert {type(node).__name__ for node in following} == {"AccumulateGrad", "TBackward0"}  # bias, weight


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(-3, 3), st.floats(0.05, 20), st.integers(2, 9))
def test_the_folded_head_does_what_norm_and_linear_map_do(seed, shift, scale, classes):
    model = replace(MODEL, num_classes=classes)
    vit = build_vit(model, 0)
    freeze_encoder(vit, 0)
    rng = torch.Generator().manual_seed(seed)
    norm = torch.nn.BatchNorm1d(model.embed_dim, eps=1e-6, affine=False)
    linear = torch.nn.Linear(model.embed_dim, classes)
    for parameter in linear.parameters():
        parameter.data.normal_(generator=rng)
    features = [shift + scale * torch.randn(16, model.embed_dim, generator=rng) for _ in range(3)]
    for batch in features:
        norm(batch)
    vit.head[0].load_state_dict(norm.state_dict())
    vit.head[1].load_state_dict(linear.state_dict())
    state = fused(vit)
    found = F.linear(features[0], state["head.weight"], state["head.bias"])
    expected = linear(norm.eval()(features[0]))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * max(1, abs(shift) / scale))
    again = ViT(model)
    again.load_state_dict(state)
    torch.testing.assert_close(
        again(random_images())[0], vit.eval()(random_images())[0], rtol=1e-4, atol=1e-4
    )


def test_the_head_of_a_frozen_encoder_starts_as_in_the_paper_from_the_seed():
    model = replace(MODEL, embed_dim=128, num_classes=200)
    heads = []
    for seed in (0, 0, 1):
        vit = build_vit(model, 0)
        freeze_encoder(vit, seed)
        heads.append(vit.head[1])
        assert vit.head[0].eps == 1e-6 and not list(vit.head[0].parameters())
    own, again, other = (h.weight for h in heads)
    assert torch.equal(own, again) and not torch.equal(own, other)
    assert own.std().item() == pytest.approx(0.01, rel=0.03) and abs(own.mean().item()) < 3e-4
    assert (own.abs() > 0.02).float().mean().item() == pytest.approx(0.0455, abs=0.01)  # normal, not uniform
    assert not heads[0].bias.any()
