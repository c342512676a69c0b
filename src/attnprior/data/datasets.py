"""Data sets: sources, stratified splits, nested label subsets, and the data file.

A source returns images (N, C, H, W) uint8, labels (N,) int64 and class names, all NumPy.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnprior.config import AnyModel, Dataset
from attnprior.errors import UserError, nearest
from attnprior.files import load_tensors, save_tensors
from attnprior.randomness import stream_seed

TRAIN, VAL, TEST = 0, 1, 2


def sklearn_digits() -> tuple[Any, Any, list[str]]:
    """Return scikit-learn's 1,797 handwritten digits: one channel, 8x8, shipped with the package.

    The grey values 0..16 become round(v * 255 / 16), halves up, in integers: 0 and 16 map to 0
    and 255, and the 17 levels stay distinct.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    levels = found.images.astype(np.int64)  # N 8 8, whole numbers
    images = ((levels * 255 + 8) // 16).astype(np.uint8)[:, None]
    return images, found.target.astype(np.int64), [str(c) for c in found.target_names]


SOURCES: dict[str, Callable[[], tuple[Any, Any, list[str]]]] = {"sklearn_digits": sklearn_digits}


@dataclass(frozen=True)
class Data:
    images: Any  # N C H W uint8
    labels: Any  # N int64
    split: Any  # N int64: 0 train, 1 val, 2 test
    classes: list[str]
    mean: list[float]  # per channel of the training images / 255
    std: list[float]
    split_seed: int


def fetch(name: str, settings: Dataset, output) -> dict[str, int]:
    """Write the data file of the data set `name` and return its numbers of images.

    Raises:
        UserError: unknown source, or no training image left by `val` and `test`.
    """
    if settings.source not in SOURCES:
        raise UserError(
            f"datasets.{name}.source: unknown source {settings.source!r}{nearest(settings.source, SOURCES)};"
            f" allowed: {', '.join(SOURCES)}"
        )
    images, labels, classes = SOURCES[settings.source]()
    split = stratified_split(labels, settings.val, settings.test, settings.split_seed, f"datasets.{name}")
    train = images[split == TRAIN].astype("float64") / 255
    header = {
        "name": name,
        "classes": classes,
        "mean": train.mean((0, 2, 3)).tolist(),
        "std": train.std((0, 2, 3)).tolist(),
        "source": settings.source,
        "sha256": content_hash(images, labels),
        "split_seed": settings.split_seed,
    }
    save_tensors(output, {"images": images, "labels": labels, "split": split}, header)
    counts = {"images": len(labels), "classes": len(classes)}
    return counts | {k: int((split == v).sum()) for k, v in [("train", TRAIN), ("val", VAL), ("test", TEST)]}


def content_hash(images, labels) -> str:
    """Return the SHA-256 of the bytes of images (uint8) and labels (int64), in this order."""
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


def stratified_split(labels, val: int, test: int, seed: int, where: str):
    """Return (N,) int64 with exactly `test` twos and `val` ones, classes in proportion.

    The images of each class are spread evenly over one random order; its first `test` are the
    test images, the next `val` the validation images. Every class is within one image of its share
    in each of the three parts' boundaries.

    Raises:
        UserError: no image is left to train on; `where` names the entry.
    """
    import numpy as np

    count = len(labels)
    if val < 0 or test < 0 or val + test >= count:
        raise UserError(
            f"{where}: val {val} and test {test} must be 0 or more and leave some of the {count} images"
            f" for training; lower {where}.val or {where}.test"
        )
    rank, size = _ranks(labels, seed, "split")
    order = np.lexsort((labels, (rank + 0.5) / size))
    split = np.full(count, TRAIN, dtype=np.int64)
    split[order[:test]] = TEST
    split[order[test : test + val]] = VAL
    return split


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
    rank, _ = _ranks(labels, seed, "subset")
    classes = np.random.default_rng(stream_seed(seed, "subset", 1)).permutation(num_classes)
    return np.sort(np.lexsort((classes[labels], rank))[:n])


def _ranks(labels, seed: int, purpose: str):
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
    """Return the content of a data file, checked.

    Raises:
        UserError: the file is missing, corrupt or inconsistent.
    """
    tensors, header = load_tensors(path, framework="numpy")
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
    if content_hash(images, labels) != header["sha256"]:
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
