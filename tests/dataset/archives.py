"""Miniature archives in the original formats, written without the code that reads them."""

import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from attnprior.config import Dataset, build
from attnprior.data import datasets, fetching

DIGITS = {"source": "sklearn_digits", "train": None, "val": 97, "test": 500, "split_seed": 0}


def fetch(values: dict, output, lines: list[str] | None = None) -> dict[str, int]:
    """Make the data file of an entry `x` of params.yaml."""
    say = (lines if lines is not None else []).append
    return fetching.fetch("x", values, build(Dataset, values, "datasets.x"), output, say)


def fetch_digits(output, **changes) -> dict[str, int]:
    return fetch(DIGITS | changes, output)


def made(values: dict, folder: Path, lines: list[str] | None = None) -> datasets.Data:
    """Return the content of the data file of an entry."""
    fetch(values, folder / "x.safetensors", lines)
    return datasets.load(folder / "x.safetensors")


def official(source: str, **changes) -> dict:
    """Return an entry of an official source."""
    values = {"source": source, "train": None, "val": 2, "test": None, "split_seed": 0}
    return values | {"path": None, "resize": None, "resident_limit": 64} | changes


def pixels(count: int, channels: int, size: int, seed: int = 0) -> np.ndarray:
    """Return images (n, C, H, W) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    """Return an image (C, H, W) as the content of a file, RGB or grey."""
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    out = io.BytesIO()
    picture.save(out, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return out.getvalue()


def smooth(seed: int, height: int, width: int) -> np.ndarray:
    """Return an image (3, H, W) of one colour with a gradient, which JPEG keeps nearly as it is."""
    base = np.random.default_rng(seed).integers(40, 200, (3, 1, 1))
    return (base + np.linspace(0, 40, width)[None, None] + np.zeros((3, height, 1))).astype(np.uint8)


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """Return a tar file of `files`, with entries for the folders as `tar` writes them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        seen = set()
        for name, content in files.items():
            for depth in range(1, name.count("/") + 1):
                folder = "/".join(name.split("/")[:depth])
                if folder not in seen:
                    seen.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    t.addfile(entry)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            t.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, content in files.items():
            z.writestr(name, content)
    return out.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


# Python 2 wrote the pickles of CIFAR: protocol 2, texts as its byte strings, arrays by numpy.core.multiarray.
def _string(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def _array(values: np.ndarray) -> bytes:
    shape = b"(" + b"".join(_number(n) for n in values.shape) + b"t"
    kind = b"cnumpy\ndtype\n(" + _string(b"u1") + _number(0) + _number(1) + b"tR"
    kind += b"(" + _number(3) + _string(b"|") + b"NNN" + _number(-1) + _number(-1) + _number(0) + b"tb"
    begin = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + _number(0) + b"t" + _string(b"b")
    state = b"(" + _number(1) + shape + kind + b"\x89" + _string(values.tobytes()) + b"t"
    return begin + b"tR" + state + b"b"


def pickled(values: dict[bytes, object]) -> bytes:
    """Return a dictionary of lists and arrays as Python 2 pickled it."""
    items = b""
    for key, value in values.items():
        items += _string(key)
        if isinstance(value, np.ndarray):
            items += _array(value)
        else:
            items += _list([_number(v) if isinstance(v, int) else _string(v) for v in value])  # type: ignore[attr-defined]
    return b"\x80\x02}(" + items + b"u."


def cifar10(images: np.ndarray, labels: list[int], names: list[bytes], test: int) -> bytes:
    """Return the tar.gz: five training batches of equal size, and the last `test` images as test batch."""
    files = {"cifar-10-batches-py/batches.meta": pickled({b"label_names": names, b"num_vis": [3072]})}
    rows = np.arange(len(images) - test)
    for i, part in enumerate(np.array_split(rows, 5), start=1):
        files[f"cifar-10-batches-py/data_batch_{i}"] = _batch(images, labels, part, b"labels")
    last = np.arange(len(images) - test, len(images))
    files["cifar-10-batches-py/test_batch"] = _batch(images, labels, last, b"labels")
    files["cifar-10-batches-py/readme.html"] = b"<meta>"
    return tar(files)


def cifar100(images: np.ndarray, labels: list[int], names: list[bytes], test: int) -> bytes:
    coarse = {b"coarse_label_names": [b"a", b"b"], b"fine_label_names": names}
    rows = np.arange(len(images))
    return tar(
        {
            "cifar-100-python/meta": pickled(coarse),
            "cifar-100-python/test": _batch(images, labels, rows[-test:], b"fine_labels"),
            "cifar-100-python/train": _batch(images, labels, rows[:-test], b"fine_labels"),
        }
    )


def _batch(images, labels, rows, key: bytes) -> bytes:
    flat = images[rows].reshape(len(rows), -1)
    return pickled({key: [labels[i] for i in rows], b"data": flat, b"coarse_labels": [0 for _ in rows]})


def matlab(values: dict) -> bytes:
    out = io.BytesIO()
    savemat(out, values)
    return out.getvalue()


def svhn(images: np.ndarray, digits: list[int]) -> bytes:
    labels = np.array([[10 if d == 0 else d] for d in digits], dtype=np.uint8)
    stacked = np.zeros((32, 32, 3, len(images)), dtype=np.uint8)
    for i, image in enumerate(images):
        for c in range(3):
            stacked[:, :, c, i] = image[c]
    return matlab({"X": stacked, "y": labels})


def stl10(images: np.ndarray, labels: list[int], names: list[bytes], test: int) -> bytes:
    """Images are stored plane by plane, each column by column; labels from 1."""

    def raw(part: np.ndarray) -> bytes:
        return b"".join(image[c][:, x].tobytes() for image in part for c in range(3) for x in range(96))

    cut = len(images) - test
    numbers = bytes(label + 1 for label in labels)
    files = {
        "test_X.bin": raw(images[cut:]),
        "test_y.bin": numbers[cut:],
        "train_X.bin": raw(images[:cut]),
        "train_y.bin": numbers[:cut],
        "unlabeled_X.bin": bytes(96 * 96 * 3),
        "class_names.txt": b"\n".join(names) + b"\n",
        "fold_indices.txt": b"0 1\n",
    }
    return tar({f"stl10_binary/{k}": v for k, v in files.items()})
