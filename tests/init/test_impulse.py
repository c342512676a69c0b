from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnprior.init import impulse
from attnprior.init.mimetic import vo_from
from attnprior.models.position import sincos2d
from attnprior.models.vit import build_vit
from attnprior.randomness import generator
from tests.oracle import FREE, MODEL, Arrays, assert_close, random_images

offsets = st.tuples(st.integers(-3, 3), st.integers(-3, 3))
sides = st.integers(3, 6)


def target_of(offset, height, width):
    return impulse.targets(torch.tensor(offset), height, width)


# targets


@pytest.mark.parametrize("number", [0, 1, 2])
def test_targets_equal_the_recorded_ones(number):
    recorded = Arrays(f"impulse_target_{number}")
    side, size = recorded.settings["S"], recorded.settings["f"]
    made = impulse.targets(impulse.offsets_of(recorded["in/u"], size), side, side)
    assert torch.equal(made, recorded["out/target"].float())


def test_ordered_targets_of_a_rectangular_grid_equal_the_recorded_ones():
    recorded = Arrays("impulse_target_rect")
    made = impulse.targets(
        impulse.offsets_ordered(9), recorded.settings["grid_h"], recorded.settings["grid_w"]
    )
    assert torch.equal(made, recorded["out/target"].float())


@given(offsets, sides, sides)
def test_rows_hold_one_impulse_where_it_lies_on_the_grid(offset, height, width):
    target = target_of(offset, height, width)
    assert set(target.unique().tolist()) <= {0.0, 1.0}
    rows = target.sum(1)
    assert rows.max() <= 1
    assert rows.sum() == max(0, height - abs(offset[0])) * max(0, width - abs(offset[1]))


@given(offsets, sides, sides)
def test_target_acts_as_a_zero_padded_convolution(offset, height, width):
    kernel = torch.zeros(1, 1, 7, 7)
    kernel[0, 0, 3 + offset[0], 3 + offset[1]] = 1
    image = torch.randn(1, 1, height, width)
    expected = F.conv2d(image, kernel, padding=3).flatten()
    assert torch.equal(target_of(offset, height, width) @ image.flatten(), expected)


@given(offsets, sides, sides)
def test_opposite_offset_is_the_transpose(offset, height, width):
    opposite = target_of((-offset[0], -offset[1]), height, width)
    assert torch.equal(opposite, target_of(offset, height, width).T)
    assert torch.equal(target_of((0, 0), height, width), torch.eye(height * width))


@given(offsets)
def test_wrapping_around_would_fill_exactly_the_empty_rows(offset):
    grid = torch.eye(16).view(16, 4, 4)
    wrapped = grid.roll((offset[0], offset[1]), (1, 2)).flatten(1)  # row i is one at (y + dy, x + dx)
    changed = (wrapped != target_of(offset, 4, 4)).any(1)
    assert changed.sum() == 16 - (4 - abs(offset[0])) * (4 - abs(offset[1]))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_targets_of_all_offsets_are_linearly_independent(size):
    made = impulse.targets(impulse.offsets_of(torch.arange(size**2), size), 6, 6)
    assert torch.linalg.matrix_rank(made.flatten(1)) == size**2


@given(st.sampled_from([1, 3, 5, 7]), st.integers(0, 1000))
def test_random_offsets_lie_in_the_filter_and_repeat_with_the_seed(size, seed):
    drawn = impulse.offsets_random(size, 50, generator(seed, "offsets"))
    assert drawn.abs().max() <= size // 2
    assert torch.equal(drawn, impulse.offsets_random(size, 50, generator(seed, "offsets")))


def test_random_offsets_are_uniform():
    drawn = impulse.offsets_random(3, 9000, generator(0, "offsets"))
    _, counts = drawn.unique(dim=0, return_counts=True)
    assert len(counts) == 9
    assert (counts - 1000).abs().max() < 150  # five standard deviations


def test_ordered_offsets_start_at_the_centre_and_repeat():
    made = impulse.offsets_ordered(11)
    assert made[:5].tolist() == [[0, 0], [-1, 0], [0, 1], [0, -1], [1, 0]]
    assert torch.equal(made[9:], made[:2])


# Adam fit


@pytest.fixture(scope="module", params=["impulse_fit_adam", "impulse_fit_adam_model3"])
def recorded(request):
    return Arrays(request.param)


def fit(recorded, steps, dtype):
    s, q01 = recorded.settings, recorded["in/Q01"].to(dtype)
    start = [impulse.initial(draw.to(dtype), s["H"], s["R"]) for draw in (q01, recorded["in/K01"])]
    position = position_of(recorded, dtype)
    target = impulse.targets(impulse.offsets_of(recorded["in/u"], s["f"]), s["S"], s["S"]).to(dtype)
    assert torch.equal(target, recorded["out/target"].to(dtype))
    return impulse.fit_adam_from(position, target, *start, s["gamma"], steps, s["lr"], s["norm_every"])


def position_of(recorded, dtype):
    return recorded["in/P"].to(dtype) if recorded.settings["has_position"] else torch.eye(16, dtype=dtype)


def assert_state(recorded, q, k, name):
    dtype = q.dtype
    attention = impulse.attention_map(position_of(recorded, dtype), q, k, recorded.settings["gamma"])
    if dtype == torch.float64:
        for key, actual in (("Q", q), ("K", k), ("map", attention)):
            if f"out64/{key}/{name}" in recorded:
                assert_close(actual, recorded[f"out64/{key}/{name}"], relative=1e-9)
    else:
        assert_close(attention, recorded[f"out/map/{name}"])
        if f"out/Q/{name}" in recorded:
            assert_close(q, recorded[f"out/Q/{name}"])
            # K adds one logit to all keys along inputs that are constant over tokens: rounding noise there
            assert_close(k, recorded[f"out/K/{name}"], relative=1, absolute=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_fit_follows_the_recorded_one(recorded, dtype):
    for steps in (1, 100, 101, 300):
        q, k, _ = fit(recorded, steps, dtype)
        assert_state(recorded, q, k, str(steps))
    q, k, losses = fit(recorded, 2000, dtype)
    assert_state(recorded, q, k, "2000")
    if dtype == torch.float64:
        assert_close(losses, recorded["out64/loss"], relative=1e-9)
    else:
        assert_close(losses, recorded["out/loss"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_start_normalisation_and_first_gradient_equal_the_recorded_ones(recorded, dtype):
    s = recorded.settings
    q, k = (impulse.initial(recorded[f"in/{n}01"].to(dtype), s["H"], s["R"]) for n in "QK")
    assert_state(recorded, q, k, "init")
    length = q.norm(dim=1).mean()
    assert_close(length, recorded["out/c"].to(dtype))
    weights = torch.stack([q.mT, k])
    impulse.normalise(weights, length)
    assert_state(recorded, weights[0].mT, weights[1], "norm0")
    for tensor, dim in ((weights[0].mT, 1), (weights[1], 1)):
        torch.testing.assert_close(tensor.norm(dim=dim), length.expand_as(tensor.norm(dim=dim)))
    position, target = position_of(recorded, dtype), recorded["out/target"].to(dtype)
    loss, (grad_q, grad_k) = impulse.gradient(weights, position, target, s["gamma"])
    place = "out64" if dtype == torch.float64 else "out"
    for actual, key in ((grad_q.mT, "grad_Q/0"), (grad_k, "grad_K/0")):
        tolerance = 1e-9 if dtype == torch.float64 else 1e-5
        assert_close(actual, recorded[f"{place}/{key}"], relative=tolerance)
    assert_close(loss, recorded[f"{place}/loss"][0])
    if dtype == torch.float64:
        q100, k100, _ = fit(recorded, 100, dtype)
        weights = torch.stack([q100.mT, k100])
        impulse.normalise(weights, length)
        assert_state(recorded, weights[0].mT, weights[1], "norm100")


def test_gradient_equals_automatic_differentiation():
    rng = torch.Generator().manual_seed(0)
    position = torch.randn(6, 5, dtype=torch.float64, generator=rng)
    weights = torch.randn(2, 3, 2, 4, 5, dtype=torch.float64, generator=rng, requires_grad=True)  # 3 layers
    target = torch.rand(3, 2, 6, 6, dtype=torch.float64, generator=rng)
    attention = impulse.attention_map(position, weights[0].mT, weights[1], 0.3)
    expected = (attention - target).square().mean((1, 2, 3))
    expected.sum().backward()
    with torch.no_grad():
        loss, grad = impulse.gradient(weights, position, target, 0.3)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, weights.grad)


def default_fit(steps, layers=2, scale=0.1, norm_every=100, seed=0):
    position = sincos2d(4, 4, 32, simple=True)
    drawn = torch.stack([impulse.offsets_random(3, 4, generator(seed, "offsets", i)) for i in range(layers)])
    target = impulse.targets(drawn, 4, 4)
    rng = generator(seed, "fit_init")
    return position, target, impulse.fit_adam(position, target, 8, scale, steps, 1e-3, norm_every, rng)


def test_layers_fitted_together_equal_layers_fitted_alone():
    position, target, (q, k, losses) = default_fit(150)
    assert q.shape == (2, 4, 32, 8) and k.shape == (2, 4, 8, 32) and losses.shape == (150, 2)
    rng = generator(0, "fit_init")
    start_q = impulse.initial(torch.rand(2, 4, 32, 8, generator=rng), 4, 8)
    start_k = impulse.initial(torch.rand(2, 4, 8, 32, generator=rng), 4, 8)
    for i in range(2):
        alone = impulse.fit_adam_from(position, target[i], start_q[i], start_k[i], 0.1, 150, 1e-3, 100)
        for together, single in zip((q[i], k[i], losses[:, i]), alone, strict=True):
            torch.testing.assert_close(together, single, rtol=0, atol=5e-5)


def test_fit_is_reproducible_and_reports_every_step():
    seen = []
    position, target, (q, k, losses) = default_fit(20)
    again = impulse.fit_adam(
        position,
        target,
        8,
        0.1,
        20,
        1e-3,
        100,
        generator(0, "fit_init"),
        on_step=lambda i, x: seen.append((i, x)),
    )
    assert torch.equal(q, again[0]) and torch.equal(k, again[1])
    assert [i for i, _ in seen] == list(range(20))
    assert torch.equal(torch.stack([x for _, x in seen]), losses)


def test_fit_starts_at_the_error_of_uniform_maps_and_improves():
    _, target, (_, _, losses) = default_fit(600, norm_every=0)
    valid = (target.sum(-1) > 0).float().mean((1, 2))
    uniform = valid * (1 / 16) * (1 - 1 / 16) + (1 - valid) / 16**2
    assert ((losses[0] - uniform).abs() < 0.01 * uniform).all()
    assert (losses[-1] < 0.85 * uniform).all()


def test_fitted_maps_are_positive_with_rows_of_sum_one_and_hit_their_targets():
    position, target, (q, k, _) = default_fit(2000, norm_every=0)
    attention = impulse.attention_map(position, q, k, 0.1)
    assert (attention > 0).all()
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, 16), rtol=0, atol=1e-5)
    report = impulse.fit_report(attention, target)
    assert report["hit_rate"] > 0.95
    assert report["target_mass"] > 0.5
    empty = target.sum(-1) == 0
    assert (attention[empty].square().mean(-1) >= 1 / 16**2 - 1e-7).all()  # the floor of an empty row


def test_report_of_uniform_and_of_perfect_maps():
    target = impulse.targets(impulse.offsets_ordered(9), 4, 4)
    valid = (target.sum(-1) > 0).float().mean().item()
    uniform = impulse.fit_report(torch.full((9, 16, 16), 1 / 16), target)
    assert uniform["target_mass"] == pytest.approx(1 / 16)
    assert uniform["mse"] == pytest.approx(valid / 16 * (1 - 1 / 16) + (1 - valid) / 256)
    perfect = torch.where(target.sum(-1, keepdim=True) > 0, target, 1 / 16)
    assert impulse.fit_report(perfect, target) == {
        "mse": pytest.approx((1 - valid) / 256),
        "hit_rate": 1.0,
        "target_mass": 1.0,
    }
    moved = torch.where(target.sum(-1, keepdim=True) > 0, target.roll(1, -1), 1 / 16)
    assert impulse.fit_report(moved, target)["hit_rate"] == 0


# closed form


@pytest.mark.parametrize("name", ["impulse_closed_form", "impulse_closed_form_rect"])
def test_closed_form_equals_the_recorded_one(name):
    recorded = Arrays(name)
    s = recorded.settings
    target = impulse.targets(impulse.offsets_ordered(s["H"]), s["grid_h"], s["grid_w"])
    wanted = impulse.wanted_logits(target, recorded["in/noise"], s["signal"], s["noise_gain"])
    assert_close(wanted, recorded["out/G"])
    for place, dtype, tolerance in (("out64", torch.float64, 1e-9), ("out", torch.float32, 1e-5)):
        position = impulse.query_key_input(recorded["in/P"].to(dtype), "input")
        assert_close(
            impulse.pseudo_inverse(position, s["R"]), recorded[f"{place}/P_pinv"], relative=tolerance
        )
        for norm, end in ((1.0, ""), (s["norm_q"], "7")):
            q, k = impulse.closed_form(position, wanted.to(dtype), s["R"], norm)
            torch.testing.assert_close(q.norm(dim=(1, 2)), torch.full((s["H"],), norm, dtype=dtype))
            torch.testing.assert_close(k.norm(dim=(1, 2)), torch.full((s["H"],), norm, dtype=dtype))
            expected = recorded[f"out/Q{end}"] @ recorded[f"out/K{end}"]
            if place == "out64":
                expected = norm**2 * recorded["out64/QK"]
            assert_close(q @ k, expected, relative=tolerance)


@pytest.mark.parametrize(
    ("name", "norm", "value"), [("impulse_post_init", 7, 1), ("impulse_post_init_custom", 5, 2)]
)
def test_weights_written_in_closed_form_equal_the_recorded_ones(name, norm, value):
    recorded = Arrays(name)
    dim, heads, rank = (recorded.settings[key] for key in "DHR")
    position = impulse.query_key_input(recorded["out/pos_embed"][0, 1:], "input")
    target = impulse.targets(impulse.offsets_ordered(heads), 6, 6)
    for layer in range(recorded.settings["depth"]):
        wanted = impulse.wanted_logits(target, recorded["in/noise"][layer], 1000.0, 3.0)
        q, k = impulse.closed_form(position, wanted, rank, norm)
        theirs = recorded[f"out/blocks.{layer}.attn.qkv.weight"].view(3, heads, rank, dim)
        assert_close(q @ k, theirs[0].mT @ theirs[1])
        v, proj = vo_from(recorded["in/uniform"][layer, 0])  # their values follow the mimetic rule
        expected = theirs[2].flatten(0, 1).T @ recorded[f"out/blocks.{layer}.attn.proj.weight"].T
        assert_close(value**2 * v.T @ proj.T, expected)


def test_closed_form_meets_its_targets_on_a_learned_code():
    position = impulse.query_key_input(0.36 * torch.randn(196, 192, generator=generator(0, "test")), "input")
    target = impulse.targets(impulse.offsets_ordered(3), 14, 14)
    q, k = impulse.fit_svd(position, target, 64, 1000.0, 3.0, 7.0, generator(0, "fit_init"))
    report = impulse.fit_report(impulse.attention_map(position, q, k, 64**-0.5), target)
    assert report["hit_rate"] > 0.97
    assert report["target_mass"] > 0.6


def test_only_the_ratio_of_signal_and_noise_matters():
    position = sincos2d(4, 4, 64, simple=True)
    target = impulse.targets(impulse.offsets_ordered(4), 4, 4)
    first = impulse.fit_svd(position, target, 16, 1000.0, 3.0, 7.0, generator(0, "fit_init"))
    second = impulse.fit_svd(position, target, 16, 10.0, 0.03, 7.0, generator(0, "fit_init"))
    torch.testing.assert_close(first[0] @ first[1], second[0] @ second[1])


def test_closed_form_survives_a_code_of_low_rank():
    position = sincos2d(4, 4, 64, simple=True)
    assert torch.linalg.matrix_rank(position.double()) < 16
    target = impulse.targets(impulse.offsets_ordered(9), 4, 4)
    q, k = impulse.fit_svd(position, target, 16, 1000.0, 3.0, 7.0, generator(0, "fit_init"))
    assert impulse.fit_report(impulse.attention_map(position, q, k, 0.1), target)["hit_rate"] == 1


def test_code_in_the_query_key_input_is_fitted_as_it_is():
    position = 3 + sincos2d(4, 4, 32, simple=False)
    assert impulse.query_key_input(position, "qk") is position
    normed = impulse.query_key_input(position, "input")
    torch.testing.assert_close(normed.mean(1), torch.zeros(16), rtol=0, atol=1e-5)
    torch.testing.assert_close(normed.square().mean(1), torch.ones(16), rtol=0, atol=1e-4)


# hand-over


def test_model_with_alpha_zero_has_the_fitted_maps_in_every_layer_for_any_image():
    position, _, (q, k, _) = default_fit(300, layers=3)
    vit = build_vit(replace(MODEL, alpha=0.0), 0, logit_scale=0.1)
    for layer, block in enumerate(vit.blocks):
        impulse.write_qk(block.attn, q[layer], k[layer])
    for images in (random_images(seed=1), 100 * random_images(seed=2)):
        _, recorded = vit(images, record=("logits",))
        for layer, logits in enumerate(recorded["logits"]):
            expected = impulse.attention_map(position, q[layer], k[layer], 0.1)
            torch.testing.assert_close(logits.softmax(-1), expected.expand(5, -1, -1, -1), rtol=0, atol=1e-5)
    assert not torch.equal(q[0], q[1])


@pytest.mark.parametrize("bias", [False, True])
def test_writing_queries_and_keys_changes_their_rows_only(bias):
    vit, before = (build_vit(replace(MODEL, qkv_bias=bias), 0, logit_scale=0.1) for _ in range(2))
    rng = torch.Generator().manual_seed(0)
    q, k = torch.randn(4, 32, 8, generator=rng), torch.randn(4, 8, 32, generator=rng)
    impulse.write_qk(vit.blocks[1].attn, q, k)
    weight = vit.blocks[1].attn.qkv.weight
    for h in range(4):
        for r in range(8):
            assert torch.equal(weight[8 * h + r], q[h, :, r])
            assert torch.equal(weight[32 + 8 * h + r], k[h, r])
    changed = {n for n, t in vit.state_dict().items() if not torch.equal(t, before.state_dict()[n])}
    assert changed == {"blocks.1.attn.qkv.weight"}
    assert torch.equal(weight[64:], before.blocks[1].attn.qkv.weight[64:])
    assert weight.requires_grad
    assert all(block.attn.logit_scale == 0.1 for block in vit.blocks)


def test_model_iii_has_the_fitted_maps_for_any_image():
    target = impulse.targets(impulse.offsets_ordered(4), 4, 4)
    eye = torch.eye(16)
    q, k, _ = impulse.fit_adam(eye, target, 8, 1.0, 400, 1e-2, 0, generator(0, "fit_init"))
    assert q.shape == (4, 16, 8) and k.shape == (4, 8, 16)
    vit = build_vit(FREE, 0, logit_scale=1.0)
    impulse.write_qk(vit.blocks[2].attn, q, k)
    _, recorded = vit(random_images(), record=("logits",))
    expected = impulse.attention_map(eye, q, k, 1.0)
    maps = recorded["logits"][2].softmax(-1)
    torch.testing.assert_close(maps, expected.expand(5, -1, -1, -1), rtol=0, atol=1e-5)
    assert impulse.fit_report(expected, target)["hit_rate"] == 1


def test_writing_into_a_layer_without_values_changes_all_of_its_rows():
    vit = build_vit(replace(MODEL, value=False), 0)
    q, k = torch.ones(4, 32, 8), 2 * torch.ones(4, 8, 32)
    impulse.write_qk(vit.blocks[0].attn, q, k)
    weight = vit.blocks[0].attn.qk.weight
    assert (weight[:32] == 1).all() and (weight[32:] == 2).all()
