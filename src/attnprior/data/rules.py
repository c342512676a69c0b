"""Which keys a data set has, by its source, and how many images its parts hold; imports nothing heavy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from attnprior.errors import UserError, nearest


@dataclass(frozen=True)
class Source:
    """Images of the parts that a source comes with (training, validation, test), and its classes."""

    parts: tuple[int, int, int]
    classes: int


SOURCES: Mapping[str, Source] = {  # a folder's are known once it is read
    "sklearn_digits": Source((1797, 0, 0), 10),
    "cifar10": Source((50000, 0, 10000), 10),
    "cifar100": Source((50000, 0, 10000), 100),
    "svhn": Source((73257, 0, 26032), 10),
    "tiny_imagenet": Source((100000, 0, 10000), 200),
    "stl10": Source((5000, 0, 8000), 10),
    "flowers102": Source((1020, 1020, 6149), 102),
    "pets": Source((3680, 0, 3669), 37),
}
COMMON = ("source", "train", "val", "test", "split_seed")
OFFICIAL = ("path", "resize", "resident_limit")
FOLDER = (*OFFICIAL, "channels", "skip_bad")
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "sklearn_digits": (),
    **{name: OFFICIAL for name in SOURCES if name != "sklearn_digits"},
    "folder": FOLDER,
}
# What the original archives are called; `path` may be the folder that holds them.
ARCHIVES: Mapping[str, tuple[str, ...]] = {
    "cifar10": ("cifar-10-python.tar.gz",),
    "cifar100": ("cifar-100-python.tar.gz",),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "tiny_imagenet": ("tiny-imagenet-200.zip",),
    "stl10": ("stl10_binary.tar.gz",),
    "flowers102": ("102flowers.tgz", "imagelabels.mat", "setid.mat"),
    "pets": ("images.tar.gz", "annotations.tar.gz"),
}
UNLIKE = ("flowers102", "pets")  # images of unlike sizes
PACKED = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")


def is_archive(path: str) -> bool:
    """Return whether a path names a tar or zip file, by its ending alone."""
    return path.lower().endswith(PACKED)


def source_files(values: Mapping) -> list[str]:
    """Return the local files that a data set is made of, which its entry names; none if it is downloaded.

    Follows from the entry alone, so that both engines see the same on every machine. The files of a
    class-per-folder tree that is no archive are not among them.
    """
    path = values.get("path")
    if path is None:
        return []
    path = os.path.normpath(path)
    names = ARCHIVES.get(values["source"])
    if names is None:
        return [path] if is_archive(path) else []
    if len(names) == 1 and is_archive(path):
        return [path]
    return [os.path.join(path, name) for name in names]


def present_files(values: Mapping, where: str) -> list[str]:
    """Return `source_files` after checking that they are there.

    Raises:
        UserError: one is missing.
    """
    files = source_files(values)
    for path in files:
        if not os.path.isfile(path):
            raise UserError(
                f"params.yaml: {where}.path is {values['path']!r}, but there is no file {path}; put it"
                f" there or correct {where}.path"
            )
    return files


def check_keys(values: Mapping, where: str) -> None:
    """Check that an entry has exactly the keys of its source, and values that go together.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    source = str(values.get("source"))
    if source not in OPTIONS:
        raise UserError(
            f"params.yaml: {where}.source: unknown source {source!r}{nearest(source, OPTIONS)};"
            f" allowed: {', '.join(OPTIONS)}"
        )
    allowed = (*COMMON, *OPTIONS[source])
    for key in values:
        if key not in allowed:
            users = ", ".join(s for s, keys in OPTIONS.items() if key in keys)
            hint = f" (only by {users})" if users else nearest(str(key), allowed)
            raise UserError(f"params.yaml: {where}.{key} is not used by {source!r}{hint}; remove it")
    for key in allowed:
        if key not in values:
            raise UserError(f"params.yaml: missing key {where}.{key}, needed by {source!r}")
    if source == "folder" and values["path"] is None:
        raise UserError(
            f"params.yaml: {where}.path is null, but a folder is not downloaded;"
            " name a folder, tar or zip with one sub-folder per class"
        )
    if source in UNLIKE and values["resize"] is None:
        raise UserError(
            f"params.yaml: {where}.resize is null, but the images of {source} have unlike sizes;"
            " give {size: PIXELS, crop: center}"
        )
    own = SOURCES.get(source)
    if own and not own.parts[2] and values["test"] is None:
        raise UserError(f"params.yaml: {where}.test is null, but {source} has no test part; give a number")
    if own and not own.parts[1] and values["val"] is None:
        raise UserError(
            f"params.yaml: {where}.val is null, but {source} has no validation part; give a number"
        )


@dataclass(frozen=True)
class Numbers:
    """How many images a data set has in its three parts."""

    train: int
    val: int
    test: int

    @property
    def all(self) -> int:
        return self.train + self.val + self.test


def numbers(own: tuple[int, int, int], values: Mapping, where: str) -> Numbers:
    """Return how many images each part gets from a source's own parts (training, validation, test).

    A `val` of null is the source's own validation part; a number is cut from the training images, to
    which an own validation part then belongs. A `test` of null is the own test part; a number is taken
    from it, or where there is none from all images. `train` then thins what is left.

    Raises:
        UserError: a part is larger than what it is taken from, or no training image is left.
    """
    train, val, test = own
    if values["val"] is not None:
        train, val = train + val, values["val"]
    elif not val:
        raise UserError(f"params.yaml: {where}.val is null, but there is no validation part; give a number")
    cut = values["val"] or 0
    if test:
        asked = test if values["test"] is None else values["test"]
        if not 0 < asked <= test:
            raise UserError(
                f"params.yaml: {where}.test is {asked}; allowed: 1 to {test}, the test part of the source,"
                " or null for the whole"
            )
        test, whole = asked, train
    elif values["test"] is None:
        raise UserError(f"params.yaml: {where}.test is null, but there is no test part; give a number")
    else:
        test, whole = values["test"], train
        cut += test
    if min(test, val) < 0 or cut >= whole:
        raise UserError(
            f"params.yaml: {where}: val {values['val']} and test {values['test']} must be 0 or more and leave"
            f" some of the {whole} images for training; lower {where}.val or {where}.test"
        )
    left = whole - cut
    if values["train"] is not None:
        if not 0 < values["train"] <= left:
            raise UserError(
                f"params.yaml: {where}.train is {values['train']}; allowed: 1 to {left} (training images left"
                " by val and test), or null for all"
            )
        left = values["train"]
    return Numbers(left, val, test)


def known_numbers(values: Mapping, where: str) -> Numbers | None:
    """Return how many images each part has, None where only reading the source can tell.

    Raises:
        UserError: as `numbers`, or `train` is lower than the number of classes.
    """
    own = SOURCES.get(values["source"])
    if own is None:
        return None
    found = numbers(own.parts, values, where)
    check_classes(values, own.classes, where)
    return found


def check_classes(values: Mapping, classes: int, where: str) -> None:
    """Check that `train` leaves an image of each class.

    Raises:
        UserError: it does not.
    """
    if values["train"] is not None and values["train"] < classes:
        raise UserError(
            f"params.yaml: {where}.train is {values['train']}; allowed: at least {classes} (one per class),"
            " or null for all"
        )
