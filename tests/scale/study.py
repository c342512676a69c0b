"""A generated study of any size on five data sets: its settings, and a project folder without results."""

from pathlib import Path

import yaml

from tests.workflow.project import ROOT, Project, create

DATASETS = tuple(f"digits_{letter}" for letter in "abcde")
SEEDS = 5
LABELS = (50, 100, 200, 400, 800, 1000)
FITS = 4
MAPS = {"what": "map", "layers": {"first": 2}, "heads": "all", "maps": "same_image"}
FAMILIES = {  # initialisation and transfer; {} is replaced by the number of a fit
    "random": ({"source": "random"}, {"method": "none"}),
    "mimetic": ({"source": "mimetic", "value": False}, {"method": "none"}),
    "impulse": ({"source": "impulse", "fit": "impulse_{}"}, {"method": "none"}),
    "finetune": ({"source": "teacher", "teacher": "mae_a"}, {"method": "none"}),
    "copy": (
        {"source": "random"},
        {"method": "copy", "teacher": "mae_b", **MAPS},
    ),
    "distil": ({"source": "random"}, {"method": "distil", "teacher": "mae_c", **MAPS, "weight": 3.0}),
}
CONTROLS = ("permuted", "other_image")
LARGEST = len(LABELS) * len(FAMILIES) + len(CONTROLS)  # students


def students(count: int, model: str = "model_i") -> dict[str, dict]:
    """Return the settings of the first `count` students, by number of labels and then by family."""
    made: dict[str, dict] = {}
    for i, labels in enumerate(LABELS):
        for family, (init, transfer) in FAMILIES.items():
            made[f"{family}_{labels}"] = {
                "model": model,
                "init": {k: v.format(i % FITS) if k == "fit" else v for k, v in init.items()},
                "transfer": dict(transfer),
                "recipe": "student",
                "overrides": {},
                "labels": labels,
                "permute_labels": False,
                "freeze": "none",
            }
    first = made["random_50"]
    made["permuted"] = {**first, "permute_labels": True}
    made["other_image"] = {**first, "transfer": {**FAMILIES["copy"][1], "maps": "other_image"}}
    return dict(list(made.items())[:count])


def shipped() -> dict:
    """Return the settings that the project ships."""
    return yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def settings(shipped: dict, count: int) -> dict:
    """Return the shipped settings with `count` small students on five data sets, in panels by labels."""
    chosen = students(count)
    model = {**shipped["models"]["model_i"], "embed_dim": 16, "depth": 2, "num_heads": 2}
    teacher = shipped["teachers"]["mae_model_i"]
    decoder = {"embed_dim": 8, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
    panels = {}
    for labels in LABELS:
        arms = [s for s in chosen if s.endswith(f"_{labels}")]
        if arms:
            panel = {"title": f"{labels} labels", "baseline": arms[0], "arms": arms, "controls": []}
            panels[f"labels_{labels}"] = panel
    panels["labels_50"]["controls"] = [s for s in CONTROLS if s in chosen]
    study = {
        "title": "How many jobs does a study bear?",
        "datasets": list(DATASETS),
        "seeds": list(range(SEEDS)),
        "teacher_seed": None,
        "confidence": 0.95,
        "panels": panels,
    }
    data = {"source": "sklearn_digits", "train": None, "val": 97, "test": 500}
    mae = {**shipped["recipes"]["mae"], "epochs": 2, "warmup_epochs": 0}
    del mae["warmup_lr"]
    return {
        "active": ["large"],
        "compute": shipped["compute"],
        "evaluation": shipped["evaluation"],
        "scales": {},
        "datasets": {name: {**data, "split_seed": i} for i, name in enumerate(DATASETS)},
        "models": {"model_i": model},
        "recipes": {"mae": mae, "student": shipped["recipes"]["student"]},
        "teachers": {f"mae_{letter}": {**teacher, "decoder": decoder} for letter in "abc"},
        "fits": {f"impulse_{i}": {**shipped["fits"]["impulse3"], "steps": 200} for i in range(FITS)},
        "students": chosen,
        "studies": {"large": study},
    }


def empty(root: Path, count: int) -> Project:
    """Return a new project in `root` whose study has `count` students; nothing is made of it."""
    return create(root, lambda shipped: settings(shipped, count))
