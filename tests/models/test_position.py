import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.models.attention import rotate
from attnprior.models.position import (
    fixed_code,
    identity_code,
    interpolated,
    rotary_table,
    sincos2d,
    with_class_row,
)
from tests.oracle import MODEL, Arrays, assert_close


@pytest.mark.parametrize(("height", "width", "dim"), [(4, 4, 32), (8, 8, 64), (3, 5, 16), (16, 16, 128)])
def test_simple_code_equals_the_recorded_one(height, width, dim):
    expected = Arrays("sincos_simple_vit")[f"out/h{height}_w{width}_d{dim}"]
    assert_close(sincos2d(height, width, dim, simple=True), expected)


@pytest.mark.parametrize(("grid", "dim", "cls"), [(4, 32, 0), (4, 32, 1), (7, 48, 1), (8, 24, 0)])
def test_mae_code_equals_the_recorded_one(grid, dim, cls):
    expected = Arrays("sincos_mae")[f"out/g{grid}_d{dim}_cls{cls}"]
    assert_close(with_class_row(sincos2d(grid, grid, dim, simple=False), bool(cls))[0], expected)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(2, 16), st.booleans())
def test_rows_have_squared_norm_half_the_width(height, width, quarter, simple):
    code = sincos2d(height, width, 4 * quarter, simple=simple)
    assert code.dtype == torch.float32
    torch.testing.assert_close(code.square().sum(1), torch.full((height * width,), 2.0 * quarter))


@given(st.integers(2, 6), st.integers(2, 6), st.booleans())
def test_products_depend_on_the_displacement_only(height, width, simple):
    code = sincos2d(height, width, 32, simple=simple)
    product = (code @ code.T).view(height, width, height, width)
    torch.testing.assert_close(product[:-1, :-1, :-1, :-1], product[1:, 1:, 1:, 1:], rtol=0, atol=1e-4)


def test_first_half_of_the_code_is_the_column():
    code = sincos2d(3, 4, 16, simple=False).view(3, 4, 16)
    assert torch.equal(code[0, :, :8], code[2, :, :8])  # same columns
    assert torch.equal(code[:, 0, 8:], code[:, 3, 8:])  # same rows
    torch.testing.assert_close(code[0, 1, 0], torch.tensor(1.0).sin())


def test_identity_code_gives_every_token_its_own_axis():
    code = identity_code(3, 5)
    assert torch.equal(code @ code.T, torch.eye(3))
    assert code.shape == (3, 5)


def test_only_fixed_codes_are_constants():
    from dataclasses import replace

    assert fixed_code(replace(MODEL, pos_embed="learned")) is None
    assert fixed_code(replace(MODEL, pos_embed="none")) is None
    assert not torch.equal(fixed_code(replace(MODEL, pos_embed="sincos2d")), fixed_code(MODEL))
    assert torch.equal(fixed_code(replace(MODEL, pos_embed="identity")), torch.eye(16, 32))


# rotary codes


def turned(vector, grid=6, dim=16):
    """Return `vector` (R,) turned by every place of a grid, (y, x, R), float64."""
    table = rotary_table(grid, grid, dim).double()[None]
    return rotate(vector.expand(1, 1, grid**2, dim), table)[0, 0].view(grid, grid, dim)


def vectors(dim=16):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(2, dim, dtype=torch.float64, generator=rng)


def test_products_of_turned_vectors_depend_on_the_difference_of_places_only():
    q, k = (turned(v) for v in vectors())
    for dy, dx in ((0, 0), (1, 0), (0, 2), (-1, 1)):
        found = [(q[y, x] @ k[y + dy, x + dx]).item() for y in range(1, 5) for x in range(1, 4)]
        assert max(found) - min(found) < 1e-5
    assert abs(q[2, 2] @ k[3, 2] - q[2, 2] @ k[2, 3]) > 1e-3


def test_turning_keeps_norms_and_leaves_the_first_place_alone():
    (vector, _), made = vectors(), turned(vectors()[0])
    torch.testing.assert_close(made.norm(dim=2), vector.norm().expand(6, 6), rtol=1e-6, atol=0)
    assert torch.equal(made[0, 0], vector)


def test_half_of_the_channels_turns_by_row_and_half_by_column():
    made = turned(vectors()[0])
    assert (made[:, :, :8] == made[:, :1, :8]).all() and not (made[:, :, :8] == made[:1, :, :8]).all()
    assert (made[:, :, 8:] == made[:1, :, 8:]).all() and not (made[:, :, 8:] == made[:, :1, 8:]).all()


def test_the_first_pair_turns_by_one_radian_a_step():
    table = rotary_table(3, 3, 8)
    angle = torch.tensor([2.0, 2e-2, 1.0, 1e-2])  # row 2, column 1; 10000^(-2i/4)
    torch.testing.assert_close(table[7], torch.cat([angle.cos(), angle.sin()]))


# other grids


def code(side, prefix=1, dim=8, seed=0):
    return torch.randn(1, prefix + side**2, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_code_of_the_same_grid_stays_and_a_class_row_always(prefix):
    made = code(4, prefix)
    assert torch.equal(interpolated(made, prefix, 4), made)
    larger = interpolated(made, prefix, 7)
    assert larger.shape == (1, prefix + 49, 8)
    assert torch.equal(larger[:, :prefix], made[:, :prefix])


@given(st.integers(2, 9), st.integers(2, 9))
def test_a_constant_code_stays_constant(side, grid):
    row = torch.randn(8, generator=torch.Generator().manual_seed(side))
    made = interpolated(row.expand(1, side**2, 8), 0, grid)
    torch.testing.assert_close(made, row.expand(1, grid**2, 8))


@given(st.integers(2, 8), st.integers(2, 8))
def test_interpolation_does_not_care_which_axis_is_which(side, grid):
    def transposed(x):
        n = round(x.shape[1] ** 0.5)
        return x.unflatten(1, (n, n)).transpose(1, 2).flatten(1, 2)

    made = code(side, 0)
    torch.testing.assert_close(
        transposed(interpolated(transposed(made), 0, grid)), interpolated(made, 0, grid)
    )


def test_places_between_rows_get_what_lies_between():
    ramp = torch.arange(8.0).repeat_interleave(8).view(1, 64, 1)  # the row number
    made = interpolated(ramp, 0, 16).view(16, 16)
    expected = torch.arange(4, 12) / 2 - 0.25  # centres of half rows
    assert (made[4:12, 0] - expected).abs().max() < 0.05  # cubic: near a line, not on it
