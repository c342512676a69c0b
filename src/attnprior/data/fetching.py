"""Making a data file: a source's images, split into training, validation and test parts."""

from collections.abc import Callable
from pathlib import Path

from attnprior.config import Dataset
from attnprior.data import datafile
from attnprior.data.datasets import TEST, TRAIN, VAL, ranks, subset
from attnprior.data.rules import check_keys, numbers
from attnprior.data.sources import SOURCES
from attnprior.data.sources.common import Found, Request
from attnprior.errors import UserError


def fetch(
    name: str,
    values: dict,
    settings: Dataset,
    output,
    say: Callable[[str], None] = print,
    origin: str | None = None,
) -> dict[str, int]:
    """Write the data file of the data set `name` and return its numbers of images.

    `values` is the entry of `params.yaml` that `settings` was built from; one derived for a scaled study
    stands in no file, so `origin` is the entry whose keys errors of the source name. Lines for the log go
    to `say`. Only the images that are kept are decoded, where the source tells their labels without that.

    Raises:
        UserError: a key does not fit the source, the source cannot be had or read, or a part is too large.
    """
    import numpy as np

    where = f"datasets.{name}"
    check_keys(values, where)
    output = Path(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"{output.parent}: cannot be written ({e.strerror}); make it writable") from e
    request = Request(settings, f"datasets.{origin or name}", say, output.parent)
    found = SOURCES[settings.source](request)
    rows, split = split_parts(found, values, settings, where)
    labels, images = found.labels[rows], found.images
    if found.decode is not None:
        images, rows = found.decode(rows), np.arange(len(rows))
    header = {
        "name": name,
        "classes": found.classes,
        "source": settings.source,
        "split_seed": settings.split_seed,
        "resident_limit": settings.resident_limit,
        **found.notes,
    }
    flat = datafile.write(output, images, rows, labels, split, header, TRAIN)
    constant = [c for c, s in enumerate(flat["std"]) if s == 0]
    if constant:
        output.unlink()
        raise UserError(
            f"{where}: channel {constant[0]} is the same in all training images; give other images"
        )
    return report(found, labels, split, say)


def report(found: Found, labels, split, say: Callable[[str], None]) -> dict[str, int]:
    """Write the size of each class to the log and return the numbers of images."""
    for i, label in enumerate(found.classes):
        train, val, test = (int(((labels == i) & (split == part)).sum()) for part in (TRAIN, VAL, TEST))
        say(f"class {i} {label}: {train} train, {val} val, {test} test")
    counts = {"images": len(labels), "classes": len(found.classes)}
    counts |= {k: int((split == v).sum()) for k, v in [("train", TRAIN), ("val", VAL), ("test", TEST)]}
    counts |= {k: int(v) for k, v in found.notes.items()}
    say(", ".join(f"{v} {k}" for k, v in counts.items()))
    return counts


def split_parts(found: Found, values: dict, settings: Dataset, where: str):
    """Return rows (n,) of the source that the data file holds, ascending, and their split (n,).

    Raises:
        UserError: a part is larger than what it is taken from; names the key.
    """
    import numpy as np

    own = tuple(int((found.part == p).sum()) for p in (TRAIN, VAL, TEST))
    counts = numbers((own[0], own[1], own[2]), values, where)
    seed = settings.split_seed
    split = np.full(len(found.labels), -1, dtype=np.int64)  # -1: left out
    keep_val = settings.val is None
    pool = np.flatnonzero((found.part == TRAIN) | ((found.part == VAL) & (not keep_val)))
    cut_test = 0 if own[2] else counts.test
    split[pool] = stratified_split(found.labels[pool], 0 if keep_val else counts.val, cut_test, seed, where)
    if keep_val:
        split[found.part == VAL] = VAL
    if own[2]:
        held_out = np.flatnonzero(found.part == TEST)
        if counts.test == len(held_out):
            split[held_out] = TEST
        else:
            drawn = stratified_split(found.labels[held_out], 0, counts.test, seed, where)
            split[held_out[drawn == TEST]] = TEST
    if settings.train is not None:
        rest = np.flatnonzero(split == TRAIN)
        chosen = subset(found.labels[rest], settings.train, seed, len(found.classes), f"{where}.train")
        split[rest] = -1
        split[rest[chosen]] = TRAIN
    rows = np.flatnonzero(split >= 0)
    return rows, split[rows]


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
    rank, size = ranks(labels, seed, "split")
    order = np.lexsort((labels, (rank + 0.5) / size))
    split = np.full(count, TRAIN, dtype=np.int64)
    split[order[:test]] = TEST
    split[order[test : test + val]] = VAL
    return split
