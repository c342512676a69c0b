from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior import config
from attnprior.errors import UserError
from attnprior.models.mae import (
    MAE,
    build_mae,
    load_pretrained,
    load_teacher_encoder,
    patchify,
    random_masking,
    random_teacher,
    teacher_tensors,
    unpatchify,
)
from attnprior.models.position import interpolated
from attnprior.models.vit import build_vit
from tests.oracle import DECODER, MODEL, ROPE, STANDARD, Arrays, assert_close, random_images, randomised

HEADER = {"model": asdict(MODEL), "logit_scale": 8**-0.5}


def recorded_mae(recorded: Arrays, norm_pix: bool) -> MAE:
    """Return the network of a recording made with the authors' names."""
    s = recorded.settings
    model = replace(
        STANDARD, image_size=s["img"], in_chans=3, patch_size=s["patch"], embed_dim=s["D"], depth=s["depth"],
        num_heads=s["heads"],
    )  # fmt: skip
    decoder = config.Decoder(s["E"], s["decoder_depth"], s["decoder_heads"], 2.0)
    mae = MAE(model, decoder, s["mask_ratio"], norm_pix)
    state = {}
    for name, tensor in recorded.under("w/").items():
        if name == "mask_token":
            state["decoder.mask_token"] = tensor
        elif name.startswith("decoder_"):
            state[f"decoder.{name[8:]}"] = tensor
        else:
            state[f"encoder.{name}"] = tensor
    assert_close(mae.encoder.pos_embed, state.pop("encoder.pos_embed"))
    assert_close(mae.decoder.pos_embed, state.pop("decoder.pos_embed"))
    mae.load_state_dict(state)
    return mae


@pytest.mark.parametrize("target", ["raw_pix", "norm_pix"])
@pytest.mark.parametrize("ratio", [50, 75])
def test_masked_autoencoder_reproduces_the_recorded_network(ratio, target):
    recorded = Arrays(f"mae_ratio{ratio}")
    mae = recorded_mae(recorded, target == "norm_pix")
    images, noise = recorded["in/images"], recorded["in/noise"]
    ids_keep, ids_restore, mask = random_masking(noise, recorded.settings["keep"])
    assert mae.keep == recorded.settings["keep"]
    assert torch.equal(ids_restore, recorded["out/ids_restore"])
    assert torch.equal(mask, recorded["out/mask"])
    assert_close(mae.encoder.encode(patchify(images, 4), ids_keep), recorded["out/latent"])
    loss, pred, mask = mae(images, noise)
    assert torch.equal(mask, recorded["out/mask"])
    assert_close(pred, recorded["out/pred"])
    assert_close(loss, recorded[f"out/loss/{target}"])
    loss.backward()
    gradients = {n: p.grad for n, p in mae.named_parameters()}
    for name, expected in recorded.under(f"out/grad/{target}/").items():
        assert_close(gradients["decoder.mask_token" if name == "mask_token" else f"encoder.{name}"], expected)


def test_patch_vectors_equal_the_recorded_ones_both_ways():
    recorded = Arrays("mae_ratio75")
    assert torch.equal(patchify(recorded["in/images"], 4), recorded["out/patchify"])
    assert torch.equal(unpatchify(recorded["out/pred"], 4, 3), recorded["out/unpatchify"])


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_patchify_and_unpatchify_undo_each_other(grid, patch, channels):
    images = torch.randn(2, channels, grid * patch, grid * patch)
    assert torch.equal(unpatchify(patchify(images, patch), patch, channels), images)
    patches = torch.randn(2, grid**2, patch**2 * channels)
    assert torch.equal(patchify(unpatchify(patches, patch, channels), patch), patches)


@given(st.integers(2, 40), st.data())
def test_masking_keeps_the_number_asked_for_and_can_be_undone(n, data):
    keep = data.draw(st.integers(1, n - 1))
    noise = torch.rand(3, n, generator=torch.Generator().manual_seed(n * 100 + keep))
    ids_keep, ids_restore, mask = random_masking(noise, keep)
    assert ids_keep.shape == (3, keep)
    assert (mask.sum(1) == n - keep).all() and set(mask.unique().tolist()) <= {0.0, 1.0}
    assert (mask.gather(1, ids_keep) == 0).all()  # the visible patches are those of mask 0
    shuffled = torch.arange(n).expand(3, n).gather(1, noise.argsort(1))
    assert torch.equal(shuffled.gather(1, ids_restore), torch.arange(n).expand(3, n))


def test_every_position_is_hidden_at_the_mask_ratio():
    _, _, mask = random_masking(torch.rand(20000, 16, generator=torch.Generator().manual_seed(0)), 6)
    torch.testing.assert_close(mask.mean(0), torch.full((16,), 10 / 16), rtol=0, atol=0.02)
    assert not torch.equal(mask[0], mask[1])


@pytest.mark.parametrize(
    ("patches", "ratio", "keep"), [(16, 0.6, 6), (16, 0.75, 4), (100, 0.9, 10), (16, 0.8, 3)]
)
def test_mask_ratio_decides_how_many_patches_are_visible(patches, ratio, keep):
    model = replace(MODEL, image_size=round(patches**0.5) * 2, pos_embed="sincos2d")
    mae = build_mae(model, DECODER, ratio, False, 0)
    seen = []
    mae.encoder.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    _, _, mask = mae(random_images(2, model), torch.rand(2, patches))
    assert seen == [keep]
    assert (mask.sum(1) == patches - keep).all()


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.99, 1.0])
def test_ratio_that_hides_nothing_or_everything_is_refused(ratio):
    with pytest.raises(UserError, match="mask_ratio"):
        MAE(MODEL, DECODER, ratio, False)


@pytest.mark.parametrize("model", [MODEL, STANDARD])
@pytest.mark.parametrize("norm_pix", [False, True])
def test_loss_reads_hidden_patches_only(model, norm_pix):
    mae = randomised(build_mae(model, DECODER, 0.6, norm_pix, 0))
    images, noise = random_images(4), torch.rand(4, 16, generator=torch.Generator().manual_seed(1))
    loss, pred, mask = mae(images, noise)
    pred.retain_grad()
    loss.backward()
    touched = (pred.grad != 0).any(2)
    assert torch.equal(touched, mask.bool())
    # by hand, over the hidden patches
    target = patchify(images, 2)
    if norm_pix:
        target = (target - target.mean(2, keepdim=True)) / (target.var(2, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(loss, (pred - target)[mask.bool()].square().mean())


def test_perfect_prediction_of_hidden_patches_costs_nothing():
    mae = build_mae(MODEL, DECODER, 0.6, False, 0)
    images, noise = random_images(4), torch.rand(4, 16)
    _, _, mask = mae(images, noise)
    answer = patchify(images, 2) + 100 * (1 - mask[:, :, None])  # wrong where visible
    mae.decoder.forward = lambda latent, ids_restore: answer
    assert mae(images, noise)[0] == 0


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_encoder_does_not_see_hidden_pixels(model):
    mae = randomised(build_mae(model, DECODER, 0.6, False, 0))
    images, noise = random_images(4), torch.rand(4, 16)
    ids_keep, _, mask = random_masking(noise, mae.keep)
    changed = unpatchify(patchify(images, 2) + 5 * mask[:, :, None], 2, 1)
    before, after = (mae.encoder.encode(patchify(x, 2), ids_keep) for x in (images, changed))
    assert torch.equal(before, after)
    assert torch.equal(mae(images, noise)[1], mae(changed, noise)[1])


@pytest.mark.parametrize("norm_pix", [False, True])
def test_normalised_targets_ignore_scale_and_offset_of_a_patch(norm_pix):
    mae = randomised(build_mae(MODEL, DECODER, 0.6, norm_pix, 0)).double()
    images, noise = random_images(4).double(), torch.rand(4, 16, dtype=torch.float64)
    mask = mae(images, noise)[2][:, :, None]
    patches = patchify(images, 2)
    changed = unpatchify(patches * (1 - mask) + mask * (3 * patches + 2), 2, 1)  # hidden patches
    same = torch.isclose(mae(images, noise)[0], mae(changed, noise)[0], rtol=1e-4)
    assert same == norm_pix


def test_zero_prediction_has_the_known_normalised_loss():
    mae = build_mae(MODEL, DECODER, 0.6, True, 0)
    mae.decoder.forward = lambda latent, ids_restore: torch.zeros(4, 16, 4)
    loss, _, _ = mae(10 * random_images(4), torch.rand(4, 16))
    assert loss.item() == pytest.approx(3 / 4, rel=1e-4)  # (P - 1) / P, up to the epsilon
    assert mae(torch.ones(4, 1, 8, 8), torch.rand(4, 16))[0] == 0  # constant patches: all-zero target


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_order_of_visible_patches_only_permutes_the_encoding(model):
    mae = randomised(build_mae(model, DECODER, 0.5, False, 0)).double()
    patches = patchify(random_images(4), 2).double()
    keep = torch.stack([torch.randperm(16)[:8] for _ in range(4)])
    order = torch.randperm(8)
    prefix = int(model.cls_token)
    straight, moved = mae.encoder.encode(patches, keep), mae.encoder.encode(patches, keep[:, order])
    torch.testing.assert_close(moved[:, prefix:], straight[:, prefix:][:, order], rtol=0, atol=1e-10)
    torch.testing.assert_close(moved[:, :prefix], straight[:, :prefix], rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_keeping_every_patch_in_place_is_the_plain_encoder(model):
    encoder = randomised(build_mae(model, DECODER, 0.5, False, 0)).encoder
    images = random_images(4)
    everything = torch.arange(16).expand(4, 16)
    _, recorded = encoder(images, record=("tokens",))
    torch.testing.assert_close(
        encoder.encode(patchify(images, 2), everything), encoder.norm(recorded["tokens"][-1])
    )


def test_position_codes_get_no_gradient_and_the_mask_token_does():
    mae = build_mae(STANDARD, DECODER, 0.6, False, 0)
    mae(random_images(4), torch.rand(4, 16))[0].backward()
    assert (mae.decoder.mask_token.grad != 0).any()
    assert not mae.encoder.pos_embed.requires_grad and not mae.decoder.pos_embed.requires_grad
    assert all(p.grad is not None for p in mae.parameters())  # nothing is carried along unused


def test_decoder_rows_belong_to_image_patches_in_order():
    """Overfit one image under a fixed mask; the hidden patches must come out in their places."""
    mae = build_mae(replace(MODEL, depth=1), DECODER, 0.5, False, 0)
    images, noise = random_images(1), torch.rand(1, 16, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(mae.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss, pred, mask = mae(images, noise)
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    error = (unpatchify(pred, 2, 1) - images).square()
    hidden = unpatchify(mask[:, :, None].expand(-1, -1, 4), 2, 1).bool()
    assert error[hidden].mean() < 0.02 < error[~hidden].mean()


def test_initial_weights_are_xavier_uniform():
    mae = build_mae(replace(STANDARD, embed_dim=64), DECODER, 0.6, False, 0)
    for weight, fan in (
        (mae.encoder.blocks[0].attn.qkv.weight, 64 + 192),
        (mae.encoder.patch_embed.proj.weight, 68),
    ):
        bound = (6 / fan) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
    assert (mae.encoder.blocks[0].attn.qkv.bias == 0).all()
    assert mae.decoder.mask_token.std().item() == pytest.approx(0.02, rel=0.7)


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_teacher_file_gives_back_the_frozen_encoder(model):
    mae = randomised(build_mae(model, DECODER, 0.6, False, 0))
    tensors = teacher_tensors(mae)
    assert {name.partition(".")[0] for name in tensors} == {"encoder", "decoder"}
    teacher = load_teacher_encoder(tensors, {"model": asdict(model), "logit_scale": 0.3})
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    assert teacher.logit_scale == teacher.blocks[0].attn.logit_scale == 0.3
    keep = torch.arange(16).expand(5, 16)
    patches = patchify(random_images(), 2)
    same = load_teacher_encoder(tensors, {"model": asdict(model), "logit_scale": 8**-0.5})
    torch.testing.assert_close(same.encode(patches, keep), mae.encoder.encode(patches, keep))


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_fine_tuning_starts_from_the_encoder_with_a_fresh_head(model):
    mae = randomised(build_mae(model, DECODER, 0.6, False, 0))
    student, fresh = build_vit(model, 0), build_vit(model, 0)
    load_pretrained(student, teacher_tensors(mae))
    for name, tensor in student.state_dict().items():
        own = name.startswith(("head.", "fc_norm."))
        expected = fresh.state_dict()[name] if own else mae.encoder.state_dict()[name]
        assert torch.equal(tensor, expected)
    copy = student.blocks[0].mlp.fc1.weight
    assert copy.data_ptr() != mae.encoder.blocks[0].mlp.fc1.weight.data_ptr()


def test_fine_tuning_on_another_grid_starts_from_the_interpolated_code():
    model = replace(STANDARD, pos_embed="learned")
    tensors = teacher_tensors(randomised(build_mae(model, DECODER, 0.6, False, 0)))
    student = build_vit(replace(model, image_size=12), 0)
    load_pretrained(student, tensors)
    assert torch.equal(student.pos_embed, interpolated(tensors["encoder.pos_embed"], 1, 6))
    student(random_images(2, student.config))


@pytest.mark.parametrize("masking", ["random", "block", "grid"])
def test_every_way_of_masking_hides_the_same_number_of_patches(masking):
    mae = build_mae(MODEL, DECODER, 0.75, False, 0, masking)
    _, pred, mask = mae(random_images(), mae.noise(5, torch.Generator().manual_seed(0)))
    assert pred.shape == (5, 16, 4) and (mask.sum(1) == 12).all()


def test_a_rotary_encoder_turns_visible_tokens_by_their_true_places():
    mae = randomised(build_mae(ROPE, DECODER, 0.5, False, 0)).double()
    images = random_images().double()
    noise = torch.rand(5, 16, generator=torch.Generator().manual_seed(0))
    _, pred, _ = mae(images, noise)
    order = noise.argsort(1)
    other = noise.scatter(1, order[:, :8], noise.gather(1, order[:, :8].flip(1)))  # seen in another order
    torch.testing.assert_close(mae(images, other)[1], pred, rtol=0, atol=1e-10)
    table = mae.encoder.pos_embed
    table.copy_(table.roll(1, 1))
    assert not torch.allclose(mae(images, noise)[1], pred)


def test_pretrained_weights_of_another_model_are_refused_by_name_and_shape():
    tensors = teacher_tensors(build_mae(MODEL, DECODER, 0.6, False, 0))
    with pytest.raises(UserError, match=r"missing cls_token") as caught:
        load_pretrained(build_vit(STANDARD, 0), tensors)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"unexpected blocks\.2"):
        load_pretrained(build_vit(replace(MODEL, depth=2), 0), tensors)
    with pytest.raises(
        UserError, match=r"blocks\.0\.mlp\.fc1\.weight has shape \(64, 32\) and not \(96, 32\)"
    ):
        load_pretrained(build_vit(replace(MODEL, mlp_ratio=3.0), 0), tensors)
    with pytest.raises(UserError, match=r"missing"):
        load_teacher_encoder({}, HEADER)


def test_untrained_teacher_does_not_share_weights_with_a_student_of_its_seed():
    teacher, student = random_teacher(MODEL, 0), build_vit(MODEL, 0)
    loaded = load_teacher_encoder(teacher_tensors(teacher), HEADER)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, teacher.state_dict()[name])
        if "norm" not in name:
            assert not torch.equal(tensor, student.state_dict()[name])
