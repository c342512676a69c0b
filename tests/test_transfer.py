import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnprior.config import Transfer
from attnprior.models.copying import Copied
from attnprior.models.vit import ViT, build_vit
from attnprior.transfer import copied_layers, distil_loss, taught, teacher_kl
from tests.oracle import MODEL, STANDARD, Arrays, assert_close, queries_keys, random_images, randomised

RECORDINGS = ["attention_transfer", "attention_transfer_width", "attention_transfer_drop_path"]


def network(recorded: Arrays, who: str) -> ViT:
    s = recorded.settings
    model = replace(
        STANDARD, image_size=s["img"], in_chans=3, num_classes=s["classes"], patch_size=s["patch"],
        embed_dim=s[f"{who}_dim"], depth=s["depth"], num_heads=s["heads"], pos_embed="learned",
        pool="mean_fc_norm" if s["mean_pool"] else "cls",
    )  # fmt: skip
    vit = ViT(model)
    vit.load_state_dict(recorded.under(f"w/{who}."))
    return vit.requires_grad_(who == "student")


def copies(teacher, images, layers, masks=None) -> list[Copied | None]:
    """The teacher's whole maps in the first layers, for a student of the same depth and heads."""
    transfer = Transfer("copy", "t", "map", {"first": layers}, "all", True, "same_image")
    given_parts = taught(teacher, images, transfer, teacher.config, None, masks)
    return copied_layers(given_parts, transfer, teacher.config, teacher)


def ends(recorded: Arrays, method: str) -> list[int]:
    return [e for e in range(3) if f"out/{method}/end{e}/logits_train" in recorded]


def assert_gradients(student: ViT, recorded: Arrays, prefix: str) -> None:
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in student.named_parameters()}
    expected = recorded.under(f"{prefix}/grad/student.")
    assert expected
    for name, gradient in expected.items():
        if (gradient == 0).all():
            assert (gradients[name] == 0).all()
        else:
            assert_close(gradients[name], gradient)
            zero = (gradient == 0).all(1)
            assert (gradients[name][zero] == 0).all()


@pytest.mark.parametrize("name", RECORDINGS)
def test_attention_logits_equal_the_recorded_ones(name):
    recorded = Arrays(name)
    for who in ("teacher", "student"):
        _, got = network(recorded, who)(recorded["in/images"], record=("logits",))
        assert_close(torch.stack(got["logits"]), recorded[f"out/attn_logits/{who}"])


@pytest.mark.parametrize("name", RECORDINGS)
def test_distillation_equals_the_recorded_one(name):
    recorded = Arrays(name)
    images, masks, teacher = (
        recorded["in/images"],
        recorded.get("in/drop_masks"),
        network(recorded, "teacher"),
    )
    for end in ends(recorded, "distill"):
        prefix, student = f"out/distill/end{end}", network(recorded, "student")
        layers = recorded.settings["depth"] - end
        given_qk = queries_keys(teacher, images, layers, masks)
        logits, got = student(images, record=("q", "k"), drop_masks=masks)
        assert_close(logits, recorded[f"{prefix}/logits_train"])
        own = list(zip(got["q"], got["k"], strict=True))
        loss = distil_loss(own[:layers], given_qk, student.logit_scale, teacher.logit_scale)
        assert_close(loss, recorded[f"{prefix}/transfer_loss"])
        loss.backward()
        assert_gradients(student, recorded, prefix)
        if f"{prefix}/logits_eval" in recorded:
            assert_close(student(images)[0], recorded[f"{prefix}/logits_eval"])


@pytest.mark.parametrize("name", RECORDINGS)
def test_copying_equals_the_recorded_one(name):
    recorded = Arrays(name)
    images, masks, teacher = (
        recorded["in/images"],
        recorded.get("in/drop_masks"),
        network(recorded, "teacher"),
    )
    depth = recorded.settings["depth"]
    for end in ends(recorded, "copy"):
        prefix, student = f"out/copy/end{end}", network(recorded, "student")
        copied = copies(teacher, images, depth - end, masks)
        logits, _ = student(images, copied=copied, drop_masks=masks)
        assert_close(logits, recorded[f"{prefix}/logits_train"])
        loss = F.cross_entropy(logits, recorded["in/labels"])
        assert_close(loss, recorded[f"{prefix}/task_loss"])
        loss.backward()
        assert_gradients(student, recorded, prefix)
        if f"{prefix}/logits_eval" in recorded:
            copied = copies(teacher, images, depth - end)
            assert_close(student(images, copied=copied)[0], recorded[f"{prefix}/logits_eval"])


@pytest.fixture(params=[MODEL, STANDARD], ids=["model_i", "standard"])
def pair(request):
    """Student and teacher of one architecture with different weights."""
    return tuple(randomised(build_vit(request.param, seed), seed + 1) for seed in (0, 1))


def pairs_of(vit, images):
    _, recorded = vit(images, record=("q", "k"))
    return list(zip(recorded["q"], recorded["k"], strict=True))


def test_a_network_that_copies_itself_is_unchanged(pair):
    vit, images = pair[0], random_images()
    copied = copies(vit, images, 3)
    torch.testing.assert_close(vit(images, copied=copied)[0], vit(images)[0])


def test_copying_one_layer_is_not_the_plain_student(pair):
    student, teacher = pair
    images = random_images()
    plain, _ = student(images)
    assert torch.equal(student(images, copied=[None] * 3)[0], plain)
    assert not torch.allclose(student(images, copied=copies(teacher, images, 1))[0], plain)


def test_copied_layers_keep_queries_and_keys_in_their_places(pair):
    images, teacher = random_images(), pair[1]
    copied = copies(teacher, images, 2)
    assert [c is None for c in copied] == [False, False, True]
    for (q, k), given_layer in zip(queries_keys(teacher, images, 2), copied[:2], strict=True):
        assert torch.equal(given_layer.q, q) and torch.equal(given_layer.k, k)
        assert given_layer.scale == teacher.logit_scale and given_layer.v is None


def test_swapping_queries_and_keys_of_the_teacher_changes_the_student(pair):
    student, teacher = pair
    images = random_images()
    copied = copies(teacher, images, 3)
    swapped = [replace(c, q=c.k, k=c.q) for c in copied]
    outputs = [student(images, copied=x)[0] for x in (copied, swapped)]
    assert not torch.allclose(*outputs)


def test_own_queries_and_keys_of_copied_layers_do_not_matter_but_values_do(pair):
    student, teacher = pair
    images = random_images()
    copied = copies(teacher, images, 2)
    before, _ = student(images, copied=copied)
    before.square().sum().backward()
    for layer in range(2):
        assert (student.blocks[layer].attn.qkv.weight.grad[:64] == 0).all()
        assert (student.blocks[layer].attn.qkv.weight.grad[64:] != 0).any()
    assert (student.blocks[2].attn.qkv.weight.grad[:64] != 0).any()
    with torch.no_grad():
        student.blocks[0].attn.qkv.weight[:64] += 1
    assert torch.equal(student(images, copied=copied)[0], before)
    with torch.no_grad():
        student.blocks[0].attn.qkv.weight[64:] += 1
    assert not torch.allclose(student(images, copied=copied)[0], before)


def test_teacher_queries_with_equal_student_keys_copy_the_map(pair):
    student, teacher = pair
    images = random_images()
    for part in ("patch_embed", "norm1"):
        ours, theirs = (v.patch_embed if part == "patch_embed" else v.blocks[0].norm1 for v in pair)
        ours.load_state_dict(theirs.state_dict())
    if student.cls_token is not None:
        student.cls_token.data.copy_(teacher.cls_token)
    with torch.no_grad():
        student.blocks[0].attn.qkv.weight[32:64] = teacher.blocks[0].attn.qkv.weight[32:64]
        if student.config.qkv_bias:
            student.blocks[0].attn.qkv.bias[32:64] = teacher.blocks[0].attn.qkv.bias[32:64]
    whole = copies(teacher, images, 1)
    mixed, _ = student(images, copied=[replace(whole[0], k=None, scale=None), None, None])
    torch.testing.assert_close(mixed, student(images, copied=whole)[0])


def entropy(qk, scale, layers=3):
    total = 0.0
    for q, k in qk[:layers]:
        rows = (scale * q @ k.transpose(-1, -2)).softmax(-1)
        total += torch.special.entr(rows).sum(-1).mean()
    return total


def test_loss_is_least_for_equal_maps_where_it_is_the_teachers_entropy(pair):
    student, teacher = pair
    images = random_images()
    own, given_qk = pairs_of(student, images), queries_keys(teacher, images, 3)
    scale = teacher.logit_scale
    floor = entropy(given_qk, scale)
    torch.testing.assert_close(distil_loss(given_qk, given_qk, scale, scale), floor)
    loss = distil_loss(own, given_qk, student.logit_scale, scale)
    assert loss > floor + 0.01
    torch.testing.assert_close(teacher_kl(own, given_qk, student.logit_scale, scale), loss.detach() - floor)
    assert abs(teacher_kl(given_qk, given_qk, scale, scale)) < 1e-5


def test_descending_the_loss_brings_the_maps_closer(pair):
    student, teacher = pair
    images = random_images()
    scale, given_qk = teacher.logit_scale, queries_keys(teacher, images, 3)
    before = teacher_kl(pairs_of(student, images), given_qk, student.logit_scale, scale)
    for _ in range(5):
        student.zero_grad()
        distil_loss(pairs_of(student, images), given_qk, student.logit_scale, scale).backward()
        with torch.no_grad():
            for block in student.blocks:
                block.attn.qkv.weight -= 0.02 * block.attn.qkv.weight.grad
    after = teacher_kl(pairs_of(student, images), given_qk, student.logit_scale, scale)
    assert 0 <= after < before


def draw_qk(layers=2, batch=3, heads=2, tokens=5, width=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shape = (batch, heads, tokens, width)
    return [
        tuple(torch.randn(shape, dtype=torch.float64, generator=rng) for _ in range(2)) for _ in range(layers)
    ]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(2, 6), st.integers(1, 5))
def test_loss_equals_its_definition(layers, batch, heads, tokens, width):
    own = draw_qk(3, batch, heads, tokens, width, seed=1)
    other = draw_qk(3, batch, heads, tokens, 3, seed=2)  # another head width
    total = 0.0
    for layer in range(layers):
        for b in range(batch):
            for h in range(heads):
                z = [s * qk[layer][0][b, h] @ qk[layer][1][b, h].T for s, qk in ((0.4, own), (0.7, other))]
                rows = F.cross_entropy(z[0], z[1].softmax(-1), reduction="sum")
                total += rows / (batch * heads * tokens)
    torch.testing.assert_close(distil_loss(own[:layers], other[:layers], 0.4, 0.7), total)


def test_flat_student_maps_cost_the_log_of_the_tokens():
    zero = [(torch.zeros_like(q), k) for q, k in draw_qk()]
    torch.testing.assert_close(
        distil_loss(zero, draw_qk(seed=3), 0.5, 0.5), torch.tensor(2 * math.log(5), dtype=torch.float64)
    )


def test_one_hot_teacher_costs_the_log_probability_of_its_key():
    ((q, k),) = draw_qk(1, tokens=4)
    ((own_q, own_k),) = draw_qk(1, tokens=4, seed=5)
    choice = (q @ k.transpose(-1, -2)).argmax(-1, keepdim=True)
    log_map = (0.5 * own_q @ own_k.transpose(-1, -2)).log_softmax(-1)
    loss = distil_loss([(own_q, own_k)], [(q, k)], 0.5, 1e6)
    torch.testing.assert_close(loss, -log_map.gather(-1, choice).mean())


def test_a_constant_added_to_rows_of_logits_changes_nothing():
    own, other = draw_qk(1), draw_qk(1, seed=7)

    def shifted(qk):  # a further head dimension with the same key entry for all: one constant per row
        return [
            (torch.cat([q, 3 * q[..., :1]], -1), torch.cat([k, torch.ones_like(k[..., :1])], -1))
            for q, k in qk
        ]

    expected = distil_loss(own, other, 0.5, 0.5)
    torch.testing.assert_close(distil_loss(shifted(own), other, 0.5, 0.5), expected)
    torch.testing.assert_close(distil_loss(own, shifted(other), 0.5, 0.5), expected)


def test_gradient_of_the_logits_is_the_difference_of_the_maps():
    """With keys equal to unit vectors the queries are the logits."""
    z = torch.randn(2, 2, 3, 4, 4, dtype=torch.float64, requires_grad=True)  # layers B H N N
    unit = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4)
    other = draw_qk(2, 2, 3, 4, 3)
    distil_loss([(z[0], unit)], other[:1], 1.0, 0.7).backward()
    target = (0.7 * other[0][0] @ other[0][1].transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(z.grad[0], (z[0].softmax(-1) - target) / (2 * 3 * 4))
    assert (z.grad[1] == 0).all()  # a layer that is not transferred


def test_loss_is_a_mean_over_batch_and_heads_and_a_sum_over_layers():
    own, other = draw_qk(1), draw_qk(1, seed=7)
    expected = distil_loss(own, other, 0.5, 0.5)
    for dim in (0, 1):
        double = [[tuple(torch.cat([x, x], dim) for x in pair) for pair in qk] for qk in (own, other)]
        torch.testing.assert_close(distil_loss(*double, 0.5, 0.5), expected)
    torch.testing.assert_close(distil_loss(own * 2, other * 2, 0.5, 0.5), 2 * expected)


def test_heads_are_matched_by_index():
    own, other = draw_qk(1, heads=3), draw_qk(1, heads=3, seed=7)
    moved = [[tuple(x[:, [2, 0, 1]] for x in pair) for pair in qk] for qk in (own, other)]
    expected = distil_loss(own, other, 0.5, 0.5)
    torch.testing.assert_close(distil_loss(*moved, 0.5, 0.5), expected)
    assert not torch.isclose(distil_loss(own, moved[1], 0.5, 0.5), expected)


def test_weight_zero_gives_the_gradients_of_training_from_scratch(pair):
    student, teacher = pair
    images, labels = random_images(), torch.arange(5)
    gradients = []
    for weight in (None, 0.0):
        student.zero_grad()
        logits, got = student(images, record=("q", "k"))
        loss = F.cross_entropy(logits, labels)
        if weight is not None:
            qk = list(zip(got["q"], got["k"], strict=True))
            given_qk = queries_keys(teacher, images, 3)
            loss = loss + weight * distil_loss(qk, given_qk, student.logit_scale, teacher.logit_scale)
        loss.backward()
        gradients.append({n: p.grad.clone() for n, p in student.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_no_gradient_reaches_the_teacher(pair):
    student, teacher = pair
    images = random_images()
    given_qk = pairs_of(teacher, images)  # with a graph
    loss = distil_loss(pairs_of(student, images), given_qk, student.logit_scale, teacher.logit_scale)
    copied = copies(teacher, images, 3)
    (loss + student(images, copied=copied)[0].sum()).backward()
    assert all(p.grad is None for p in teacher.parameters())
