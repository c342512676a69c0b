"""A tree with one folder per class, plain or in a tar or zip; train/, val/ and test/ above them count.

So do Train/ and TEST/, unless Train/ may be a class: among folders of which none else is a part.
"""

from collections import defaultdict

from attnprior.data.sources.common import Found, Request, decode_files, files_decoder
from attnprior.data.tree import Tree
from attnprior.errors import UserError

PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
WORDS = ("train", "val", "test")


def folder(request: Request) -> Found:
    """Return the images of a class-per-folder tree, in the order of part, class and name.

    Classes are in the order of their folders' names. Every file in a class folder, however deep, has to be
    an image whatever its name says; files that lie in no class folder are not used.

    Raises:
        UserError: no or one class only, a class that a part lacks, bad files that are not to be skipped.
    """
    import numpy as np

    settings, where = request.settings, f"{request.where}.path"
    assert settings.path is not None and settings.channels is not None and settings.skip_bad is not None
    tree = Tree(settings.path, where)
    members, unused = _members(tree.names())
    if unused:
        request.say(f"{settings.path}: {len(unused)} files in no class folder are not used, as {unused[0]}")
    classes = sorted({c for _, c in members.values()})
    if not classes:
        raise UserError(f"{where}: {settings.path} has no class folders with files; give each class a folder")
    if len(classes) == 1:
        raise UserError(
            f"{where}: {settings.path} has one class only, {classes[0]!r}; at least two are needed"
        )
    index = {c: i for i, c in enumerate(classes)}
    names = sorted(members, key=lambda n: (members[n][0], index[members[n][1]], n))
    part = np.array([members[n][0] for n in names], dtype=np.int64)
    labels = np.array([index[members[n][1]] for n in names], dtype=np.int64)
    _check_classes(labels, part, classes, where)
    notes = {"skipped": 0}
    if not settings.skip_bad:  # or else what is kept depends on what can be read
        some = files_decoder(request, tree, names, settings.channels, where)
        return Found(None, labels, part, classes, notes, some)
    images, good, bad = decode_files(request, tree, names, settings.channels, settings.skip_bad, where)
    for line in bad:
        request.say(f"skipped {line}")
    if bad:
        labels, part = labels[good], part[good]
        _check_classes(labels, part, classes, where)
        images = _packed(images, good)
    return Found(images, labels, part, classes, {**notes, "skipped": len(bad)})


def _packed(images, good):
    """Move the good images to the front, in place, and return the view of them."""
    end = 0
    for row in good.nonzero()[0]:
        if row != end:
            images[end] = images[row]
        end += 1
    return images[:end]


def _members(names: list[str]) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """Return {name: (part, class)} and the files that lie in no class folder."""
    split = {n: n.split("/") for n in names}
    depth = _wrapping(list(split.values()))
    tops = {parts[depth] for parts in split.values() if len(parts) > depth + 1}
    parted = {t.lower() for t in tops} & set(PARTS)
    in_parts = "train" in tops or ("train" in parted and (len(parted) > 1 or len(tops) == 1))
    members, unused = {}, []
    for name, parts in split.items():
        rest, value = parts[depth:], 0
        if in_parts:
            if rest[0].lower() not in PARTS:
                unused.append(name)
                continue
            value, rest = PARTS[rest[0].lower()], rest[1:]
        if len(rest) < 2:
            unused.append(name)
        else:
            members[name] = (value, rest[0])
    return members, unused


def _wrapping(paths: list[list[str]]) -> int:
    """Return how many folders lie around the whole tree, as a packed folder has."""
    depth = 0
    while paths and all(len(p) > depth + 2 for p in paths):
        here = {p[depth] for p in paths}
        if len(here) > 1 or {h.lower() for h in here} & set(PARTS):
            break
        depth += 1
    return depth


def _check_classes(labels, part, classes: list[str], where: str) -> None:
    import numpy as np

    counts: dict[int, dict[int, int]] = defaultdict(dict)
    for value in np.unique(part):
        for i in np.unique(labels[part == value]):
            counts[int(value)][int(i)] = 1
    for value, found in counts.items():
        missing = [c for i, c in enumerate(classes) if i not in found]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(
                f"{where}: {WORDS[value]} has no images of class {missing[0]!r}{more}, other parts have;"
                " every part needs every class folder"
            )
