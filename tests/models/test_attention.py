import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.models.attention import Attention
from attnprior.models.copying import Copied
from tests.oracle import randomised

HEADS = (0, 1, 2, 3)


def attention(dim=24, heads=4, bias=True, scale=0.3, seed=1):
    return randomised(Attention(dim, heads, bias, bias, scale), seed).double()


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(layer, x, u):
    """Return the output of `layer`, written out per image and head; u is the input of q and k."""
    dim, heads = x.shape[2], layer.num_heads
    r = dim // heads
    w, b = layer.qkv.weight, layer.qkv.bias
    rows = []
    for image, blended in zip(x, u, strict=True):
        parts = []
        for h in range(heads):
            at = slice(h * r, (h + 1) * r)
            q = blended @ w[:dim][at].T + b[:dim][at]
            k = blended @ w[dim : 2 * dim][at].T + b[dim : 2 * dim][at]
            v = image @ w[2 * dim :][at].T + b[2 * dim :][at]
            parts.append((layer.logit_scale * q @ k.T).softmax(-1) @ v)
        rows.append(torch.cat(parts, 1) @ layer.proj.weight.T + layer.proj.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
def test_queries_and_keys_read_the_blend_and_values_read_the_tokens(alpha):
    layer, x, p = attention(), draw(2, 5, 24), draw(1, 5, 24, seed=3)
    blended = alpha * x + (1 - alpha) * p
    torch.testing.assert_close(layer(x, position=p, alpha=alpha), by_loops(layer, x, blended))


@pytest.mark.parametrize("bias", [True, False])
def test_explicit_map_equals_the_fused_path(bias):
    layer, x, p = attention(bias=bias), draw(3, 6, 24), draw(3, 6, 24, seed=2)
    record = {"q": [], "k": [], "logits": []}
    explicit = layer(x, position=p, alpha=0.3, record=record)
    torch.testing.assert_close(layer(x, position=p, alpha=0.3), explicit)
    (q,), (k,), (logits,) = record.values()
    torch.testing.assert_close(logits, 0.3 * q @ k.transpose(-1, -2))
    rows = logits.softmax(-1)
    assert (rows > 0).all()
    torch.testing.assert_close(rows.sum(-1), torch.ones(3, 4, 6, dtype=torch.float64))


def test_fused_path_equals_torchs_multi_head_attention():
    layer, x = attention(scale=6**-0.5), draw(3, 7, 24)
    other = torch.nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        other.in_proj_weight.copy_(layer.qkv.weight)
        other.in_proj_bias.copy_(layer.qkv.bias)
        other.out_proj.load_state_dict(layer.proj.state_dict())
    torch.testing.assert_close(layer(x), other(x, x, x)[0])


@given(st.permutations(range(6)), st.sampled_from([0.0, 0.4, 1.0]))
def test_permuting_tokens_with_their_positions_permutes_the_output(order, alpha):
    layer, x, p = attention(), draw(2, 6, 24), draw(1, 6, 24, seed=4)
    expected = layer(x, position=p, alpha=alpha)[:, order]
    torch.testing.assert_close(
        layer(x[:, order], position=p[:, order], alpha=alpha), expected, rtol=0, atol=1e-10
    )


def test_positions_that_stay_behind_break_the_equivariance():
    layer, x, p = attention(), draw(2, 6, 24), draw(1, 6, 24, seed=4)
    order = [1, 0, 2, 3, 4, 5]
    assert not torch.allclose(
        layer(x[:, order], position=p, alpha=0.4), layer(x, position=p, alpha=0.4)[:, order]
    )


def test_a_copied_map_replaces_own_queries_and_keys_and_stops_their_gradient():
    layer, x = attention(), draw(2, 5, 24)
    q, k = draw(2, 4, 5, 3, seed=5), draw(2, 4, 5, 3, seed=6)  # another head width
    layer(x, copied=Copied(HEADS, q=q, k=k, scale=0.7)).square().sum().backward()
    grad = layer.qkv.weight.grad
    assert (grad[:48] == 0).all() and (grad[48:] != 0).any()
    value = (x @ layer.qkv.weight[48:].T + layer.qkv.bias[48:]).view(2, 5, 4, 6).transpose(1, 2)
    expected = (0.7 * q @ k.transpose(-1, -2)).softmax(-1) @ value
    expected = expected.transpose(1, 2).reshape(2, 5, 24) @ layer.proj.weight.T + layer.proj.bias
    torch.testing.assert_close(layer(x, copied=Copied(HEADS, q=q, k=k, scale=0.7)), expected)


def test_copying_with_queries_and_keys_swapped_gives_another_output():
    layer, x = attention(), draw(2, 5, 24)
    q, k = layer.queries_keys(x)
    torch.testing.assert_close(layer(x, copied=Copied(HEADS, q=q, k=k, scale=0.3)), layer(x))
    assert not torch.allclose(layer(x, copied=Copied(HEADS, q=k, k=q, scale=0.3)), layer(x))
