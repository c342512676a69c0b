"""A file of studies in small: each distinct combination of its arms once, 50 steps, few synthetic images."""

import copy
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attnprior.workflow import graph, studyfiles

CLASSES, PER_CLASS, HELD_OUT = 4, 2, 2  # images of a class for training and validation, and for the test
STEPS = 50
LARGEST = 2e13  # operations of one job; what is larger is not run


@dataclass
class Reduced:
    """What is to be run: settings of both files, and what is left out with the reason."""

    params: dict
    content: dict
    arms: dict[str, list[str]]  # study -> its arms that are run
    not_run: dict[str, str] = field(default_factory=dict)  # study/arm -> why
    images: dict[str, tuple[int, int]] = field(default_factory=dict)  # archive -> side, channels


def combination(settings: dict, student: str) -> str:
    """Return what makes a student a combination of its own: model, init, transfer, recipe, what is frozen."""
    values = settings["students"][student]
    kept = {k: v for k, v in values.items() if k not in ("labels", "permute_labels")}
    for part in ("init", "transfer"):
        for key, registry in (("teacher", "teachers"), ("fit", "fits")):
            if key in kept[part]:
                kept[part] = {**kept[part], key: settings[registry][kept[part][key]]}
    return json.dumps(kept, sort_keys=True)


def reduce(settings: dict, path: str) -> Reduced:
    """Return the studies of the file `path`, reduced; `settings` are all files' as they stand there."""
    made = Reduced(copy.deepcopy(studyfiles.part(settings, {studyfiles.PARAMS})), {}, {})
    entries = copy.deepcopy({k: v for k, v in settings.items() if k in studyfiles.REGISTRIES})
    seen: dict[str, str] = {}
    studies = {n: v for n, v in studyfiles.part(settings, {path})["studies"].items() if "of" not in v}
    sides: dict[str, tuple[int, int]] = {}
    for name, study in studies.items():
        arms = []
        for arm in graph.study_arms({"studies": {name: study}}, name):
            key, where = combination(settings, arm.student), f"{name}/{arm.student}"
            if key in seen:
                made.not_run[where] = f"same as {seen[key]}, which stands for it"
            elif reason := _too_much(settings, arm.student):
                made.not_run[where] = reason
            elif arm.dataset != study["datasets"][0]:
                continue
            else:
                seen[key] = where
                arms.append(arm.student)
                _sides(settings, arm, sides)
        if arms:
            made.arms[name] = arms
            panel = {"title": "All", "baseline": arms[0], "arms": arms, "controls": []}
            study = {k: v for k, v in study.items() if k != "paper"}
            entries["studies"][name] = {
                **study,
                **{"datasets": study["datasets"][:1], "seeds": [0], "panels": {"all": panel}},
            }
    _shrink(entries, sides)
    made.images = {f"synthetic_{side}_{chans}.tar": (side, chans) for side, chans in sides.values()}
    shipped = {k for k in made.params if k in studyfiles.REGISTRIES}
    for registry in shipped:
        own = studyfiles.part(settings, {studyfiles.PARAMS})[registry]
        made.content[registry] = {n: v for n, v in entries[registry].items() if n not in own}
    made.content["studies"] = {n: entries["studies"][n] for n in made.arms}
    made.params["active"] = list(made.arms)
    return made


def _sides(settings: dict, arm: graph.Arm, sides: dict[str, tuple[int, int]]) -> None:
    """Note the size of the images of the data sets that an arm and its teacher use."""
    values = settings["students"][arm.student]
    model = settings["models"][values["model"]]
    teacher = graph.teacher_of(settings, arm.student)
    other = settings["teachers"][teacher].get("dataset") if teacher else None
    for dataset in (arm.dataset, other):
        if dataset is not None:
            sides[dataset] = (model["image_size"], model["in_chans"])


def _too_much(settings: dict, student: str) -> str | None:
    """Return why a student cannot be run here, or None."""
    teacher = graph.teacher_of(settings, student)
    if teacher and settings["teachers"][teacher]["source"] == "file":
        return f"its teacher is the file {settings['teachers'][teacher]['path']}, which the project has not"
    values = settings["models"][settings["students"][student]["model"]]
    tokens = (values["image_size"] // values["patch_size"]) ** 2
    width, depth = values["embed_dim"], values["depth"]
    if values["kind"] == "vit":
        block = (8 + 4 * values["mlp_ratio"]) * tokens * width**2 + 4 * tokens**2 * width
    else:
        block = 2 * tokens * width * (width + values["kernel_size"] ** 2)
    work = 3 * STEPS * CLASSES * PER_CLASS * depth * block
    return f"about {work / 1e12:.0f} TFLOP for {STEPS} steps" if work > LARGEST else None


def _shrink(entries: dict, sides: dict[str, tuple[int, int]]) -> None:
    for name, (side, chans) in sides.items():
        entries["datasets"][name] = {
            **{"source": "folder", "path": f"synthetic_{side}_{chans}.tar", "train": None, "val": CLASSES},
            **{"test": None, "split_seed": 0, "resize": None, "resident_limit": 64},
            **{"channels": chans, "skip_bad": False},
        }
    for model in entries["models"].values():
        model["num_classes"] = min(model["num_classes"], CLASSES)
    for recipe in entries["recipes"].values():  # all images are one batch: a step is an epoch
        warmup = recipe.get("warmup_epochs", 0)
        recipe["epochs"] = STEPS
        if warmup:
            recipe["warmup_epochs"] = 5
    for student in entries["students"].values():
        student["labels"] = CLASSES * (PER_CLASS - 1)
        student["overrides"] = {
            k: v for k, v in student["overrides"].items() if k not in ("epochs", "warmup_epochs")
        }
    for fit in entries["fits"].values():
        if "steps" in fit:
            fit["steps"] = STEPS
    for teacher in entries["teachers"].values():
        teacher["probe"] = {**teacher["probe"], "labels": CLASSES, "steps": 5}


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
