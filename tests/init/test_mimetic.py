import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnprior.init import mimetic
from attnprior.models.vit import build_vit
from attnprior.randomness import generator
from tests.oracle import FREE, MODEL, Arrays, assert_close


@pytest.mark.parametrize("name", ["mimetic_qk", "mimetic_vo", "mimetic_normal"])
def test_factors_equal_the_recorded_ones(name):
    recorded = Arrays(name)
    s = recorded.settings
    draw = recorded["in/draw"] / (s["D"] ** 0.5 if s["dist"] == "normal" else 1)
    left, right = mimetic.factors(draw, s["alpha"], s["sign"] * s["beta"])
    assert_close(left @ right, recorded["out/LR"], relative=1e-9)
    assert_close(left[:, : s["R"]] @ right[: s["R"]], recorded["out/LR_cut"], relative=1e-9)
    assert_close(left.abs(), recorded["out/L"].abs(), relative=1e-9)  # signs of singular vectors are free
    assert_close(right.abs(), recorded["out/R"].abs(), relative=1e-9)


def test_reduced_queries_and_keys_equal_the_recorded_ones():
    recorded = Arrays("mimetic_reduced")
    draw = (2 * recorded["in/draw01"] - 1) * recorded.settings["D"] ** -0.5
    q, k = mimetic.qk_from(draw, recorded.settings["R"])
    assert_close(q @ k, recorded["out/QK"])


def test_written_weights_equal_the_recorded_ones():
    recorded = Arrays("mimetic_post_init")
    dim, heads, rank = (recorded.settings[key] for key in "DHR")
    for layer, draws in enumerate(recorded["in/uniform"]):
        theirs = recorded[f"out/blocks.{layer}.attn.qkv.weight"].view(3, heads, rank, dim)
        q, k = mimetic.qk_from(draws[:heads], rank)
        assert_close(q @ k, theirs[0].mT @ theirs[1])
        v, proj = mimetic.vo_from(draws[heads])
        # they store both factors untransposed, so that x -> x (R L)^T; ours are stored for x -> x L R
        assert_close(v.T @ proj.T, theirs[2].flatten(0, 1) @ recorded[f"out/blocks.{layer}.attn.proj.weight"])


@given(st.integers(1, 12), st.integers(0, 100))
def test_factors_multiply_to_the_matrix_and_the_cut_keeps_the_top_singular_values(rank, seed):
    draw = mimetic.uniform((12, 12), generator(seed, "mimetic"))
    left, right = mimetic.factors(draw, 0.7, 0.7)
    matrix = 0.7 * draw + 0.7 * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(left @ right, matrix, rtol=0, atol=1e-12)
    kept = torch.linalg.svdvals(left[:, :rank] @ right[:rank])[:rank]
    torch.testing.assert_close(kept, torch.linalg.svdvals(matrix)[:rank])


def test_query_key_product_has_the_known_diagonal():
    q, k = mimetic.qk_from(mimetic.uniform((3, 192, 192), generator(0, "mimetic")), 64)
    assert q.shape == (3, 192, 64) and k.shape == (3, 64, 192)
    for product in q @ k:
        assert product.diagonal().mean().item() == pytest.approx(0.398, abs=0.02)
        off = product[~torch.eye(192, dtype=torch.bool)]
        assert off.std().item() == pytest.approx(0.052, abs=0.005)
    assert not torch.allclose(q[0] @ k[0], q[1] @ k[1])  # a fresh draw per head


def test_a_row_passes_values_and_output_map_as_a_noisy_negative_identity():
    rng = generator(0, "mimetic")
    draw = mimetic.uniform((192, 192), generator(0, "mimetic"))
    weight, output = mimetic.mimetic_vo(192, rng)
    x = torch.randn(5, 192)
    expected = 0.4 * x.double() @ draw - 0.4 * x.double()
    assert_close(F.linear(F.linear(x, weight), output), expected)
    effective = F.linear(F.linear(torch.eye(192), weight), output)
    assert effective.diagonal().mean().item() == pytest.approx(-0.4, abs=0.01)
    assert effective[~torch.eye(192, dtype=torch.bool)].std().item() == pytest.approx(0.029, abs=0.002)


@pytest.mark.parametrize("value", [False, True])
def test_only_queries_and_keys_and_on_request_values_are_written(value):
    vit, before = build_vit(MODEL, 0), build_vit(MODEL, 0)
    mimetic.apply_mimetic(vit, 0, value)
    changed = {n for n, t in vit.state_dict().items() if not torch.equal(t, before.state_dict()[n])}
    names = {"qkv", "proj"} if value else {"qkv"}
    assert changed == {f"blocks.{i}.attn.{name}.weight" for i in range(3) for name in names}
    for block, old in zip(vit.blocks, before.blocks, strict=True):
        assert torch.equal(block.attn.qkv.weight[64:], old.attn.qkv.weight[64:]) != value
        assert not torch.equal(block.attn.qkv.weight[:64], old.attn.qkv.weight[:64])


@pytest.mark.parametrize("value", [False, True])
def test_free_queries_and_keys_are_mimetic_over_tokens(value):
    vit = build_vit(FREE, 0)
    mimetic.apply_mimetic(vit, 0, value)
    attn = vit.blocks[0].attn
    draw = mimetic.uniform((4, 16, 16), generator(0, "mimetic", 0))
    q, k = mimetic.qk_from(draw, 8)
    assert torch.equal(attn.q, q) and torch.equal(attn.k, k)
    effective = F.linear(F.linear(torch.eye(32), attn.v.weight), attn.proj.weight)
    assert (effective.diagonal().mean().item() < -0.3) == value


def test_the_reduced_baseline_has_less_noise_and_no_values():
    vit, before = build_vit(MODEL, 0), build_vit(MODEL, 0)
    mimetic.apply_mimetic(vit, 0, False, reduced=True)
    weight = vit.blocks[1].attn.qkv.weight
    q, k = weight[:32].view(4, 8, 32).mT, weight[32:64].view(4, 8, 32)
    rng = generator(0, "mimetic", 1)
    draw01 = torch.rand(4, 32, 32, dtype=torch.float64, generator=rng)
    matrix = 0.7 * 32**-0.5 * (2 * draw01 - 1) + 0.7 * torch.eye(32)  # as released, written out
    u, s, vt = torch.linalg.svd(matrix)
    assert_close(q @ k, u[..., :8] * s[:, None, :8] @ vt[:, :8])
    changed = {n for n, t in vit.state_dict().items() if not torch.equal(t, before.state_dict()[n])}
    assert changed == {f"blocks.{i}.attn.qkv.weight" for i in range(3)}


def test_layers_differ_and_the_seed_decides():
    first, again, other = build_vit(MODEL, 0), build_vit(MODEL, 0), build_vit(MODEL, 0)
    for vit, seed in ((first, 0), (again, 0), (other, 1)):
        mimetic.apply_mimetic(vit, seed, True)
    weights = [[b.attn.qkv.weight for b in v.blocks] for v in (first, again, other)]
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not torch.equal(weights[0][0], weights[2][0])
    assert not torch.equal(weights[0][0], weights[0][1])
