"""Projects of reduced studies: the shipped graph and code beside synthetic images and weights."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import yaml

from attnprior.config import Model, build
from tests.studies.reduced import CLASSES, HELD_OUT, PER_CLASS, Reduced
from tests.workflow.project import ROOT

CODE = ("Snakefile", "workflow", "profiles", "src", "pyproject.toml")
SETTINGS = ("params.yaml", "studies/small.yaml")


def write(root: Path, small: Reduced) -> None:
    """Make or renew the project in `root`; what was made in it stays, Snakemake judges what is stale."""
    for name in CODE:
        source, target = ROOT / name, root / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(source, target)
    write_settings(root, small)
    for name, size in small.sides.items():
        if not (root / name).is_file():
            archive(root / name, *size)
    for path, model in small.files.items():
        if not (root / path).is_file():
            weights(root / path, small.content["models"][model])


def write_settings(root: Path, small: Reduced) -> None:
    """Write both files of settings below `root`."""
    (root / "studies").mkdir(parents=True, exist_ok=True)
    for name, content in zip(SETTINGS, (small.params, small.content), strict=True):
        (root / name).write_text(yaml.safe_dump(content, sort_keys=False))


def archive(path: Path, side: int, chans: int) -> None:
    """Write a tar with a few PNG images of each class below train/ and test/, coloured by class."""
    from PIL import Image

    draw = np.random.default_rng(side)
    with tarfile.open(path, "w") as tar:
        for part, count in (("train", PER_CLASS), ("test", HELD_OUT)):
            for label in range(CLASSES):
                for i in range(count):
                    pixels = draw.integers(0, 120, (side, side, chans)) + 30 * label
                    image = Image.fromarray(pixels.astype("uint8").squeeze())
                    data = io.BytesIO()
                    image.save(data, "PNG")
                    entry = tarfile.TarInfo(f"{part}/class{label}/{i}.png")
                    entry.size = data.tell()
                    data.seek(0)
                    tar.addfile(entry, data)


def weights(path: Path, model: dict) -> None:
    """Write random weights of an encoder under timm's names, as a pre-training by others would be given."""
    from attnprior.files import save_tensors
    from attnprior.models.mae import encoder_config
    from attnprior.models.vit import build_vit

    encoder = build_vit(encoder_config(build(Model, model, "models")), 5)
    state = dict(encoder.state_dict())
    if encoder.pos_embed is not None:
        state["pos_embed"] = encoder.pos_embed
    save_tensors(path, {k: v.detach().contiguous() for k, v in state.items()}, {})
