"""A small study in a file of its own, at a scale, beside published values."""

import copy

FILE = "studies/extra.yaml"
RANDOM = "2401.12511/t1/simple_vit/random/input_sincos"
UNKNOWN = "2401.12511/t1/model_ii/random"


def content(params: dict) -> dict:
    """Return what stands in `studies/extra.yaml`: a study like `digits` in small, with entries of its own."""
    params = copy.deepcopy(params)
    students, fit = params["students"], params["fits"]["impulse3"]
    panel = {"title": "Probe", "baseline": "random_probe", "controls": []}
    panel["arms"] = ["random_probe", "impulse_probe", "copy_probe"]
    paper = {"table": "arXiv:2401.12511, Table 1", "differs": "digits, not CIFAR-10"}
    paper["values"] = {"digits_probe": {"random_probe": RANDOM, "impulse_probe": UNKNOWN}}
    paper["stated"] = ["2401.12511/t3/random/best_alpha"]
    made = {
        "datasets": {"digits_probe": {**params["datasets"]["digits"], "split_seed": 3}},
        "recipes": {
            "recipe_probe": {
                **params["recipes"]["student"],
                "epochs": 4,
                "warmup_epochs": 1,
                "warmup_lr": 0.0,
            }
        },
        "fits": {"fit_probe": {**fit, "steps": 100}},
        "teachers": {"teacher_probe": params["teachers"]["random_model_i"]},
        "students": {
            "random_probe": students["random"],
            "impulse_probe": {**students["impulse"], "init": {"source": "impulse", "fit": "fit_probe"}},
            "copy_probe": {
                **students["copy"],
                "transfer": {**students["copy"]["transfer"], "teacher": "teacher_probe"},
            },
        },
        "studies": {
            "probe": {
                **{k: params["studies"]["digits"][k] for k in ("teacher_seed", "confidence")},
                **{"title": "Probe", "datasets": ["digits_probe"], "seeds": [0, 1, 2]},
                **{"panels": {"main": panel}, "paper": paper},
            },
            "probe_tiny": {"of": "probe", "scale": "tiny"},
        },
    }
    for student in made["students"].values():
        student |= {"recipe": "recipe_probe", "labels": 100}
    return copy.deepcopy(made)


def files(params: dict) -> dict[str, dict]:
    """Return {path: content} of the files beside `params.yaml`; their scaled study becomes active, too."""
    made, active = {FILE: content(params)}, params["active"]
    params["active"] = [*active, *settings(params)["active"]]
    return made


def settings(params: dict) -> dict:
    """Return `params.yaml` with the scale, and the scaled study as the active one."""
    params["scales"]["tiny"] = {"images": 60, "epochs": 2, "seeds": 2, "steps": 50}
    params["active"] = ["probe_tiny"]
    return params
