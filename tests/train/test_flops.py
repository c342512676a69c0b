import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from attnprior.models.copying import Copied
from attnprior.models.mae import build_mae
from attnprior.models.vit import build_vit
from attnprior.train.flops import count_flops
from tests.oracle import DECODER, MODEL, STANDARD, queries_keys, random_images


def torch_count(step):
    """torch's own count; the fused CPU attention, unknown to it, is not counted."""
    with FlopCounterMode(display=False) as counter:
        step().backward()
    return counter.get_total_flops()


def attention_flops(batch, tokens, dim, layers, gradients):
    """Two products of 2 B T T D each, forward, and again for each of their operands that needs a gradient."""
    return layers * 2 * batch * tokens**2 * dim * (2 + gradients)


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_a_training_step_agrees_with_torchs_counter(model):
    vit = build_vit(model, 0)
    step = lambda: vit(random_images(4))[0].square().mean()  # noqa: E731
    tokens = 16 + int(model.cls_token)
    expected = torch_count(step) + attention_flops(4, tokens, 32, 3, gradients=4)
    assert count_flops(step) == expected


def test_a_masked_step_agrees_with_torchs_counter():
    mae = build_mae(MODEL, DECODER, 0.5, False, 0)
    noise = torch.rand(4, 16, generator=torch.Generator().manual_seed(0))
    step = lambda: mae(random_images(4), noise)[0]  # noqa: E731
    expected = torch_count(step) + attention_flops(4, 8, 32, 3, 4) + attention_flops(4, 16, 16, 1, 4)
    assert count_flops(step) == expected


def test_a_pass_without_gradient_costs_the_forward_pass_only():
    vit = build_vit(MODEL, 0)
    with torch.no_grad():
        once = count_flops(lambda: vit(random_images(4)))
    assert count_flops(lambda: vit(random_images(4))[0].sum()) > 2.5 * once
    assert count_flops(lambda: queries_keys(vit, random_images(4), 3)) < once


def test_copied_maps_save_the_gradients_of_queries_and_keys():
    vit = build_vit(MODEL, 0)
    qk = queries_keys(vit, random_images(4), 3)
    copied = [Copied((0, 1, 2, 3), q=q, k=k, scale=0.25) for q, k in qk]
    plain = count_flops(lambda: vit(random_images(4))[0].sum())
    saved_projections = (
        3 * 3 * 2 * 4 * 16 * 32 * 64 - 2 * 4 * 16 * 32 * 64
    )  # first layer: no gradient to position
    found = count_flops(lambda: vit(random_images(4), copied=copied)[0].sum())
    assert plain - found > 0.9 * saved_projections


def test_a_linear_map_costs_two_operations_per_weight_and_row():
    weight = torch.randn(5, 3, requires_grad=True)
    x = torch.randn(7, 3)
    assert count_flops(lambda: F.linear(x, weight)) == 2 * 7 * 5 * 3 * 2  # forward and gradient of the weight
    with torch.no_grad():
        assert count_flops(lambda: x @ weight.T) == 2 * 7 * 5 * 3
