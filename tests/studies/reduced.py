"""A file of studies in small: each distinct combination of its arms once, 50 steps, few synthetic images.

Kept are patch size, width, depth, heads, losses, recipes and every key. Smaller are the images (a few patches
a side), their number and that of classes, and with them what counts them: labels, epochs, fitting steps. Only
free queries and keys, which need as many tokens as a head is wide, get smaller patches for it.
"""

import copy
import json
import math
from dataclasses import dataclass, field

from attnprior.workflow import graph, studyfiles

CLASSES = 4
PER_CLASS, HELD_OUT = 2, 1  # images of a class for training and validation, and for the test
STEPS = 50
FIT_STEPS = 100  # where norm_every is 100, as in the papers, weights are normalised once
GRIDS = (6, 4)  # patches a side: the first with which no job takes more than LARGEST, else the last
LARGEST = 3e11  # operations of the students' training


@dataclass
class Reduced:
    """What is to be run: the content of both files, and which arms stand for which others."""

    params: dict  # of params.yaml
    content: dict  # of the file beside it
    arms: dict[str, list[str]]  # study -> its arms that are run, on its first data set
    same: dict[str, str] = field(default_factory=dict)  # arm that is not run -> that of the same combination
    sides: dict[str, tuple[int, int]] = field(default_factory=dict)  # archive -> side, channels
    teachers: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (data set, name) -> students
    fits: dict[str, list[str]] = field(default_factory=dict)  # name -> students
    unused: list[str] = field(default_factory=list)  # entries of the file that no study of it needs
    files: dict[str, str] = field(default_factory=dict)  # weights that a teacher is read from -> its model


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
    studies = {n: v for n, v in studyfiles.part(settings, {path})["studies"].items() if "of" not in v}
    firsts: dict[str, tuple[str, str, str]] = {}  # combination -> study, data set, arm
    same = {}
    for name, study in studies.items():
        for arm in graph.study_arms({"studies": {name: study}}, name):
            found = firsts.setdefault(combination(settings, arm.student), (name, arm.dataset, arm.student))
            if found[1:] != (arm.dataset, arm.student):
                same[f"{name}/{arm.student} on {arm.dataset}"] = f"{found[0]}/{found[2]} on {found[1]}"
    run = {(dataset, student) for _, dataset, student in firsts.values()}
    small = {n: s for n, v in studies.items() if (s := _study(v, run))}
    used = {**settings, "studies": {**settings["studies"], **small}, "active": list(small)}
    teachers, fits, pairs = _behind(used)
    entries = _entries(used, small, pairs, teachers, fits)
    grids = _grids(entries["models"], entries["students"])
    _shrink(entries, grids)
    sides = {d: (entries["models"][m]["image_size"], entries["models"][m]["in_chans"]) for d, m in pairs}
    assert set(sides.items()) == {
        (d, (entries["models"][m]["image_size"], entries["models"][m]["in_chans"])) for d, m in pairs
    }, "two models want images of different sizes"
    entries["datasets"] = {name: _dataset(*size) for name, size in sides.items()}
    made = Reduced(*_files(settings, entries, list(small)), {}, same)
    made.sides = {archive_name(*size): size for size in sides.values()}
    for name in small:
        made.arms[name] = [a.student for a in graph.study_arms({"studies": small}, name)]
    made.teachers, made.fits = teachers, fits
    for teacher in entries["teachers"].values():
        if "path" in teacher:
            made.files[teacher["path"]] = teacher["model"]
    own = studyfiles.part(settings, {path})
    made.unused = [
        f"{registry}.{name}"
        for registry in ("models", "recipes", "teachers", "fits", "students")
        for name in own[registry]
        if name not in entries[registry]
    ]
    return made


def _study(values: dict, run: set[tuple[str, str]]) -> dict | None:
    """Return a study with its first data set, one seed and the arms that are `run`; None without any."""
    dataset = values["datasets"][0]
    panels = {}
    for name, panel in values["panels"].items():
        arms, controls = ([s for s in panel[k] if (dataset, s) in run] for k in ("arms", "controls"))
        if not arms:
            arms, controls = controls, []
        if arms:
            baseline = panel["baseline"] if panel["baseline"] in arms else arms[0]
            panels[name] = {**panel, "baseline": baseline, "arms": arms, "controls": controls}
    if not panels:
        return None
    small = {**values, "datasets": [dataset], "seeds": [0], "panels": panels}
    if "paper" in values:
        shown = {s for p in panels.values() for s in [*p["arms"], *p["controls"]]}
        beside = {
            d: {s: key for s, key in keys.items() if s in shown}
            for d, keys in values["paper"]["values"].items()
            if d == dataset
        }
        small["paper"] = {**values["paper"], "values": beside}
    return small


def _behind(used: dict):
    """Return the teachers and fits of the active studies with their students, and (data set, model) pairs."""
    teachers: dict[tuple[str, str], list[str]] = {}
    fits: dict[str, list[str]] = {}
    pairs: dict[tuple[str, str], None] = {}
    for arm in graph.all_arms(used):
        pairs[arm.dataset, used["students"][arm.student]["model"]] = None
        if fit := graph.fit_of(used, arm.student):
            fits.setdefault(fit, []).append(arm.student)
        for teacher in graph.teachers_of(used, arm.student):
            made_on = graph.made_on(used, teacher, arm.dataset)
            pairs[made_on, used["teachers"][teacher]["model"]] = None
            teachers.setdefault((made_on, teacher), []).append(arm.student)
    return teachers, fits, list(pairs)


def _entries(used: dict, small: dict, pairs, teachers, fits) -> dict:
    """Return copies of the entries that the studies `small` need, by registry."""
    students = dict.fromkeys(a.student for a in graph.all_arms(used))
    recipes = [used["students"][s]["recipe"] for s in students]
    recipes += [used["teachers"][t]["recipe"] for _, t in teachers if "recipe" in used["teachers"][t]]
    wanted = {
        **{"students": students, "recipes": recipes, "models": [m for _, m in pairs]},
        **{"teachers": [t for _, t in teachers], "fits": fits, "studies": small},
    }
    return {
        registry: {n: copy.deepcopy(used[registry][n]) for n in dict.fromkeys(names)}
        for registry, names in wanted.items()
    }


def _grids(models: dict, students: dict) -> dict[int, int]:
    """Return {size of images: their size in small}: equal for all models of images of that size."""
    trained = {s["model"] for s in students.values()}
    found = {}
    for size in {m["image_size"] for m in models.values()}:
        group = {n: m for n, m in models.items() if m["image_size"] == size}
        patches = math.lcm(*(m["patch_size"] for m in group.values()))
        fitting = (
            g
            for g in GRIDS
            if all(
                training(m, (g * patches // m["patch_size"]) ** 2) <= LARGEST
                for n, m in group.items()
                if n in trained
            )
        )
        found[size] = min(size, next(fitting, GRIDS[-1]) * patches)
    return found


def training(model: dict, tokens: int) -> float:
    """Return about how many operations the training of a student takes in small."""
    width, depth = model["embed_dim"], model["depth"]
    if model["kind"] == "vit":
        block = (8 + 4 * model["mlp_ratio"]) * tokens * width**2 + 4 * tokens**2 * width
    else:
        block = 2 * tokens * width * (width + model["kernel_size"] ** 2)
    return 3 * STEPS * CLASSES * (PER_CLASS - 1) * depth * block


def _shrink(entries: dict, grids: dict[int, int]) -> None:
    for model in entries["models"].values():
        model["image_size"] = grids[model["image_size"]]
        model["num_classes"] = CLASSES
        while model.get("attention") == "free" and model["patch_size"] > 1 and _tokens(model) < _rank(model):
            model["patch_size"] //= 2
    for recipe in entries["recipes"].values():  # all images are one batch: a step is an epoch
        recipe["epochs"] = STEPS
        if recipe.get("warmup_epochs"):
            recipe["warmup_epochs"] = 5
    for student in entries["students"].values():
        student["labels"] = CLASSES * (PER_CLASS - 1)
        student["overrides"] = {
            k: v for k, v in student["overrides"].items() if k not in ("epochs", "warmup_epochs")
        }
    for fit in entries["fits"].values():
        if "steps" in fit:
            fit["steps"] = FIT_STEPS
    for teacher in entries["teachers"].values():
        teacher["probe"] = {**teacher["probe"], "labels": CLASSES, "steps": 5}


def _tokens(model: dict) -> int:
    return (model["image_size"] // model["patch_size"]) ** 2


def _rank(model: dict) -> int:
    return model["embed_dim"] // model["num_heads"]


def _dataset(side: int, chans: int) -> dict:
    return {
        **{"source": "folder", "path": archive_name(side, chans), "train": None, "val": CLASSES},
        **{"test": None, "split_seed": 0, "resize": None, "resident_limit": 64},
        **{"channels": chans, "skip_bad": False},
    }


def archive_name(side: int, chans: int) -> str:
    return f"synthetic_{side}_{chans}.tar"


def _files(settings: dict, entries: dict, studies: list[str]) -> tuple[dict, dict]:
    """Return the content of params.yaml and of the file beside it: each entry in small where it stood."""
    params = copy.deepcopy(studyfiles.part(settings, {studyfiles.PARAMS})) | {"active": studies}
    content: dict[str, dict] = {}
    for registry, found in entries.items():
        for name, values in found.items():
            target = params if name in params[registry] else content
            target.setdefault(registry, {})[name] = json.loads(json.dumps(values))  # YAML: no shared nodes
    return params, content
