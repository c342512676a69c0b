"""Images that stay in the data file: batches are gathered from it when they are asked for."""

from collections.abc import Iterator

import torch
from torch import Tensor


class Streamed:
    """The images at `rows` (n,) of a mapped array (N, C, H, W) uint8; a batch of them goes to `device`.

    Indexing with a tensor gives the same bytes as indexing a tensor of all images. `scale` maps a batch to
    what is wanted of it (normalised images).
    """

    def __init__(self, images, rows: Tensor, device: torch.device, scale=None) -> None:
        self._images, self._rows, self.device, self._scale = images, rows, device, scale

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._rows), *self._images.shape[1:]))

    def __getitem__(self, index) -> Tensor:
        """Return the images (B, C, H, W) at `index` (B,), on the device."""
        rows = self._rows[index.cpu() if isinstance(index, Tensor) else index].numpy()
        batch = torch.from_numpy(self._images[rows])
        if self.device.type == "cuda":
            batch = batch.pin_memory().to(self.device, non_blocking=True)
        return batch if self._scale is None else self._scale(batch)

    def choose(self, index: Tensor) -> "Streamed":
        """Return the images at `index` (n,), still in the file."""
        return Streamed(self._images, self._rows[index.cpu()], self.device, self._scale)

    def scaled(self, scale) -> "Streamed":
        """Return the same images, of which every batch is `scale(batch)`."""
        return Streamed(self._images, self._rows, self.device, scale)

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield batches of `size` images, the last one possibly smaller, as `Tensor.split`."""
        for index in torch.arange(len(self)).split(size):
            yield self[index]

    def tensor_split(self, parts: int) -> Iterator[Tensor]:
        """Yield `parts` batches of nearly equal size, as `Tensor.tensor_split`."""
        for index in torch.arange(len(self)).tensor_split(parts):
            yield self[index]


Images = Tensor | Streamed


def choose(images: Images, index: Tensor) -> Images:
    """Return the images at `index` (n,): of a tensor a copy, of streamed ones those in the file."""
    return images.choose(index) if isinstance(images, Streamed) else images[index]
