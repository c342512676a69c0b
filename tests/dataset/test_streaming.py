from dataclasses import replace

import numpy as np
import pytest
import torch

from attnprior.data import datasets, loader
from attnprior.data.augment import training_images
from attnprior.data.loader import batches, normalise, part
from attnprior.data.streaming import Streamed, choose
from attnprior.recipes import Augment
from tests.dataset.archives import fetch_digits

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The digits as a job with room for them has them, and as one without."""
    path = tmp_path_factory.mktemp("data") / "x.safetensors"
    fetch_digits(path)
    data = datasets.load(path)
    return data, replace(data, resident_limit=0)


def test_only_sets_above_the_limit_are_streamed(both):
    data, _ = both
    size = data.images.nbytes / loader.MIB
    assert not isinstance(part(replace(data, resident_limit=1), 0, CPU)[0], Streamed) and size < 1
    many = {k: np.concatenate([getattr(data, k)] * 12) for k in ("images", "labels", "split")}
    assert isinstance(part(replace(data, resident_limit=1, **many), 0, CPU)[0], Streamed)


@pytest.mark.parametrize("split", [0, 1, 2])
def test_a_part_holds_the_same_images_either_way(both, split):
    (one, labels, rows), (two, same_labels, same_rows) = (part(d, split, CPU) for d in both)
    assert isinstance(two, Streamed) and len(one) == len(two) and one.shape == two.shape
    assert torch.equal(labels, same_labels) and torch.equal(rows, same_rows)
    index = torch.tensor([3, 0, 96, 3])
    assert torch.equal(one[index], two[index]) and one[index].dtype == two[index].dtype
    assert torch.equal(choose(one, index)[1:], choose(two, index)[torch.arange(1, 4)])


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_batches_of_an_epoch_have_the_same_bytes_either_way(both, shift, flip):
    padded = Augment("padded", flip, None, None, None, 0.0, 0.0, padding=shift)
    one, two = (training_images(part(d, 0, CPU)[0], d.mean, d.std, padded) for d in both)
    assert len(one) == len(two)
    for step, index in enumerate(batches(len(one), 256, 0, 3, CPU)):
        assert torch.equal(one.batch(index, 0, 3, step), two.batch(index, 0, 3, step))


def test_normalised_parts_come_in_the_same_pieces_either_way(both):
    one, two = (normalise(part(d, 1, CPU)[0], d.mean, d.std) for d in both)
    for a, b in zip(one.split(40), two.split(40), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(one.tensor_split(3), two.tensor_split(3), strict=True):
        assert torch.equal(a, b)


def test_images_are_read_from_the_file_when_they_are_used(both, tmp_path):
    data, _ = both
    assert isinstance(data.images, np.memmap)
    before = data.images[5].copy()
    torch.from_numpy(data.images)[5] = 0  # stays with this process
    again = datasets.load(data.images.filename)
    np.testing.assert_array_equal(again.images[5], before)
