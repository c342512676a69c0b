from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.analysis.rank import relative_values, token_values
from attnprior.config import Init
from attnprior.init.filters import build_convmixer
from attnprior.models.vit import build_vit
from tests.oracle import FREE, MIXER, MODEL, STANDARD, random_images


def rank(values, tolerance):
    return (values > tolerance).sum(-1)


@given(st.integers(0, 6), st.integers(0, 50), st.sampled_from([1e-6, 1e-3, 0.1, 0.4]))
def test_values_above_a_tolerance_are_as_many_as_the_rank_that_numpy_finds(inner, seed, tolerance):
    rng = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(*s, generator=rng) for s in ((3, 9, inner), (3, inner, 6)))
    product = (left.double() @ right.double()).numpy()
    found = rank(relative_values(torch.from_numpy(product)), tolerance)
    for i, x in enumerate(product):
        assert found[i] == np.linalg.matrix_rank(x, tol=tolerance * np.linalg.norm(x, 2))
    if tolerance == 1e-6:
        assert found.tolist() == [inner] * 3


def test_values_are_relative_to_the_largest_whatever_the_unit():
    values = torch.tensor([1.0, 0.1, 1e-3, 1e-6])
    rng = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(8, 4, generator=rng))
    v, _ = torch.linalg.qr(torch.randn(4, 4, generator=rng))
    for unit in (1.0, 1e4, 1e-4):
        found = relative_values(unit * (u * values) @ v.T)
        np.testing.assert_allclose(found, values, rtol=0.2, atol=1e-6)


@pytest.mark.parametrize("model", [MODEL, STANDARD, FREE])
def test_every_layer_of_a_vit_is_looked_at_before_it_acts(model):
    model = replace(model, pos_embed="none", pos_at="none", alpha=1.0, patch_norm=False)
    vit, images = build_vit(model, 0), random_images(3, model)
    with torch.no_grad():
        vit.patch_embed.proj.bias.zero_()
    found = rank(token_values(vit, images), 1e-6)
    assert found.shape == (3, 3)
    assert (found[0] == 4).all()  # patches of 4 grey values, mapped linearly
    assert (found[1:] > 4).all()
    same = torch.ones(2, 1, 8, 8)
    with torch.no_grad():
        vit.patch_embed.proj.bias.fill_(1)
    assert (rank(token_values(vit, same), 1e-4) == 1).all()  # equal tokens stay equal without positions


def test_every_layer_of_a_convmixer_is_looked_at():
    network = build_convmixer(MIXER, Init("filters", kind="random", heads=16), 0).eval()
    found = token_values(network, random_images(3))
    assert found.shape == (2, 3, 16)
    ranks = rank(found, 1e-6)
    assert (ranks >= 4).all() and (ranks <= 16).all()
