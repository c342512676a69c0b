"""Command lines of small jobs, as Snakemake would give them."""

import json

from tests import processes

MODEL = {
    "kind": "vit",
    "image_size": 8,
    "in_chans": 1,
    "num_classes": 10,
    "patch_size": 2,
    "patch_norm": True,
    "embed_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
    "attention": "qk",
    "value": True,
    "qkv_bias": False,
    "proj_bias": False,
    "logit_scale": None,
    "norm_eps": 1e-5,
    "pos_embed": "sincos2d_simple",
    "pos_at": "qk",
    "alpha": 0.1,
    "cls_token": False,
    "pool": "mean",
    "weight_init": "torch",
}
AUGMENT = {
    "crop": "padded",
    "padding": 1,
    "flip": 0.0,
    "randaugment": None,
    "color_jitter": None,
    "erasing": None,
    "mixup": 0.0,
    "cutmix": 0.0,
}
RECIPE = {
    "optimizer": "adamw",
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.05,
    "decay": "matrices",
    "lr": 0.002,
    "schedule": "cosine",
    "per": "step",
    "min_lr": 0.0,
    "warmup_epochs": 1,
    "warmup_lr": 0.0,
    "epochs": 3,
    "batch_size": 32,
    "accumulate": 1,
    "layer_decay": 1.0,
    "ema": 0.0,
    "grad_clip": 0.0,
    "label_smoothing": 0.0,
    "drop_path": 0.1,
    "augment": AUGMENT,
}
PRETRAINING = {**RECIPE, "drop_path": 0.0}
DATASET = {"source": "sklearn_digits", "train": None, "val": 97, "test": 500, "split_seed": 0}
PROBE = {"labels": 50, "weight_decay": 0.01, "steps": 20}
DECODER = {"embed_dim": 8, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
TEACHERS = {
    "mae": {
        "source": "mae",
        "model": "m",
        "dataset": None,
        "recipe": "r",
        "mask_ratio": 0.6,
        "masking": "random",
        "norm_pix_loss": False,
        "decoder": DECODER,
        "probe": PROBE,
    },
    "untrained": {"source": "random", "model": "m", "dataset": None, "probe": PROBE},
    "tuned": {"source": "student", "student": "finetune", "model": "m", "dataset": None, "probe": PROBE},
    "given": {
        "source": "file",
        "path": "weights/given.safetensors",
        "format": "timm",
        "model": "m",
        "dataset": None,
        "probe": PROBE,
    },
}
ADAM = {
    "model": "m",
    "filter_size": 3,
    "offsets": "random",
    "solver": "adam",
    "layers": "each",
    "inputs": {"first": "position", "rest": "position"},
    "logit_scale": 0.5,
    "steps": 250,
    "lr": 0.01,
    "norm_every": 0,
}
SVD = {
    "model": "m",
    "filter_size": 3,
    "offsets": "ordered",
    "solver": "svd",
    "layers": "each",
    "inputs": {"first": "position", "rest": "position"},
    "logit_scale": 0.5,
    "signal": 1000.0,
    "noise": 3.0,
    "norm": 20.0,
    "value_norm": 0.0,
}
NONE = {"method": "none"}
MAPS = {"teacher": "mae", "what": "map", "layers": {"first": 2}, "heads": "all", "maps": "same_image"}
COPY = {"method": "copy", **MAPS}
DISTIL = {"method": "distil", **MAPS, "weight": 3.0}
FEATURES = {"method": "distil_features", "teacher": "mae", "layers": {"last": 1}, "weight": 1.0}


def student(source="random", transfer=NONE, **init):
    return {
        "model": "m",
        "init": {"source": source, **init},
        "transfer": transfer,
        "recipe": "r",
        "overrides": {},
        "labels": 60,
        "permute_labels": False,
        "freeze": "none",
    }


STUDENTS = {
    "plain": student(),
    "mimetic": student("mimetic", value=True),
    "impulse": student("impulse", fit="adam"),
    "finetune": student("teacher", teacher="mae"),
    "copy": student(transfer=COPY),
    "other": student(transfer={**COPY, "maps": "other_image"}),
    "distil": student(transfer=DISTIL),
    "copy_q": student(transfer={**COPY, "what": "q", "heads": {"list": [1]}}),
    "distil_v": student(transfer={**DISTIL, "what": "v"}),
    "features": student(transfer=FEATURES),
    "probe": student("teacher", teacher="mae") | {"freeze": "encoder", "overrides": {"drop_path": 0.0}},
    "two_teachers": student("teacher", DISTIL | {"teacher": "untrained"}, teacher="mae"),
}
COMPUTE = {"device": "cpu", "torch_threads": 1}


def common(rule, job, params):
    text = json.dumps(params, sort_keys=True, separators=(",", ":"))
    return ["--params", text, "--threads", "1", "--events", f"logs/{rule}/{job}.events.jsonl"]


def fetch(settings=DATASET):
    files = ["--output", "data/digits.safetensors", "--run-json", "data/digits.run.json"]
    return ["--dataset", "digits", *files, *common("fetch_dataset", "digits", {"datasets.digits": settings})]


def teacher(name="mae", seed=0, model=MODEL, recipe=PRETRAINING, source=None, **changes):
    folder = f"teachers/digits/{name}/seed{seed}"
    params = {f"teachers.{name}": TEACHERS[name] | changes, "models.m": model, "compute": COMPUTE}
    if "recipe" in TEACHERS[name]:
        params["recipes.r"] = recipe
    outputs = {"weights": "weights.safetensors", "metrics": "metrics.json", "history": "history.csv"}
    return [
        *["--dataset", "digits", "--teacher", name, "--seed", str(seed), "--data", "data/digits.safetensors"],
        *(["--source", source] if source else []),
        *files(folder, outputs),
        *common("pretrain_teacher", f"{name}.seed{seed}", params),
    ]


def fit(name="adam", seed=0, model=MODEL, **changes):
    settings = {**{"adam": ADAM, "svd": SVD}[name], **changes}
    if settings["inputs"] is None:
        del settings["inputs"]
    params = {f"fits.{name}": settings, "models.m": model, "compute": COMPUTE}
    outputs = {"output": "fit.safetensors", "metrics": "metrics.json", "history": "history.csv"}
    return [
        *["--fit", name, "--seed", str(seed)],
        *files(f"fits/{name}/seed{seed}", outputs),
        *common("fit_impulse", f"{name}.seed{seed}", params),
    ]


def train(name="plain", seed=0, model=MODEL, recipe=RECIPE, inputs=True, **changes):
    settings = {**STUDENTS.get(name, STUDENTS["plain"]), **changes}
    params = {f"students.{name}": settings, "models.m": model, "recipes.r": recipe, "compute": COMPUTE}
    outputs = {
        "weights": "weights.safetensors",
        "history": "history.csv",
        "predictions": "predictions.safetensors",
    }
    more = []
    for option, part in (("--init-teacher", "init"), ("--teacher", "transfer")):
        if (source := settings[part].get("teacher")) and inputs:
            more += [option, f"teachers/digits/{source}/seed{seed}/weights.safetensors"]
    if "fit" in settings["init"] and inputs:
        more += ["--fit", f"fits/{settings['init']['fit']}/seed{seed}/fit.safetensors"]
    return [
        *["--dataset", "digits", "--student", name, "--seed", str(seed), "--data", "data/digits.safetensors"],
        *more,
        *files(f"runs/digits/{name}/seed{seed}", outputs),
        *common("train_student", f"{name}.seed{seed}", params),
    ]


def files(folder, outputs):
    named = [part for key, name in outputs.items() for part in (f"--{key}", f"{folder}/{name}")]
    return [*named, "--checkpoint", f"checkpoints/{folder}", "--run-json", f"{folder}/run.json"]


def start(rule, arguments, cwd, **environment):
    """Start a stage as a process of its own."""
    return processes.start(["-m", f"attnprior.stages.{rule}", *arguments], cwd, **environment)
