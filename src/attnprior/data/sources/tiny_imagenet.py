"""Tiny ImageNet (CS231n, Stanford) from its zip. Test images have no labels, so `val` is the test part."""

from collections import Counter

from attnprior.data.sources.common import Found, Request, files_decoder, official
from attnprior.data.tree import Tree

FOLDER = "tiny-imagenet-200"


def tiny_imagenet(request: Request) -> Found:
    """Return 100,000 training images and, as test part, the 10,000 of `val`: 64x64 RGB, 200 classes.

    Classes are in the order of their WordNet ids; a class has the first of its words as name, with the id
    behind where two classes share it.
    """
    import numpy as np

    path = official(request, "tiny-imagenet-200.zip")[0]
    tree = Tree(path, f"{request.where}.path")
    table, words, ids = f"{FOLDER}/val/val_annotations.txt", f"{FOLDER}/words.txt", f"{FOLDER}/wnids.txt"
    texts = {name: content.decode() for name, content in tree.get([table, words, ids]).items()}
    classes = sorted(texts[ids].split())
    label = {wnid: i for i, wnid in enumerate(classes)}
    known: dict[str, str] = dict(line.split("\t", 1) for line in texts[words].splitlines() if "\t" in line)
    first = [known.get(wnid, wnid).split(",")[0].strip() for wnid in classes]
    twice = Counter(first)
    names = [f"{f} ({w})" if twice[f] > 1 else f for f, w in zip(first, classes, strict=True)]
    held_out = {}
    for line in texts[table].splitlines():
        file, wnid = line.split("\t")[:2]
        held_out[f"{FOLDER}/val/images/{file}"] = label[wnid]
    train = [n for n in tree.names() if n.startswith(f"{FOLDER}/train/") and n.upper().endswith(".JPEG")]
    labels = [label[n.split("/")[2]] for n in train]
    files = [*train, *sorted(held_out)]
    some = files_decoder(request, tree, files, 3, f"{request.where}.path")
    labels += [held_out[n] for n in sorted(held_out)]
    part = np.repeat([0, 2], [len(train), len(held_out)])
    return Found(None, np.array(labels, dtype=np.int64), part, names, decode=some)
