import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.config import Recipe
from attnprior.models.mae import build_mae
from attnprior.train.optim import AdamW, decays, learning_rate
from tests.oracle import DECODER, MODEL, STANDARD

RECIPE = Recipe(
    epochs=40,
    batch_size=32,
    lr=0.002,
    min_lr=0.0001,
    warmup_epochs=4,
    betas=(0.9, 0.95),
    weight_decay=0.3,
    grad_clip=0.0,
    label_smoothing=0.0,
    drop_path=0.0,
    shift=1,
)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


def step_loss(model, step):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
    return model(x).square().sum()


def test_updates_equal_torchs_fused_adamw_bit_for_bit():
    ours, theirs = network(), network()
    optimizer = AdamW(ours.named_parameters(), RECIPE)
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.3},
        {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    expected = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
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


def test_a_restored_state_goes_on_as_if_never_saved():
    straight = network()
    optimizer = AdamW(straight.named_parameters(), RECIPE)
    resumed = None
    for step in range(6):
        if step == 3:
            resumed = network()
            resumed.load_state_dict(straight.state_dict())
            other = AdamW(resumed.named_parameters(), RECIPE)
            other.load_state_dict(optimizer.state_dict())
        for model, opt in [(straight, optimizer)] + ([(resumed, other)] if resumed else []):
            step_loss(model, step).backward()
            opt.step(0.01)
            opt.zero_grad()
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_raised_skip_flag_leaves_parameters_as_they_are():
    model = network()
    before = [p.clone() for p in model.parameters()]
    optimizer = AdamW(model.named_parameters(), RECIPE)
    step_loss(model, 0).backward()
    optimizer.step(0.1, torch.tensor(1.0))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step(0.1, torch.tensor(0.0))
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].requires_grad_(False)
    assert [n for n, _ in AdamW(model.named_parameters(), RECIPE).named] == ["2.weight", "2.bias"]


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
    optimizer = AdamW(model.named_parameters(), RECIPE)
    step_loss(model, 0).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(optimizer.gradient_norm(), expected)
    optimizer.scale_gradients(torch.tensor(0.5))
    torch.testing.assert_close(optimizer.gradient_norm(), expected / 2)


def test_the_rate_warms_up_linearly_and_ends_at_its_floor():
    assert learning_rate(RECIPE, 0) == 0
    assert learning_rate(RECIPE, 1) == pytest.approx(0.0005)
    assert learning_rate(RECIPE, 4) == pytest.approx(0.002)
    assert learning_rate(RECIPE, 22) == pytest.approx((0.002 + 0.0001) / 2)  # half-way down the cosine
    assert learning_rate(RECIPE, 40) == pytest.approx(0.0001)


@given(st.floats(0, 40))
def test_the_rate_is_the_published_formula(epoch):
    if epoch < 4:
        expected = 0.002 * epoch / 4
    else:
        expected = 0.0001 + (0.002 - 0.0001) / 2 * (1 + math.cos(math.pi * (epoch - 4) / 36))
    assert learning_rate(RECIPE, epoch) == pytest.approx(expected)
