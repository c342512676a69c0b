import numpy as np
import torch

from attnprior.data.loader import batches, normalise, steps_per_epoch

CPU = torch.device("cpu")


def test_every_image_comes_once_and_the_last_batch_is_smaller():
    found = batches(70, 32, seed=0, epoch=0, device=CPU)
    assert [len(b) for b in found] == [32, 32, 6]
    assert sorted(torch.cat(found).tolist()) == list(range(70))
    assert steps_per_epoch(70, 32) == 3 and steps_per_epoch(64, 32) == 2


def test_the_order_is_a_function_of_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = torch.cat(batches(70, 32, 0, 5, CPU))
    torch.manual_seed(2)
    torch.rand(3)
    assert torch.equal(first, torch.cat(batches(70, 7, 0, 5, CPU)))
    assert not torch.equal(first, torch.cat(batches(70, 32, 0, 6, CPU)))
    assert not torch.equal(first, torch.cat(batches(70, 32, 1, 5, CPU)))


def test_normalisation_is_per_channel():
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 3, 3), dtype=np.uint8)
    mean, std = [0.2, 0.7], [0.5, 0.25]
    expected = (images / 255.0 - np.reshape(mean, (1, 2, 1, 1))) / np.reshape(std, (1, 2, 1, 1))
    np.testing.assert_allclose(normalise(torch.from_numpy(images), mean, std), expected, atol=1e-6)
