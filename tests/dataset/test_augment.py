import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior.data.augment import Shifted
from attnprior.data.loader import normalise
from attnprior.randomness import generator

MEAN, STD = [0.3, 0.6], [0.2, 0.4]


def images(count=12, size=5):
    return torch.from_numpy(np.random.default_rng(0).integers(1, 256, (count, 2, size, size), dtype=np.uint8))


def moved(image, dy, dx):
    """The image moved by (dy, dx), black where nothing comes in, in plain loops."""
    out = np.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                out[:, y, x] = image[:, y + dy, x + dx]
    return out


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_a_batch_holds_the_zero_filled_moved_images(shift, seed, epoch, step):
    data = images()
    index = torch.tensor([3, 0, 7, 7])
    batch = Shifted(data, MEAN, STD, shift).batch(index, seed, epoch, step)
    draws = torch.randint(2 * shift + 1, (2, 4), generator=generator(seed, "augment", epoch, step)) - shift
    expected = np.stack(
        [moved(data[i].numpy(), dy, dx) for i, dy, dx in zip(index, *draws.tolist(), strict=True)]
    )
    torch.testing.assert_close(batch, normalise(torch.from_numpy(expected), MEAN, STD), rtol=0, atol=0)


def test_without_shift_and_as_plain_the_images_are_only_normalised():
    data = images()
    expected = normalise(data, MEAN, STD)
    assert torch.equal(Shifted(data, MEAN, STD, 0).batch(torch.arange(12), 0, 0, 0), expected)
    assert torch.equal(Shifted(data, MEAN, STD, 2).plain(), expected)


def test_each_image_and_step_has_its_own_move():
    data = images(1).expand(200, -1, -1, -1)
    shifted = Shifted(data, MEAN, STD, 1)
    batch = shifted.batch(torch.arange(200), 0, 0, 0)
    kinds, counts = torch.unique(batch.flatten(1), dim=0, return_counts=True)
    assert len(kinds) == 9
    assert counts.min() > 8  # 22 expected of each
    assert not torch.equal(batch, shifted.batch(torch.arange(200), 0, 0, 1))
    assert torch.equal(batch, shifted.batch(torch.arange(200), 0, 0, 0))


@pytest.mark.parametrize("shift", [0, 1])
def test_the_source_images_are_left_alone(shift):
    data = images()
    before = data.clone()
    Shifted(data, MEAN, STD, shift).batch(torch.arange(5), 0, 0, 0)
    assert torch.equal(data, before)
