"""Oxford-IIIT Pets (Parkhi et al., 2012): a tar.gz of images and one of annotations."""

from attnprior.data.sources.common import Found, Request, files_decoder, official
from attnprior.data.tree import Tree
from attnprior.errors import UserError


def pets(request: Request) -> Found:
    """Return 3,680 training and 3,669 test images of 37 breeds, in the asked size."""
    import numpy as np

    where = f"{request.where}.path"
    archive, annotations = official(request, "images.tar.gz", "annotations.tar.gz")
    lists = ["annotations/trainval.txt", "annotations/test.txt"]
    texts = Tree(annotations, where).get(lists)
    names: dict[int, str] = {}
    files, labels, part = [], [], []
    for value, name in zip((0, 2), lists, strict=True):
        for line in texts[name].decode().splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            image, number = line.split()[:2]
            names[int(number) - 1] = image.rpartition("_")[0].replace("_", " ")
            files.append(f"images/{image}.jpg")
            labels.append(int(number) - 1)
            part.append(value)
    if sorted(names) != list(range(len(names))):
        raise UserError(f"{where}: the annotations leave out classes; get annotations.tar.gz again")
    some = files_decoder(request, Tree(archive, where), files, 3, where)
    classes = [names[i] for i in sorted(names)]
    numbers = np.array(labels, dtype=np.int64)
    return Found(None, numbers, np.array(part, dtype=np.int64), classes, decode=some)
