from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.analysis.rank import numerical_rank, redundant, token_ranks
from attnprior.config import Init
from attnprior.init.filters import build_convmixer
from attnprior.models.vit import build_vit
from tests.oracle import FREE, MIXER, MODEL, STANDARD, random_images


@given(st.integers(0, 6), st.integers(0, 50))
def test_a_product_of_factors_has_the_rank_of_its_inner_axis(rank, seed):
    rng = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(*s, dtype=torch.float64, generator=rng) for s in ((3, 9, rank), (3, rank, 6)))
    assert numerical_rank(left @ right, 1e-9).tolist() == [rank] * 3


def test_singular_values_below_the_tolerance_do_not_count_whatever_the_unit():
    values = torch.tensor([1.0, 0.1, 1e-3, 1e-6])
    rng = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(8, 4, generator=rng))
    v, _ = torch.linalg.qr(torch.randn(4, 4, generator=rng))
    for unit in (1.0, 1e4, 1e-4):
        matrix = unit * (u * values) @ v.T
        assert [int(numerical_rank(matrix, t)) for t in (0.5, 0.05, 1e-4)] == [1, 2, 3]


@pytest.mark.parametrize("model", [MODEL, STANDARD, FREE])
def test_every_layer_of_a_vit_is_looked_at_before_it_acts(model):
    model = replace(model, pos_embed="none", pos_at="none", alpha=1.0, patch_norm=False)
    vit, images = build_vit(model, 0), random_images(3, model)
    with torch.no_grad():
        vit.patch_embed.proj.bias.zero_()
    found = token_ranks(vit, images, 1e-6)
    assert found.shape == (3, 3)
    assert (found[0] == 4).all()  # patches of 4 grey values, mapped linearly
    assert (found[1:] > 4).all()
    same = torch.ones(2, 1, 8, 8)
    with torch.no_grad():
        vit.patch_embed.proj.bias.fill_(1)
    assert (token_ranks(vit, same, 1e-4) == 1).all()  # equal tokens stay equal without positions


def test_every_layer_of_a_convmixer_is_looked_at():
    network = build_convmixer(MIXER, Init("filters", kind="random", heads=16), 0).eval()
    found = token_ranks(network, random_images(3), 1e-6)
    assert found.shape == (2, 3) and (found >= 4).all() and (found <= 16).all()


def test_redundancy_needs_as_many_channels_as_aggregated_filter_entries():
    assert redundant(512, 20, 5) and not redundant(512, 21, 5)
    assert redundant(9, 1, 3) and not redundant(8, 1, 3)
