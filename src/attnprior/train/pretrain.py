"""Masked-autoencoder pre-training of a teacher (arXiv 2111.06377)."""

from torch import Tensor

from attnprior.models.mae import MAE
from attnprior.randomness import generator
from attnprior.train.engine import Batch


class Pretraining:
    """The objective of a masked autoencoder: each image has its own mask from the stream (seed, "mask")."""

    def __init__(self, mae: MAE, seed: int) -> None:
        self._mae, self._seed = mae, seed

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        rng = generator(self._seed, "mask", batch.epoch, batch.step)
        noise = self._mae.noise(len(batch.images), rng).to(batch.images.device)  # B N
        loss, _, _ = self._mae(batch.images, noise)
        return {"loss": loss}
