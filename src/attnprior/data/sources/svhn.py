"""SVHN, cropped digits (Netzer et al., 2011) from its two MATLAB files."""

from attnprior.data.sources.common import Found, Request, official, sized


def svhn(request: Request) -> Found:
    """Return 73,257 training and 26,032 test images, 32x32 RGB; the file's label 10 is the digit 0."""
    import numpy as np
    from scipy.io import loadmat

    images, labels, part = [], [], []
    for value, path in zip((0, 2), official(request, "train_32x32.mat", "test_32x32.mat"), strict=True):
        found = loadmat(path, variable_names=("X", "y"))
        images.append(np.ascontiguousarray(found["X"].transpose(3, 2, 0, 1)))  # 32 32 3 n -> n 3 32 32
        labels.append(found["y"].ravel().astype(np.int64) % 10)
        part.append(np.full(len(labels[-1]), value, dtype=np.int64))
    classes = [str(digit) for digit in range(10)]
    return Found(
        sized(request, np.concatenate(images)), np.concatenate(labels), np.concatenate(part), classes
    )
