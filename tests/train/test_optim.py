from dataclasses import replace

import pytest
import torch

from attnprior.models.mae import build_mae
from attnprior.models.vit import build_vit
from attnprior.train.optim import Optimizer, decays, layer_scale
from attnprior.train.sharding import restore
from tests.oracle import DECODER, MODEL, STANDARD
from tests.train import small

RECIPE = replace(small.RECIPE, betas=(0.9, 0.95), weight_decay=0.3)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


def step_loss(model, step):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
    return model(x).square().sum()


SETTINGS = {
    "adamw": {},
    "adam": {"optimizer": "adam", "eps": 1e-3},
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "sgd without momentum": {"optimizer": "sgd", "momentum": 0.0},
}


def torchs(kind, groups):
    match kind:
        case "adamw":
            return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=True)
        case "adam":
            return torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-3, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)
    return torch.optim.SGD(groups, lr=0.1, fused=True)


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_updates_equal_those_of_torchs_fused_optimizer_bit_for_bit(kind, decay):
    ours, theirs = network(), network()
    optimizer = Optimizer(ours.named_parameters(), replace(RECIPE, decay=decay, **SETTINGS[kind]))
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.3},
        {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.3 * (decay == "all")},
    ]
    expected = torchs(kind, groups)
    for step in range(20):
        lr = 0.01 / (step + 1)
        step_loss(ours, step).backward()
        optimizer.step(lr)
        optimizer.zero_grad()
        for group in expected.param_groups:
            group["lr"] = lr
        step_loss(theirs, step).backward()
        expected.step()
        expected.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


LARS = replace(RECIPE, optimizer="lars", momentum=0.9, trust=0.001, weight_decay=0.1)


def test_lars_scales_the_step_of_a_matrix_by_its_norm_over_that_of_its_gradient():
    model = network()
    optimizer = Optimizer(model.named_parameters(), LARS)
    moment = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step in range(3):
        step_loss(model, step).backward()
        for name, p in model.named_parameters():
            g = p.grad.clone()
            if p.ndim > 1:
                g = g + 0.1 * expected[name]
                g = g * 0.001 * expected[name].norm() / g.norm()
            moment[name] = 0.9 * moment[name] + g
            expected[name] = expected[name] - 0.5 * moment[name]
        optimizer.step(0.5)
        optimizer.zero_grad()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name])


def test_lars_moves_a_matrix_of_zeros_by_its_gradient():
    model = network()
    model[0].weight.data.zero_()
    optimizer = Optimizer(model.named_parameters(), replace(LARS, weight_decay=0.0))
    step_loss(model, 0).backward()
    grad = model[0].weight.grad.clone()
    optimizer.step(0.5)
    torch.testing.assert_close(model[0].weight.data, -0.5 * grad)


def test_rates_fall_from_block_to_block_as_in_maes_code():
    names = ["cls_token", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.11.mlp.fc1.bias"]
    assert [layer_scale(n, 12, 0.75) for n in names] == pytest.approx([0.75**13, 0.75**13, 0.75**12, 0.75])
    assert [layer_scale(n, 12, 0.75) for n in ("head.bias", "norm.weight", "fc_norm.bias")] == [1, 1, 1]


def test_each_blocks_parameters_move_at_their_own_rate():
    mae = build_vit(MODEL, 0)
    optimizer = Optimizer(
        mae.named_parameters(), replace(RECIPE, optimizer="sgd", momentum=0.0, layer_decay=0.5)
    )
    before = {n: p.detach().clone() for n, p in mae.named_parameters()}
    for p in mae.parameters():
        p.grad = torch.ones_like(p)
    optimizer.groups = [(scale, 0.0, members) for scale, _, members in optimizer.groups]
    optimizer.step(0.25)
    moves = {n: (before[n] - p).mean().item() for n, p in mae.named_parameters()}
    for name, move in moves.items():
        assert move == pytest.approx(0.25 * layer_scale(name, MODEL.depth, 0.5), rel=1e-4), name
    assert len({scale for scale, _, _ in optimizer.groups}) == MODEL.depth + 2


@pytest.mark.parametrize("recipe", [*(replace(RECIPE, **s) for s in SETTINGS.values()), LARS])
def test_a_restored_state_goes_on_as_if_never_saved(recipe):
    straight = network()
    optimizer = Optimizer(straight.named_parameters(), recipe)
    resumed = None
    for step in range(6):
        if step == 3:
            resumed = network()
            resumed.load_state_dict(straight.state_dict())
            other = Optimizer(resumed.named_parameters(), recipe)
            restore(other.state_dict(), optimizer.state_dict())
        for model, opt in [(straight, optimizer)] + ([(resumed, other)] if resumed else []):
            step_loss(model, step).backward()
            opt.step(0.01)
            opt.zero_grad()
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recipe", [*(replace(RECIPE, **s) for s in SETTINGS.values()), LARS])
def test_a_raised_skip_flag_leaves_parameters_as_they_are(recipe):
    model = network()
    before = [p.clone() for p in model.parameters()]
    optimizer = Optimizer(model.named_parameters(), recipe)
    step_loss(model, 0).backward()
    optimizer.step(0.1, torch.tensor(1.0))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step(0.1, torch.tensor(0.0))
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].requires_grad_(False)
    assert [n for n, _ in Optimizer(model.named_parameters(), RECIPE).named] == ["2.weight", "2.bias"]


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_only_matrices_decay_and_no_token(model):
    mae = build_mae(model, DECODER, 0.5, False, 0)
    decayed = {n for n, p in mae.named_parameters() if decays(n, p)}
    assert {n for n in decayed if n.endswith((".bias", "cls_token", "mask_token", "pos_embed"))} == set()
    assert not any("norm" in n for n in decayed)
    assert {
        "encoder.blocks.0.attn.qkv.weight",
        "encoder.patch_embed.proj.weight",
        "decoder.pred.weight",
    } <= decayed


def test_gradient_norm_is_that_of_all_gradients_together():
    model = network()
    optimizer = Optimizer(model.named_parameters(), RECIPE)
    step_loss(model, 0).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(optimizer.gradient_norm(), expected)
    optimizer.scale_gradients(torch.tensor(0.5))
    torch.testing.assert_close(optimizer.gradient_norm(), expected / 2)
