from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnprior.config import Init
from attnprior.init.filters import build_convmixer
from attnprior.models.freeze import freeze_spatial, fused
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


def trained_steps(network, steps=3):
    recipe = replace(RECIPE, weight_decay=0.5)
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
