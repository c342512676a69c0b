"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the "Python version": a tar.gz of pickles.

The only pickles that this project reads: the archive is checksummed, and the reader builds nothing but
arrays, bytes, text, numbers, lists and dictionaries.
"""

import io
import pickle
from typing import Any

from attnprior.data.sources.common import Found, Request, official, sized
from attnprior.data.tree import Tree
from attnprior.errors import UserError

SIDE = 32
ARRAYS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}


class _Arrays(pickle.Unpickler):
    """Builds NumPy arrays and plain values; any other name in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        if (module, name) in ARRAYS:
            return np.zeros(0).__reduce__()[0]  # under the name that this NumPy has for it
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def unpickle(content: bytes, where: str) -> dict:
    """Return the dictionary of a CIFAR file; keys and texts are bytes.

    Raises:
        UserError: it is broken or holds anything but plain values and arrays.
    """
    try:
        found = _Arrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as e:  # a pickle can fail in any way
        raise UserError(f"{where}: a batch of the archive cannot be read ({e}); get the archive again") from e
    if not isinstance(found, dict):
        raise UserError(f"{where}: a batch of the archive is no dictionary; get the archive again")
    return found


def cifar10(request: Request) -> Found:
    """Return CIFAR-10: 50,000 training and 10,000 test images, 32x32 RGB, 10 classes."""
    folder = "cifar-10-batches-py"
    train = [f"{folder}/data_batch_{i}" for i in range(1, 6)]
    keys = (b"labels", b"label_names")
    return _cifar(request, train, f"{folder}/test_batch", f"{folder}/batches.meta", *keys)


def cifar100(request: Request) -> Found:
    """Return CIFAR-100 with its 100 fine classes: 50,000 training and 10,000 test images, 32x32 RGB."""
    folder = "cifar-100-python"
    keys = (b"fine_labels", b"fine_label_names")
    return _cifar(request, [f"{folder}/train"], f"{folder}/test", f"{folder}/meta", *keys)


def _cifar(request: Request, train: list[str], test: str, meta: str, labels_key: bytes, names_key: bytes):
    import numpy as np

    names = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
    path = official(request, names[request.settings.source])[0]
    files = Tree(path, f"{request.where}.path").get([*train, test, meta])
    images, labels, part = [], [], []
    for name in [*train, test]:
        batch = unpickle(files.pop(name), request.where)
        data = np.asarray(batch[b"data"], dtype=np.uint8)  # n 3072: red, green, blue planes, row by row
        images.append(data.reshape(-1, 3, SIDE, SIDE))
        labels.append(np.asarray(batch[labels_key], dtype=np.int64))
        part.append(np.full(len(data), 2 if name == test else 0, dtype=np.int64))
    classes = [n.decode() for n in unpickle(files[meta], request.where)[names_key]]
    return Found(
        sized(request, np.concatenate(images)), np.concatenate(labels), np.concatenate(part), classes
    )
