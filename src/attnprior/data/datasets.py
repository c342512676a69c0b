"""Data sets as jobs use them: the data file, nested label subsets, and whether a model fits."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from attnprior import files
from attnprior.config import AnyModel
from attnprior.data import datafile
from attnprior.errors import UserError
from attnprior.randomness import stream_seed

CHECKED = 32 * 2**20  # bytes of images up to which loading compares the checksum
TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Data:
    images: Any  # N C H W uint8, mapped from the file
    labels: Any  # N int64
    split: Any  # N int64: 0 train, 1 val, 2 test
    classes: list[str]
    mean: list[float]  # per channel of the training images / 255
    std: list[float]
    split_seed: int
    resident_limit: int | None = None  # MiB of images that a job holds in memory; None: any number


def content_hash(images, labels) -> str:
    """Return the SHA-256 of the bytes of images (uint8) and labels (int64), in this order."""
    found = hashlib.sha256(images)
    found.update(labels)
    return found.hexdigest()


def subset(labels, n: int, seed: int, num_classes: int, where: str):
    """Return the sorted indices (n,) of a class-balanced subset of `labels`, all classes in it.

    Subsets of one seed are nested: a smaller one is part of a larger one. Class sizes differ by
    one at most, unless a class has no more images.

    Raises:
        UserError: `n` is larger than the number of images or lower than the number of classes;
            `where` names the setting.
    """
    import numpy as np

    if not num_classes <= n <= len(labels):
        raise UserError(
            f"{where}: {n} labels; allowed: {num_classes} (one per class) to {len(labels)} (training images)"
        )
    rank, _ = ranks(labels, seed, "subset")
    classes = np.random.default_rng(stream_seed(seed, "subset", 1)).permutation(num_classes)
    return np.sort(np.lexsort((classes[labels], rank))[:n])


def ranks(labels, seed: int, purpose: str):
    """Return each image's random rank within its class and the size of its class."""
    import numpy as np

    shuffled = np.random.default_rng(stream_seed(seed, purpose)).permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)
    size = np.empty(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        members = shuffled[labels[shuffled] == c]
        rank[members] = np.arange(len(members))
        size[members] = len(members)
    return rank, size


def load(path) -> Data:
    """Return the content of a data file, checked; its images are read from the file when they are used.

    The checksum of the content is compared where that costs little (`CHECKED`). For larger files it is not:
    every job hashes its input files as a whole, and both engines compare that with what made them.

    Raises:
        UserError: the file is missing, corrupt or inconsistent.
    """
    tensors: dict[str, Any] = {}
    with files.opened_tensors(path, "numpy") as f:
        header = json.loads((f.metadata() or {}).get("json", "{}"))
        names = set(f.keys())
        if "images" in names:
            images = f.get_slice("images")
            dtype, shape = images.get_dtype(), images.get_shape()
            tensors |= {k: f.get_tensor(k) for k in names & {"labels", "split"}}
            tensors["images"] = (
                datafile.mapped_images(path, shape) if dtype == "U8" else f.get_tensor("images")
            )
    problem = _problem(tensors, header)
    if problem:
        raise UserError(f"{path}: {problem}; delete it and run fetch_dataset again")
    return Data(
        tensors["images"],
        tensors["labels"],
        tensors["split"],
        header["classes"],
        header["mean"],
        header["std"],
        header["split_seed"],
        header.get("resident_limit"),
    )


def _problem(tensors: dict, header: dict) -> str | None:
    missing = {"classes", "mean", "std", "sha256", "split_seed"} - header.keys()
    missing |= {"images", "labels", "split"} - tensors.keys()
    if missing:
        return f"no {', '.join(sorted(missing))} in it"
    images, labels, split = tensors["images"], tensors["labels"], tensors["split"]
    if images.dtype != "uint8" or images.ndim != 4 or not images.size:
        return f"images are {images.dtype} {images.shape}, not uint8 (N, C, H, W)"
    if labels.dtype != "int64" or split.dtype != "int64":
        return f"labels and split are {labels.dtype} and {split.dtype}, not int64"
    if labels.shape != images.shape[:1] or split.shape != images.shape[:1]:
        return f"{len(images)} images, labels {labels.shape} and split {split.shape} do not agree"
    if labels.min() < 0 or labels.max() >= len(header["classes"]):
        return f"labels {labels.min()}..{labels.max()} lie outside the {len(header['classes'])} classes"
    if split.min() < TRAIN or split.max() > TEST or not (split == TRAIN).any():
        return "split has values other than 0, 1, 2 or no training image"
    if not len(header["mean"]) == len(header["std"]) == images.shape[1] or min(header["std"]) <= 0:
        return f"mean and std do not fit {images.shape[1]} channels"
    if images.nbytes <= CHECKED and content_hash(images, labels) != header["sha256"]:
        return "images or labels differ from the checksum in the header"
    return None


def check_model(model: AnyModel, data: Data, where: str) -> None:
    """Check that a model takes the images and classes of a data set; `where` is `models.<name>`.

    Raises:
        UserError: size, channels or number of classes differ.
    """
    channels, height, width = data.images.shape[1:]
    found = {"image_size": height, "in_chans": channels, "num_classes": len(data.classes)}
    for key, value in found.items():
        ours = getattr(model, key)
        if ours != value:
            raise UserError(f"{where}.{key}: {ours}, but the data set has {value}; set it to {value}")
    if height != width:
        raise UserError(
            f"{where}.image_size: the data set's images are {height}x{width}; they must be square"
        )
