import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from attnprior.data.mixing import cut_boxes, mixed
from tests.train.small import AUGMENT

MIXUP = replace(AUGMENT, mixup=0.8, mix_probability=1.0)
CUTMIX = replace(AUGMENT, cutmix=1.0, mix_probability=1.0)
BOTH = replace(AUGMENT, mixup=0.8, cutmix=1.0, mix_probability=1.0, mix_switch=0.5)


def batch(count=6, size=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, size, size, generator=rng), torch.randint(5, (count,), generator=rng)


def shares(augment, count=2000, epoch=0):
    """The share of itself of each of many images whose pixels are their number."""
    images = torch.zeros(count, 1, 16, 16)
    images[::2] = 1
    labels = torch.arange(count) % 2
    found, targets = mixed(images, labels, 2, augment, 0, epoch, 0)
    return found, targets.gather(1, labels[:, None])[:, 0]


def test_without_mixing_images_and_labels_are_handed_on():
    images, labels = batch()
    found, targets = mixed(images, labels, 5, AUGMENT, 0, 0, 0)
    assert found is images and targets is labels


@pytest.mark.parametrize("kind", [MIXUP, CUTMIX])
@given(st.integers(0, 1000), st.integers(2, 7))
@settings(max_examples=20, deadline=None)
def test_each_image_is_mixed_as_torchvision_would_with_its_share(kind, seed, count):
    images, labels = batch(count, seed=seed)
    found, targets = mixed(images, labels, 5, kind, seed, 1, 2)
    one_hot = F.one_hot(labels, 5).float()
    for i in range(count):
        other, mine = images[i - 1], images[i]
        if kind is CUTMIX:
            differs = (found[i] != mine).any(0)
            rows, columns = differs.any(1).nonzero()[:, 0], differs.any(0).nonzero()[:, 0]
            box = (0, 0, 0, 0)
            if len(rows):
                box = (columns[0].item(), rows[0].item(), columns[-1].item() + 1, rows[-1].item() + 1)
            share = 1 - (box[2] - box[0]) * (box[3] - box[1]) / 64
            oracle = v2.CutMix(num_classes=5)
            params = {"labels": labels, "batch_size": count, "box": box, "lam_adjusted": share}
        else:
            share = ((found[i] - other) * (mine - other)).sum().item() / (mine - other).square().sum().item()
            oracle = v2.MixUp(num_classes=5)
            params = {"labels": labels, "batch_size": count, "lam": share}
        expected = oracle.transform(images, params)[i]
        torch.testing.assert_close(found[i], expected, atol=1e-5, rtol=1e-4)
        expected = oracle.transform(labels, params)[i]
        torch.testing.assert_close(targets[i], expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            targets[i], one_hot[i] * share + one_hot[i - 1] * (1 - share), atol=1e-5, rtol=1e-4
        )


def test_shares_follow_the_beta_distribution():
    share = shares(MIXUP)[1].double().sort()[0]
    expected = torch.distributions.Beta(0.8, 0.8).sample((200_000,)).double().sort()[0]
    points = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    assert (share.quantile(points) - expected.quantile(points)).abs().max() < 0.05


def test_boxes_leave_the_share_where_they_are_not_cut():
    share = torch.linspace(0, 1, 9, dtype=torch.float64)
    middle = torch.full((9,), 0.5, dtype=torch.float64)
    top, left, height, width = cut_boxes(share, middle, middle, (64, 64))
    assert ((1 - share) - height * width / 64**2).abs().max() <= 4 / 64  # whole pixels on each side
    assert [t[0].item() for t in (top, left, height, width)] == [0, 0, 64, 64] and height[-1] == 0


def test_probability_and_switch_are_shares_of_the_images():
    half = replace(BOTH, mix_probability=0.4, mix_switch=0.25)
    found, share = shares(half)
    odd = torch.arange(len(found)) % 2
    own = (1 - odd).float()[:, None, None, None]
    changed = (found != own).flatten(1).any(1)
    cut = changed & ((found == 0) | (found == 1)).flatten(1).all(1)
    assert changed.float().mean().item() == pytest.approx(0.4, abs=0.05)
    assert (cut.sum() / changed.sum()).item() == pytest.approx(0.25, abs=0.06)
    assert (share[~changed] == 1).all()


@pytest.mark.parametrize("kind", [MIXUP, CUTMIX, BOTH])
def test_every_image_has_a_share_of_its_own(kind):
    share = shares(kind, 200)[1]
    assert len(share.unique()) > (40 if kind is CUTMIX else 100)
    assert not torch.equal(share, shares(kind, 200, epoch=1)[1])
    assert torch.equal(share, shares(kind, 200)[1])


def test_targets_sum_to_one_and_smoothing_is_that_of_the_mixed_targets():
    images, labels = batch()
    _, targets = mixed(images, labels, 5, BOTH, 0, 0, 0)
    torch.testing.assert_close(targets.sum(1), torch.ones(6))
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    smooth = targets * 0.9 + 0.1 / 5
    expected = -(smooth * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(F.cross_entropy(logits, targets, label_smoothing=0.1), expected)
    assert math.isfinite(expected)
