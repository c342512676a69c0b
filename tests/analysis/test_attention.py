"""Maps from weights alone, against the torch modules that make and use them."""

import numpy as np
import pytest
import torch

from attnprior import config
from attnprior.analysis import attention
from attnprior.init import impulse
from attnprior.models.attention import Attention
from attnprior.models.position import fixed_code
from tests.stages import commands


@pytest.mark.parametrize("kind", ["sincos2d", "sincos2d_simple", "identity"])
def test_position_code_is_that_of_the_model(kind):
    model = config.build(config.Model, {**commands.MODEL, "pos_embed": kind}, "m")
    np.testing.assert_allclose(attention.position_code(model), fixed_code(model), atol=1e-6)


def test_learned_positions_have_no_constant_code():
    model = config.build(config.Model, {**commands.MODEL, "pos_embed": "learned"}, "m")
    assert attention.position_code(model) is None


def test_targets_are_those_of_the_fit():
    offsets = torch.tensor([[0, 0], [-1, 1], [1, 0]])
    np.testing.assert_array_equal(
        attention.target_maps(offsets.numpy(), 4), impulse.targets(offsets, 4, 4).numpy()
    )


def test_position_maps_of_an_attention_layer_are_its_maps_of_an_image_of_zeros():
    torch.manual_seed(0)
    layer, alpha = Attention(16, 2, False, False, 0.7), 0.25
    position = torch.randn(1, 9, 16)
    record = {"logits": []}
    layer(torch.zeros(1, 9, 16), position=position, alpha=alpha, record=record)
    q, k = attention.heads_of(layer.qkv.weight.detach().numpy(), 2)
    found = attention.position_maps(position[0].numpy(), q, k, 0.7 * (1 - alpha) ** 2)
    np.testing.assert_allclose(found, record["logits"][0][0].softmax(-1).detach(), atol=1e-6)


def test_mass_counts_only_queries_with_a_target():
    target = attention.target_maps(np.array([[0, 1]]), 2)  # tokens 0 and 2 have a right neighbour
    uniform = np.full((1, 4, 4), 0.25)
    assert attention.mass_on(uniform, target).tolist() == [0.25]
    assert attention.mass_on(target, target).tolist() == [1.0]
