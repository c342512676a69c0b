"""A trained student as a function of raw images: what MLflow loads, without a pickle."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnprior.data.loader import normalise
from attnprior.files import read_json
from attnprior.train.students import load_network

WEIGHTS, TEACHER, ABOUT = "weights.safetensors", "teacher.safetensors", "about.json"


class Served:
    """A student with the statistics that its images are normalised by."""

    def __init__(self, folder: Path) -> None:
        """Read weights, the teacher if there is one (`copy` uses its maps), and mean and std."""
        teacher = folder / TEACHER
        self.network = load_network(str(folder / WEIGHTS), str(teacher) if teacher.exists() else None)
        self._about = read_json(folder / ABOUT)

    def predict(self, images: np.ndarray, params: dict[str, Any] | None = None) -> np.ndarray:
        """Return the logits, float32 (M, classes), of raw images, uint8 (M, C, H, W).

        For the images of one split this is what predictions.safetensors holds of them.
        """
        pixels = torch.from_numpy(np.ascontiguousarray(images))
        return self.network.predict(normalise(pixels, self._about["mean"], self._about["std"])).numpy()


def _load_pyfunc(path: str) -> Served:
    """Return the model of a folder; MLflow calls it by this name."""
    return Served(Path(path))
