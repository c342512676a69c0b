"""The data file: a safetensors file whose images are written and read piece by piece, never whole.

Layout: labels, split (int64), then images (uint8, N C H W), as the safetensors writer orders them; the
header is padded with blanks, which the format allows, as mean, deviation and checksum are known last.
"""

import hashlib
import json
from pathlib import Path

from attnprior.files import atomic, canonical_json

CHUNK = 32 * 2**20  # bytes of images at a time
SPARE = 512  # bytes of the header for numbers that are known last


def write(path, images, rows, labels, split, header: dict, train: int) -> dict:
    """Write `images[rows]` with labels (n,) and split (n,) and return the header, completed.

    Added are mean and std per channel of the images whose split is `train`, from exact integer sums,
    over 255, and `sha256` of the bytes of images and labels. Equal content gives equal bytes.
    """
    import numpy as np

    shape, count = images.shape[1:], len(rows)
    ends = [8 * count, 16 * count, 16 * count + count * int(np.prod(shape))]

    def described(values: dict) -> bytes:
        return canonical_json(
            {
                "__metadata__": {"json": canonical_json(values)},
                "images": {"dtype": "U8", "shape": [count, *shape], "data_offsets": ends[1:]},
                "labels": {"dtype": "I64", "shape": [count], "data_offsets": [0, ends[0]]},
                "split": {"dtype": "I64", "shape": [count], "data_offsets": ends[:2]},
            }
        ).encode()

    room = -(-(len(described(header)) + SPARE + 64 * shape[0]) // 8) * 8
    levels = np.zeros((shape[0], 256), dtype=np.int64)  # C 256
    digest = hashlib.sha256()
    with atomic(path) as temporary, open(temporary, "wb") as f:
        f.write(bytes(8 + room) + labels.astype("<i8").tobytes() + split.astype("<i8").tobytes())
        step = max(1, CHUNK // max(1, int(np.prod(shape))))
        for start in range(0, count, step):
            chunk = np.ascontiguousarray(images[rows[start : start + step]])
            digest.update(chunk.data)
            f.write(chunk.data)
            seen = chunk[split[start : start + step] == train]
            for c in range(shape[0]):
                levels[c] += np.bincount(seen[:, c].ravel(), minlength=256)
        digest.update(labels.astype("<i8").tobytes())
        mean, std = moments(levels)
        header = {**header, "mean": mean, "std": std, "sha256": digest.hexdigest()}
        text = described(header).ljust(room)
        f.seek(0)
        f.write(len(text).to_bytes(8, "little") + text)
    return header


def moments(levels) -> tuple[list[float], list[float]]:
    """Return mean and deviation of v / 255 per channel, from how often each value occurs, (C, 256)."""
    mean, std = [], []
    for counts in levels.tolist():
        n = sum(counts)
        first = sum(v * k for v, k in enumerate(counts))
        second = sum(v * v * k for v, k in enumerate(counts))
        mean.append(first / (n * 255))
        std.append(((n * second - first * first) / (n * n * 255 * 255)) ** 0.5)
    return mean, std


def mapped_images(path, shape):
    """Return the images of a data file, mapped: only what is used is read, and writing leaves the file alone.

    The file must be one that the safetensors reader accepts.
    """
    import numpy as np

    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        begin = json.loads(f.read(length))["images"]["data_offsets"][0]
    # "c": pages stay shared with the file system until written, which torch wants to be possible.
    return np.memmap(Path(path), dtype=np.uint8, mode="c", offset=8 + length + begin, shape=tuple(shape))
