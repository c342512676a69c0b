"""Oxford 102 Flowers (Nilsback and Zisserman, 2008): a tgz of JPEGs and two MATLAB files."""

from attnprior.data.sources.common import Found, Request, files_decoder, official
from attnprior.data.tree import Tree

SETS = ("trnid", "valid", "tstid")


def flowers102(request: Request) -> Found:
    """Return 1,020 training, 1,020 validation and 6,149 test images of 102 classes, in the asked size.

    The archives hold no class names; classes are called by their numbers there, from 1.
    """
    import numpy as np
    from scipy.io import loadmat

    archive, labels_file, sets_file = official(request, "102flowers.tgz", "imagelabels.mat", "setid.mat")
    labels = loadmat(labels_file)["labels"].ravel().astype(np.int64) - 1  # of images 1, 2, …
    sets = loadmat(sets_file)
    numbers = [np.sort(sets[key].ravel().astype(np.int64)) for key in SETS]
    tree = Tree(archive, f"{request.where}.path")
    files = [f"jpg/image_{i:05d}.jpg" for i in np.concatenate(numbers)]
    some = files_decoder(request, tree, files, 3, f"{request.where}.path")
    part = np.repeat([0, 1, 2], [len(n) for n in numbers])
    classes = [str(i + 1) for i in range(int(labels.max()) + 1)]
    return Found(None, labels[np.concatenate(numbers) - 1], part, classes, decode=some)
