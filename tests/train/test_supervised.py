from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnprior.train.engine import Batch, train
from attnprior.train.supervised import Supervised, derangement, measure
from tests.oracle import queries_keys
from tests.train.small import RECIPE, NoCheckpoint, data, network


def batch(count=6, epoch=0, step=0):
    images, labels = data()
    index = torch.arange(count)
    return Batch(images.batch(index, 0, epoch, step), labels[index], epoch, step)


def maps(qk, scale):
    return [(scale * q @ k.transpose(-2, -1)).softmax(-1) for q, k in qk]


def test_alone_the_loss_is_the_smoothed_cross_entropy():
    net, b = network(), batch()
    values = Supervised(net, replace(RECIPE, label_smoothing=0.1), 0)(b)
    logits = net.student(b.images)[0]
    target = F.one_hot(b.labels, 3) * 0.9 + 0.1 / 3
    torch.testing.assert_close(values["loss"], -(target * logits.log_softmax(1)).sum(1).mean())
    assert values["train_top1"] == (logits.argmax(1) == b.labels).float().mean()


def test_distillation_adds_the_weighted_cross_entropy_of_maps():
    net, b = network("distil", weight=3.0), batch()
    values = Supervised(net, RECIPE, 0)(b)
    recorded = net.student(b.images, record=("logits",))[1]["logits"]
    given_maps = maps(queries_keys(net.teacher, b.images, 2), net.teacher.logit_scale)
    pairs = list(zip(given_maps, recorded, strict=True))
    expected = sum(-(t * s.log_softmax(-1)).sum(-1).mean() for t, s in pairs)
    entropy = sum(-(t * t.log()).sum(-1).mean() for t in given_maps)
    torch.testing.assert_close(values["transfer_loss"], expected)
    torch.testing.assert_close(values["transfer_kl"], expected - entropy, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(values["loss"], values["task_loss"] + 3 * expected)


def test_a_weight_of_zero_gives_the_gradients_of_training_alone():
    alone, distilled, b = network(), network("distil", weight=0.0), batch()
    for net in (alone, distilled):
        Supervised(net, RECIPE, 0)(b)["loss"].backward()
    for p, q in zip(alone.student.parameters(), distilled.student.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-7, rtol=1e-5)


def test_copying_leaves_queries_and_keys_without_gradient_and_uses_the_teachers_maps():
    net, b = network("copy"), batch()
    Supervised(net, RECIPE, 0)(b)["loss"].backward()
    for block in net.student.blocks:
        assert block.attn.qkv.weight.grad[:32].abs().max() == 0
        assert block.attn.qkv.weight.grad[32:].abs().max() > 0
    before = net.logits(b.images)
    net.student.blocks[0].attn.qkv.weight.data[:32] += 1
    assert torch.equal(net.logits(b.images), before)
    net.teacher.blocks[0].attn.qkv.weight.data[:32] += 1
    assert not torch.equal(net.logits(b.images), before)


def test_the_teacher_is_frozen_and_sees_the_students_drop_path_masks():
    recipe = replace(RECIPE, drop_path=0.5)
    net = network("copy")
    before = [p.clone() for p in net.teacher.parameters()]
    seen = []
    real, forward = net.teacher.intermediates, net.student.forward
    net.teacher.intermediates = lambda i, n, p, drop: seen.append((i, drop)) or real(i, n, p, drop)
    net.student.forward = lambda i, **k: seen.append((i, k["drop_masks"])) or forward(i, **k)
    train(
        net.student, Supervised(net, recipe, 0), *data(), replace(recipe, epochs=1), 0, NoCheckpoint(Path())
    )
    assert all(torch.equal(a, b) for a, b in zip(before, net.teacher.parameters(), strict=True))
    assert all(p.grad is None for p in net.teacher.parameters())
    for (teacher_images, teacher_drop), (images, drop) in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(teacher_images, images) and torch.equal(teacher_drop, drop)
        assert drop.shape == (2, 2, len(images)) and (drop == 0).any()


def test_distilled_students_predict_without_their_teacher():
    net = network("distil", weight=3.0)
    expected = net.student(batch().images)[0]
    net.teacher = None
    torch.testing.assert_close(net.logits(batch().images), expected.detach())


def test_the_control_takes_the_maps_of_another_image():
    own, other = (network("copy", maps=m) for m in ("same_image", "other_image"))
    b = batch()
    torch.testing.assert_close(
        other.logits(b.images)[0],
        own.student(b.images, copied=own.copied(b.images.roll(-1, 0), None, None))[0][0].detach(),
    )
    values = [Supervised(net, RECIPE, 0)(b)["loss"] for net in (own, other)]
    assert not torch.allclose(*values)


@given(st.integers(2, 50), st.integers(0, 1000))
def test_a_derangement_moves_every_image(count, seed):
    other = derangement(count, torch.Generator().manual_seed(seed))
    assert sorted(other.tolist()) == list(range(count))
    assert not (other == torch.arange(count)).any()


def test_prediction_does_not_depend_on_how_images_are_cut(monkeypatch):
    from attnprior.train import supervised

    net, images = network(), data()[0].plain()
    whole = net.predict(images)
    monkeypatch.setattr(supervised, "BATCH", 6)
    torch.testing.assert_close(net.predict(images), whole)
    assert whole.shape == (20, 3) and not whole.requires_grad


def test_measures_are_mean_cross_entropy_and_accuracy():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
    found = measure(logits, torch.tensor([0, 1, 1, 1]), "val")
    assert found["val_top1"] == 0.75
    expected = -sum(logits.log_softmax(1)[i, c] for i, c in enumerate([0, 1, 1, 1])) / 4
    assert found["val_loss"] == pytest.approx(expected.item())
