"""Each change of pixel values equals torchvision's on single images."""

import pytest
import torch
from torchvision.transforms.v2 import functional as oracle

from attnprior.data import colour


def pictures(channels=3, count=8, size=9, seed=0):
    """Noise, a ramp, a grey picture, one of two values and one of one value."""
    rng = torch.Generator().manual_seed(seed)
    found = torch.randint(0, 256, (count, channels, size, size), generator=rng, dtype=torch.uint8)
    found[1] = torch.arange(size * size).view(size, size).to(torch.uint8) * 3
    found[2] = found[2, :1]
    found[3] = (found[3] > 100) * 200
    found[4] = 77
    return found


def factors(low, high, count=8):
    return torch.linspace(low, high, count, dtype=torch.float64) + 1 / 37


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (colour.brightness, oracle.adjust_brightness, 0.1, 1.9),
        (colour.saturation, oracle.adjust_saturation, 0.1, 1.9),
        (colour.contrast, oracle.adjust_contrast, 0.1, 1.9),
        (colour.sharpness, oracle.adjust_sharpness, 0.1, 1.9),
        (colour.hue, oracle.adjust_hue, -0.5, 0.45),
        (colour.solarize, oracle.solarize, 0.0, 254.9),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_each_image_gets_its_own_factor_as_alone_in_torchvision(ours, theirs, low, high, channels, seed):
    images, values = pictures(channels, seed=seed), factors(low, high)
    before = images.clone()
    found = ours(images, values)
    expected = torch.stack([theirs(i, v) for i, v in zip(images, values.tolist(), strict=True)])
    assert torch.equal(found, expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.autocontrast, oracle.autocontrast),
        (colour.equalize, oracle.equalize),
        (colour.invert, oracle.invert),
    ],
)
@pytest.mark.parametrize("size", [3, 9, 32])
def test_changes_without_a_factor_equal_torchvision_on_single_images(ours, theirs, channels, size):
    images = pictures(channels, size=size)
    before = images.clone()
    assert torch.equal(ours(images), torch.stack([theirs(i) for i in images]))
    assert torch.equal(images, before)


def test_posterizing_keeps_each_images_own_number_of_bits():
    images, bits = pictures(count=9), torch.arange(9)
    expected = torch.stack([oracle.posterize(i, b) for i, b in zip(images, bits.tolist(), strict=True)])
    assert torch.equal(colour.posterize(images, bits), expected)


def test_adding_to_the_dark_half_leaves_the_bright_half():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 1, 1, 1)
    found = colour.solarize_add(images, torch.tensor([0, 110])).flatten(1).tolist()
    assert found[0] == list(range(256))
    assert found[1] == [*range(110, 238), *range(128, 256)]
