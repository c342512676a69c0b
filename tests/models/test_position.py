import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.models.position import fixed_code, identity_code, sincos2d, with_class_row
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
