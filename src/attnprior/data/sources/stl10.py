"""STL-10 (Coates et al., 2011) from its binary tar.gz; its unlabelled images are not read."""

from attnprior.data.sources.common import Found, Request, official, sized
from attnprior.data.tree import Tree

SIDE, FOLDER = 96, "stl10_binary"


def stl10(request: Request) -> Found:
    """Return 5,000 training and 8,000 test images, 96x96 RGB, 10 classes."""
    import numpy as np

    path = official(request, "stl10_binary.tar.gz")[0]
    names = [f"{FOLDER}/{n}" for n in ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")]
    files = Tree(path, f"{request.where}.path").get([*names, f"{FOLDER}/class_names.txt"])
    images, labels, part = [], [], []
    for value, name in ((0, "train"), (2, "test")):
        # Column by column within each colour plane, so the last two axes change places.
        raw = np.frombuffer(files.pop(f"{FOLDER}/{name}_X.bin"), dtype=np.uint8)
        images.append(raw.reshape(-1, 3, SIDE, SIDE).transpose(0, 1, 3, 2))
        labels.append(np.frombuffer(files[f"{FOLDER}/{name}_y.bin"], dtype=np.uint8).astype(np.int64) - 1)
        part.append(np.full(len(labels[-1]), value, dtype=np.int64))
    classes = files[f"{FOLDER}/class_names.txt"].decode().split()
    return Found(
        sized(request, np.concatenate(images)), np.concatenate(labels), np.concatenate(part), classes
    )
