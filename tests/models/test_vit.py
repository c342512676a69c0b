from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior import config
from attnprior.models import vit as module
from attnprior.models.vit import ViT, build_vit, drop_path_masks, patchify
from tests.oracle import (
    FREE,
    MODEL,
    ROPE,
    STANDARD,
    Arrays,
    assert_close,
    queries_keys,
    random_images,
    randomised,
)

SIMPLE = ["alpha00", "alpha01", "alpha01_gamma", "alpha05", "identity", "input_pe", "model3", "no_pe"]
EVERY = ("q", "k", "logits", "tokens", "features")


def simple_vit(recorded: Arrays) -> ViT:
    """Return the network of a recording made with the authors' names."""
    s = recorded.settings
    free = not (s["spatial_pe"] or s["spatial_x"])
    model = config.Model(
        kind="vit",
        image_size=s["image"],
        in_chans=3,
        num_classes=s["classes"],
        patch_size=s["patch"],
        patch_norm=True,
        embed_dim=s["dim"],
        depth=s["depth"],
        num_heads=s["heads"],
        mlp_ratio=s["mlp"] / s["dim"],
        attention="free" if free else "qk",
        value=True,
        qkv_bias=False,
        proj_bias=False,
        logit_scale=s["gamma"],
        norm_eps=1e-5,
        pos_embed="sincos2d_simple" if s["input_pe"] or s["spatial_pe"] else "none",
        pos_at="input" if s["input_pe"] else "qk" if s["spatial_pe"] else "none",
        alpha=s["alpha"] if s["spatial_pe"] or s["input_pe"] else 1.0,
        cls_token=False,
        pool="mean",
        weight_init="torch",
    )
    vit, w, p = ViT(model), recorded.under("w/"), s["patch"]
    state = {
        # their patch vector and ours: (row, column, channel)
        "patch_embed.proj.weight": w["to_patch_embedding.2.weight"].view(-1, p, p, 3).permute(0, 3, 1, 2),
        "patch_embed.proj.bias": w["to_patch_embedding.2.bias"],
    }
    names = {
        "to_patch_embedding.1": "patch_embed.norm_in",
        "to_patch_embedding.3": "patch_embed.norm_out",
        "transformer.norm": "norm",
        "linear_head": "head",
    }
    for layer in range(s["depth"]):
        theirs, ours = f"transformer.layers.{layer}", f"blocks.{layer}"
        if free:
            for name in "QK":
                state[f"{ours}.attn.{name.lower()}"] = w[f"{theirs}.0.{name}"]
            state[f"{ours}.attn.v.weight"] = w[f"{theirs}.0.to_v.weight"]
        else:
            parts = [w[f"{theirs}.0.to_{name}.weight"] for name in ("qk", "v")]
            state[f"{ours}.attn.qkv.weight"] = torch.cat(parts)
        state[f"{ours}.attn.proj.weight"] = w[f"{theirs}.0.to_out.weight"]
        names[f"{theirs}.0.norm"] = f"{ours}.norm1"
        for index, name in ((0, "norm2"), (1, "mlp.fc1"), (3, "mlp.fc2")):
            names[f"{theirs}.1.net.{index}"] = f"{ours}.{name}"
    for theirs, ours in names.items():
        state[f"{ours}.weight"], state[f"{ours}.bias"] = w[f"{theirs}.weight"], w[f"{theirs}.bias"]
    vit.load_state_dict(state)
    if vit.pos_embed is not None:
        vit.pos_embed.copy_(recorded["in/pos_embedding"][None])
    return vit


@pytest.mark.parametrize("variant", SIMPLE)
def test_simple_vit_reproduces_the_recorded_network(variant):
    recorded = Arrays(f"simple_vit_{variant}")
    vit = simple_vit(recorded)
    images, labels = recorded["in/images"], recorded["in/labels"]
    assert_close(vit.patch_embed(patchify(images, 4)), recorded["out/patch_embed"])
    logits, got = vit(images, record=("logits", "tokens"))
    assert_close(logits, recorded["out/logits"])
    assert_close(vit(images)[0], recorded["out/logits"])  # fused path
    assert_close(vit.norm(got["tokens"][-1]), recorded["out/final_tokens"])
    for layer, attention in enumerate(got["logits"]):
        expected = recorded[f"out/attn/{layer}"]
        assert_close(attention.softmax(-1), expected.expand_as(attention))  # of Model III: without batch
    loss = F.cross_entropy(vit(images)[0], labels)
    assert_close(loss, recorded["out/loss"])
    loss.backward()
    attn, theirs = vit.blocks[0].attn, "out/grad/transformer.layers.0.0"
    if vit.config.attention == "free":
        assert_close(attn.q.grad, recorded[f"{theirs}.Q"])
        assert_close(attn.k.grad, recorded[f"{theirs}.K"])
    else:
        expected = recorded[f"{theirs}.to_qk.weight"]
        assert_close(attn.qkv.weight.grad[: len(expected)], expected)


def test_one_minus_alpha_in_place_of_alpha_would_be_noticed():
    recorded = Arrays("simple_vit_alpha01")
    vit = simple_vit(recorded)
    vit.alpha = 1 - vit.alpha
    with pytest.raises(AssertionError, match="off by"):
        assert_close(vit(recorded["in/images"])[0], recorded["out/logits"])


@given(st.sampled_from([(8, 2, 1), (12, 3, 3), (4, 1, 3)]))
@settings(max_examples=5)
def test_patch_embedding_equals_the_strided_convolution(sizes):
    size, patch, channels = sizes
    model = replace(MODEL, image_size=size, patch_size=patch, in_chans=channels, patch_norm=False)
    embed = randomised(ViT(model)).patch_embed
    images = random_images(2, model)
    expected = embed.proj(images).flatten(2).transpose(1, 2)  # B D y x -> B N D
    torch.testing.assert_close(embed(patchify(images, patch)), expected)


def test_patch_vectors_run_over_row_column_channel():
    images = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    patches = patchify(images, 2)
    assert patches.shape == (2, 6, 12)
    for i, j, c in ((0, 0, 0), (1, 0, 2), (1, 1, 1)):
        assert patches[1, 4, (i * 2 + j) * 3 + c] == images[1, c, 2 + i, 2 + j]  # patch 4: y 1, x 1


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_recording_changes_nothing_and_has_the_promised_shapes(model):
    vit = randomised(build_vit(model, 0))
    images, tokens = random_images(), 16 + model.cls_token
    logits, recorded = vit(images, record=EVERY)
    torch.testing.assert_close(vit(images)[0], logits)
    assert logits.shape == (5, 10)
    assert {k: (len(v), tuple(v[0].shape)) for k, v in recorded.items()} == {
        "q": (3, (5, 4, tokens, 8)),
        "k": (3, (5, 4, tokens, 8)),
        "logits": (3, (5, 4, tokens, tokens)),
        "tokens": (3, (5, tokens, 32)),
        "features": (1, (5, 32)),
    }
    torch.testing.assert_close(vit.head(recorded["features"][0]), logits)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_queries_and_keys_of_the_first_layers_are_those_of_the_whole_pass(layers, alpha):
    vit = randomised(build_vit(replace(MODEL, alpha=alpha), 0))
    images, masks = random_images(), drop_path_masks(3, 0.5, 5, torch.Generator().manual_seed(0))
    _, recorded = vit(images, record=("q", "k"), drop_masks=masks)
    pairs = queries_keys(vit, images, layers, masks)
    assert len(pairs) == layers
    for layer, (q, k) in enumerate(pairs):
        torch.testing.assert_close(q, recorded["q"][layer])
        torch.testing.assert_close(k, recorded["k"][layer])
        assert not q.requires_grad


def test_queries_and_keys_stop_at_the_last_layer_asked_for(monkeypatch):
    vit = build_vit(MODEL, 0)
    calls = []
    monkeypatch.setattr(module.Mlp, "forward", lambda self, x: calls.append(1) or x)
    queries_keys(vit, random_images(), 2)
    assert len(calls) == 1


def test_with_alpha_zero_the_map_does_not_depend_on_the_image():
    vit = randomised(build_vit(replace(MODEL, alpha=0.0), 0))
    _, recorded = vit(random_images(), record=("logits",))
    for logits in recorded["logits"]:
        assert torch.equal(logits, logits[:1].expand_as(logits))


@pytest.mark.parametrize("model", [replace(MODEL, alpha=0.0), FREE, replace(FREE, value=False)])
def test_the_one_map_of_a_batch_is_that_of_every_image(model):
    vit, images = randomised(build_vit(model, 0)), random_images()
    logits, recorded = vit(images, record=EVERY)
    torch.testing.assert_close(torch.cat([vit(image[None])[0] for image in images]), logits)
    assert recorded["logits"][0].shape == (5, 4, 16, 16) and recorded["q"][0].shape == (5, 4, 16, 8)
    assert recorded["logits"][0].stride(0) == 0  # held once


def test_one_map_of_a_batch_has_the_gradient_of_its_images_together():
    vit = randomised(build_vit(FREE, 0)).double()
    images = random_images().double()
    vit(images)[0].square().sum().backward()
    together = vit.blocks[0].attn.q.grad.clone()
    vit.zero_grad()
    for image in images:
        vit(image[None])[0].square().sum().backward()
    torch.testing.assert_close(vit.blocks[0].attn.q.grad, together)


def test_values_that_are_the_tokens_are_cut_into_heads():
    vit = randomised(build_vit(replace(MODEL, value=False), 0))
    attn, x = vit.blocks[0].attn, torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    record = {"logits": []}
    out = attn(x, position=vit.pos_embed, alpha=0.1, record=record)
    maps = record["logits"][0].softmax(-1)
    by_head = [maps[:, h] @ x[:, :, 8 * h : 8 * h + 8] for h in range(4)]
    torch.testing.assert_close(attn.proj(torch.cat(by_head, dim=2)), out)
    assert sum(p.numel() for p in attn.parameters()) == 3 * 32**2


@pytest.mark.parametrize("cls_token", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_at_the_input_one_adds_the_code_and_less_blends_it(cls_token, alpha):
    vit = randomised(build_vit(replace(MODEL, pos_at="input", alpha=alpha, cls_token=cls_token), 0))
    patches = patchify(random_images(), 2)
    x, code = vit.patch_embed(patches), vit.pos_embed[:, int(cls_token) :]
    found, position = vit.embed(patches)
    assert position is None
    expected = x + code if alpha == 1 else alpha * x + (1 - alpha) * code
    torch.testing.assert_close(found[:, int(cls_token) :], expected)


def test_logit_scale_of_the_settings_is_used_where_none_is_given():
    assert ViT(replace(MODEL, logit_scale=0.1)).logit_scale == 0.1
    assert ViT(replace(MODEL, logit_scale=0.1), logit_scale=0.2).blocks[0].attn.logit_scale == 0.2
    assert ViT(MODEL).blocks[0].attn.logit_scale == 8**-0.5


def test_rotary_maps_follow_their_tokens_by_place_and_not_by_order():
    vit, patches = randomised(build_vit(ROPE, 0)).double(), patchify(random_images(3), 2).double()
    keep = torch.randperm(16, generator=torch.Generator().manual_seed(0)).expand(3, -1)
    moved = vit.encode(patches, keep)
    torch.testing.assert_close(moved, vit.encode(patches)[:, keep[0]], rtol=0, atol=1e-10)
    some = vit.encode(patches, keep[:, :5])
    again = vit.encode(patches, keep[:, :5].flip(1))
    torch.testing.assert_close(again.flip(1), some, rtol=0, atol=1e-10)
    plain = randomised(build_vit(replace(ROPE, pos_embed="none", pos_at="none"), 0)).double()
    for a, b in zip(plain.parameters(), vit.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.allclose(plain.encode(patches), vit.encode(patches))


def test_a_class_token_is_not_turned():
    vit = randomised(build_vit(replace(ROPE, cls_token=True), 0))
    _, recorded = vit(random_images(), record=("q",))
    plain = randomised(build_vit(replace(ROPE, cls_token=True, pos_embed="none", pos_at="none"), 0))
    _, unturned = plain(random_images(), record=("q",))
    assert torch.equal(recorded["q"][0][:, :, :2], unturned["q"][0][:, :, :2])  # class token and patch (0, 0)
    assert not torch.allclose(recorded["q"][0][:, :, 2:], unturned["q"][0][:, :, 2:])


def test_free_queries_and_keys_have_the_law_of_the_released_code():
    q, k = (p for n, p in build_vit(FREE, 0).blocks[0].attn.named_parameters() if n in ("q", "k"))
    for tensor in (q, k):
        assert 0.9 * 0.25 < tensor.abs().max() <= 0.25  # 1/sqrt(16 tokens)
        assert tensor.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.1)


def test_mean_pooled_network_without_position_ignores_the_order_of_patches():
    model = replace(MODEL, pos_embed="none", pos_at="none", alpha=1.0)
    vit = randomised(build_vit(model, 0)).double()
    images = random_images().double()
    moved = images.view(5, 1, 4, 2, 8)[:, :, [2, 0, 3, 1]].reshape(5, 1, 8, 8)  # rows of patches permuted
    torch.testing.assert_close(vit(moved)[0], vit(images)[0], rtol=0, atol=1e-10)
    with_position = randomised(build_vit(MODEL, 0)).double()
    assert not torch.allclose(with_position(moved)[0], with_position(images)[0])


def test_class_token_output_ignores_the_order_of_patches():
    model = replace(STANDARD, pos_embed="none", pos_at="none", pool="cls")
    vit = randomised(build_vit(model, 0)).double()
    images = random_images().double()
    moved = images.view(5, 1, 4, 2, 8)[:, :, [2, 0, 3, 1]].reshape(5, 1, 8, 8)
    torch.testing.assert_close(vit(moved)[0], vit(images)[0], rtol=0, atol=1e-10)


def test_pooling_reads_what_its_name_says():
    images = random_images()
    for pool in ("mean", "mean_fc_norm", "cls"):
        vit = randomised(build_vit(replace(STANDARD, pool=pool), 0))
        _, recorded = vit(images, record=("tokens", "features"))
        last = recorded["tokens"][-1]
        expected = {
            "mean": lambda v, x: v.norm(x)[:, 1:].mean(1),
            "mean_fc_norm": lambda v, x: v.fc_norm(x[:, 1:].mean(1)),
            "cls": lambda v, x: v.norm(x[:, 0]),
        }[pool](vit, last)
        torch.testing.assert_close(recorded["features"][0], expected)


def test_fixed_codes_are_no_weights_and_learned_ones_are():
    assert "pos_embed" not in ViT(STANDARD).state_dict()
    learned = ViT(replace(STANDARD, pos_embed="learned"))
    assert learned.state_dict()["pos_embed"].shape == (1, 17, 32)
    assert dict(learned.named_parameters())["pos_embed"].requires_grad


def test_input_code_of_the_class_token_is_zero():
    vit = ViT(STANDARD)
    assert (vit.pos_embed[0, 0] == 0).all()
    assert (vit.pos_embed[0, 1:] != 0).any(1).all()


def test_learned_code_in_the_query_key_input_gets_a_gradient():
    vit = randomised(build_vit(replace(MODEL, pos_embed="learned"), 0))
    vit(random_images())[0].sum().backward()
    assert (vit.pos_embed.grad != 0).any()


@pytest.mark.parametrize(
    ("dim", "depth", "heads", "patch", "count"),
    [(192, 12, 3, 2, 5392714), (192, 12, 3, 4, 5362762), (128, 6, 4, 4, 1205898), (64, 4, 4, 4, 208074)],
)
def test_parameter_counts_of_known_networks(dim, depth, heads, patch, count):
    model = replace(
        STANDARD, image_size=32, in_chans=3, patch_size=patch, embed_dim=dim, depth=depth, num_heads=heads,
        mlp_ratio=4.0, pos_embed="learned", pool="cls",
    )  # fmt: skip
    assert sum(p.numel() for p in ViT(model).parameters()) == count


def test_parameter_count_of_the_published_simple_vit():
    model = replace(MODEL, image_size=32, in_chans=3, embed_dim=512, depth=6, num_heads=8, mlp_ratio=1.0)
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(model).parameters()) == 9469474


def test_all_input_variants_of_the_published_simple_vit_have_its_count():
    """Model III with free Q (8, 256, 64) and K has half the numbers in its maps: N is half of D."""
    model = replace(MODEL, image_size=32, in_chans=3, embed_dim=512, depth=6, num_heads=8, mlp_ratio=1.0)
    with torch.device("meta"):
        for change in (
            {"pos_embed": "none", "pos_at": "none", "alpha": 1.0},
            {"pos_at": "input", "alpha": 0.5},
            {"pos_embed": "identity", "alpha": 0.0},
        ):
            assert sum(p.numel() for p in ViT(replace(model, **change)).parameters()) == 9469474
        free = {"attention": "free", "pos_embed": "none", "pos_at": "none", "alpha": 1.0}
        count = sum(p.numel() for p in ViT(replace(model, **free)).parameters())
        assert count == 9469474 - 6 * 2 * 512 * (512 - 256)


def test_building_draws_from_its_seed_and_leaves_the_global_state():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = build_vit(MODEL, 0), build_vit(MODEL, 0), build_vit(MODEL, 1)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        if "norm" not in name:
            assert not torch.equal(tensor, other.state_dict()[name])


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_initial_weights_follow_the_law_of_their_kind(model):
    vit = build_vit(replace(model, embed_dim=64), 0)
    fc1, fc2, norm = vit.blocks[0].mlp.fc1, vit.blocks[0].mlp.fc2, vit.blocks[0].norm1
    assert (norm.weight == 1).all() and (norm.bias == 0).all()
    if model.weight_init == "torch":  # uniform on +-1/sqrt(fan_in)
        for layer, bound in ((fc1, 64**-0.5), (fc2, 128**-0.5), (vit.patch_embed.proj, 0.5)):
            for tensor in (layer.weight, layer.bias):
                assert 0.9 * bound < tensor.abs().max() <= bound
        assert fc1.weight.std().item() == pytest.approx((64 * 3) ** -0.5, rel=0.05)
    else:
        for layer in (fc1, fc2, vit.head, vit.blocks[1].attn.qkv):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert (layer.bias == 0).all()
        assert vit.patch_embed.proj.weight.abs().max() > 0.4  # convolution default: up to 0.5
        assert vit.cls_token.std().item() == pytest.approx(0.02, rel=0.3)


def test_drop_path_masks_keep_the_mean_and_spare_the_first_block():
    masks = drop_path_masks(3, 0.5, 20000, torch.Generator().manual_seed(0))
    assert masks.shape == (3, 2, 20000)
    assert (masks[0] == 1).all()
    for layer, rate in ((1, 0.25), (2, 0.5)):
        assert masks[layer].unique().tolist() == [0.0, pytest.approx(1 / (1 - rate))]
        assert masks[layer].mean().item() == pytest.approx(1, abs=0.02)
    assert not torch.equal(masks[2, 0], masks[2, 1])


def test_a_dropped_sample_passes_the_block_unchanged():
    vit = randomised(build_vit(MODEL, 0))
    images = random_images()
    masks = torch.ones(3, 2, 5)
    masks[1, :, 2] = 0
    _, dropped = vit(images, record=("tokens",), drop_masks=masks)
    _, plain = vit(images, record=("tokens",))
    first, second = dropped["tokens"][:2]
    assert torch.equal(second[2], first[2])
    torch.testing.assert_close(second[[0, 1, 3, 4]], plain["tokens"][1][[0, 1, 3, 4]])
