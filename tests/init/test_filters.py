from dataclasses import replace

import pytest
import torch

from attnprior.config import Init
from attnprior.init import filters
from attnprior.models.student_checks import FILTERS
from attnprior.randomness import generator
from tests.oracle import MIXER, Arrays, assert_close

THIRD = 1 / 3
NUMBERS = {"entries": 3, "variance": 0.5, "squared_norm": THIRD}
MODEL = replace(MIXER, embed_dim=64, kernel_size=5, image_size=12)


def init(kind: str, heads: int = 64, **numbers) -> Init:
    return Init("filters", kind=kind, heads=heads, **{k: NUMBERS[k] for k in FILTERS[kind]} | numbers)


def drawn(kind: str, heads: int = 64, **numbers) -> torch.Tensor:
    return filters.draw_filters(init(kind, heads, **numbers), MODEL, generator(0, "filters"))


@pytest.mark.parametrize("name", ["impulse", "box", "box_full"])
def test_boxes_equal_the_recorded_ones(name):
    recorded = Arrays(f"convmixer_filters_{name}")
    assert_close(filters.boxes(recorded["in/draw"], 5, THIRD), recorded["out/weight"])


@pytest.mark.parametrize(("name", "number"), [("gauss", 1.0), ("gauss_narrow", 0.1)])
def test_bells_equal_the_recorded_ones_and_their_number_is_a_variance(name, number):
    recorded = Arrays(f"convmixer_filters_{name}")
    centre = recorded["in/draw"][:, 0]
    assert_close(filters.bells(centre, 5, number, THIRD), recorded["out/weight"])
    if number != 1:
        with pytest.raises(AssertionError, match="off by"):
            assert_close(filters.bells(centre, 5, number**2, THIRD), recorded["out/weight"])


@pytest.mark.parametrize("name", ["perm", "fullperm"])
def test_matrices_equal_the_recorded_ones(name):
    recorded = Arrays(f"convmixer_filters_{name}")
    assert_close(filters.matrices(recorded["in/draw"], THIRD), recorded["out/weight"])


def test_uniform_filters_equal_the_recorded_ones():
    recorded = Arrays("convmixer_filters_random")
    draw = recorded["in/draw"]
    if draw.min() < 0:  # recorded in their range already
        assert_close(draw, recorded["out/weight"])
        draw = (draw * 5 + 1) / 2
    assert_close(filters.uniform(draw), recorded["out/weight"])


@pytest.mark.parametrize("kind", FILTERS)
def test_filters_of_every_kind_have_the_mean_squared_norm(kind):
    found = drawn(kind, heads=2000 if "perm" not in kind else 64)
    squares = found.flatten(1).square().sum(1)
    if "perm" in kind:
        assert found.shape == (64, 36, 36)
        assert ((found > 0).sum(2) == 1).all()
        assert ((found > 0).sum(1) == 1).all() == (kind == "fullperm")
        squares = squares / 36
    exact = kind not in ("learned", "random", "softmax")
    assert squares.mean().item() == pytest.approx(THIRD, rel=1e-5 if exact else 0.02)
    if kind in ("impulse", "box"):
        assert ((found > 0).flatten(1).sum(1) == {"impulse": 1, "box": 3}[kind]).all()
        torch.testing.assert_close(squares, torch.full_like(squares, THIRD))


def test_another_norm_scales_filters():
    for kind in ("impulse", "box", "gauss", "perm"):
        torch.testing.assert_close(drawn(kind, squared_norm=0.2), drawn(kind) * 0.6**0.5)


def test_bells_become_impulses_as_they_narrow_and_flat_as_they_widen():
    narrow, wide = drawn("gauss", variance=1e-3), drawn("gauss", variance=1e6)
    assert ((narrow.flatten(1) > 1e-6).sum(1) == 1).all()
    assert narrow.amax().item() == pytest.approx(THIRD**0.5, rel=1e-5)
    torch.testing.assert_close(wide, torch.full_like(wide, (THIRD / 25) ** 0.5), rtol=1e-4, atol=0)


def test_the_rank_of_filters_is_that_of_what_they_span():
    def rank(found):
        return int(torch.linalg.matrix_rank(found.flatten(1).double()))

    assert rank(drawn("box", entries=25)) == 1
    impulses = drawn("impulse")
    assert rank(impulses) == len(impulses.flatten(1).unique(dim=0)) <= 25
    assert rank(drawn("random")) == 25
    assert rank(drawn("random", heads=8)) == 8


def test_as_many_filters_as_channels_go_to_one_channel_each_and_fewer_are_drawn():
    rng = generator(0, "filters")
    assert sorted(filters.assign(64, 64, rng).tolist()) == list(range(64))
    counts = filters.assign(4, 6400, rng).bincount()
    assert len(counts) == 4 and (counts - 1600).abs().max() < 200


def test_kinds_share_all_that_is_not_spatial():
    first, second, other = (
        filters.build_convmixer(MODEL, init(k), s) for k, s in (("impulse", 0), ("gauss", 0), ("gauss", 1))
    )
    for name, tensor in first.state_dict().items():
        same = torch.equal(tensor, second.state_dict()[name])
        assert same == ("spatial.weight" not in name), name
    assert not torch.equal(first.head.weight, other.head.weight)
    layers = first.spatial()
    assert not torch.equal(layers[0].choice, layers[1].choice)
    assert layers[0].bias.abs().max() <= 1 / 5


def test_a_filter_acts_as_its_matrix_and_an_impulse_as_its_target():
    from attnprior.init import impulse

    index = torch.arange(25)[:, None]
    made = filters.filter_matrix(filters.boxes(index, 5, 1.0), 6)
    wanted = impulse.targets(impulse.offsets_of(index[:, 0], 5), 6, 6)
    torch.testing.assert_close(made, wanted)
