import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnprior.models.mae import random_masking
from attnprior.models.masks import mask_noise
from attnprior.randomness import generator


def hidden(masking, grid, keep, batch=20, seed=0):
    """Return masks (B, g, g), 1 for hidden patches."""
    noise = mask_noise(masking, batch, grid, keep, generator(seed, "mask"))
    ids, _, mask = random_masking(noise, keep)
    assert ids.shape == (batch, keep)
    return mask.view(batch, grid, grid)


@given(st.sampled_from(["random", "block"]), st.integers(2, 14), st.floats(0.1, 0.9), st.integers(0, 99))
def test_every_mask_hides_the_same_number_of_patches(masking, grid, ratio, seed):
    keep = min(max(1, round(grid**2 * (1 - ratio))), grid**2 - 1)
    mask = hidden(masking, grid, keep, 3, seed)
    assert (mask.sum((1, 2)) == grid**2 - keep).all()


def test_the_grid_keeps_one_of_every_two_by_two_patches():
    mask = hidden("grid", 6, 9)
    cells = mask.view(20, 3, 2, 3, 2)
    assert (cells.sum((2, 4)) == 3).all()
    assert torch.equal(mask, mask[:1].expand_as(mask))


def test_blocks_hide_neighbours_more_often_than_chance():
    def neighbours(mask):
        return (mask[:, 1:] * mask[:, :-1]).mean() + (mask[:, :, 1:] * mask[:, :, :-1]).mean()

    block, scattered = (neighbours(hidden(m, 14, 98, 200)) for m in ("block", "random"))
    assert scattered.item() == pytest.approx(0.5, abs=0.02)  # 2 * 0.5^2
    assert block > 0.7


def test_random_masks_draw_what_they_always_drew():
    noise = mask_noise("random", 4, 3, 5, generator(3, "mask"))
    assert torch.equal(noise, torch.rand(4, 9, generator=generator(3, "mask")))


def test_blocks_differ_between_images_and_repeat_with_the_seed():
    first, again = hidden("block", 8, 32), hidden("block", 8, 32)
    assert torch.equal(first, again) and not torch.equal(first[0], first[1])
