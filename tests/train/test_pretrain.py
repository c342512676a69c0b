import torch

from attnprior.config import Decoder
from attnprior.models.mae import build_mae
from attnprior.train.engine import Batch, train
from attnprior.train.pretrain import Pretraining
from tests.train.small import RECIPE, TINY, NoCheckpoint, data


def mae():
    return build_mae(TINY, Decoder(8, 1, 2, 2.0), 0.5, False, 0)


def test_masks_are_a_function_of_seed_epoch_and_step():
    model = mae()
    seen = []
    forward = model.forward
    model.forward = lambda images, noise: seen.append(noise) or forward(images, noise)
    images, labels = data()
    for seed, epoch, step in [(0, 1, 2), (0, 1, 2), (0, 1, 3), (0, 2, 2), (1, 1, 2)]:
        Pretraining(model, seed)(Batch(images.plain()[:4], labels[:4], epoch, step))
    assert torch.equal(seen[0], seen[1]) and seen[0].shape == (4, 16)
    assert all(not torch.equal(seen[0], other) for other in seen[2:])
    assert len(torch.unique(seen[0])) == 64  # every image its own


def test_pretraining_lowers_the_reconstruction_error_and_needs_no_labels(tmp_path):
    from dataclasses import replace

    images, labels = data()
    recipe = replace(RECIPE, epochs=15)
    histories = [
        train(m := mae(), Pretraining(m, 0), images, given, recipe, 0, NoCheckpoint(tmp_path))
        for given in (labels, torch.zeros_like(labels))
    ]
    assert histories[0] == histories[1]
    assert histories[0][-1]["loss"] < 0.7 * histories[0][0]["loss"]
