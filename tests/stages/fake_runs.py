"""Runs of a small study as the stages would leave them, without training anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import attnprior
from attnprior.analysis.history import read_history
from attnprior.config import build_study
from attnprior.files import save_tensors
from attnprior.report import inputs
from attnprior.report.page import render
from attnprior.stages import evaluate
from tests.stages import commands

CLASSES = ["nought", "one", "two", "three"]
FIGURES = (
    *("accuracy", "labels", "curves", "impulse", "attention", "reconstruction", "redundancy", "confusion"),
)
LEVEL = {
    "random": 0.0,
    "mimetic": 0.2,
    "impulse": 1.5,
    "copy_other": -0.5,
    "vit_random": 0.0,
    "vit_copy": 1.0,
    "permuted": -1.0,
    "random_50": -0.2,
    "random_1400": 2.0,
    "copy_50": 1.0,
    "copy": 1.5,
    "copy_1400": 2.0,
    "vit_copy_50": -0.2,
    "vit_copy_1400": 2.0,
}


def study(seeds=(0, 1, 2), **changes) -> dict:
    made = {
        "title": "Where should attention come from?",
        "datasets": ["digits"],
        "seeds": list(seeds),
        "teacher_seed": None,
        "confidence": 0.95,
        "panels": {
            "model_i": {
                "title": "Model I_1 & 100 %",
                "baseline": "random",
                "arms": ["random", "mimetic", "impulse"],
                "controls": ["copy_other"],
            },
            "vit": {
                "title": "Standard ViT",
                "baseline": "vit_random",
                "arms": ["vit_random", "vit_copy"],
                "controls": [],
            },
        },
    }
    return {**made, **changes}


def labels_study(seeds=(0, 1, 2)) -> dict:
    """A study of three families over three numbers of labels, and a control on permuted labels."""
    panels = {
        f"labels_{n}": {
            "title": f"{n} labels",
            "baseline": names[0],
            "arms": names,
            "controls": ["permuted"] if n == 200 else [],
        }
        for n, names in {
            50: ["random_50", "copy_50", "vit_copy_50"],
            200: ["random", "copy", "vit_copy"],
            1400: ["random_1400", "copy_1400", "vit_copy_1400"],
        }.items()
    }
    return study(seeds, panels=panels)


def params(made: dict) -> dict:
    """Return what the rules of figures and page hand over: the study and the settings of its students."""
    return {"studies.digits": made} | {f"students.{s}": settings(s) for s in students(made)}


def settings(student: str) -> dict:
    """Return settings that differ between families; a number at the end of the name is that of labels."""
    family, _, end = student.rpartition("_")
    if not end.isdigit():
        family, end = student, "200"
    return {"init": {"source": family}, "labels": int(end), "permute_labels": family == "permuted"}


def students(made: dict) -> list[str]:
    return [s for p in made["panels"].values() for s in p["arms"] + p["controls"]]


def write_predictions(path: Path, level: float, seed: int, test=60, val=20) -> None:
    """Write logits that are right more often the higher `level` is, on the same images for every seed."""
    labels = np.random.default_rng(7).integers(len(CLASSES), size=test + val)
    hard = np.random.default_rng(8).normal(size=(test + val, len(CLASSES)))
    logits = hard + np.random.default_rng(100 + seed).normal(size=hard.shape) * 0.7
    logits[np.arange(test + val), labels] += 0.5 + level
    split = np.r_[np.full(val, 1), np.full(test, 2)]
    tensors = {
        "logits": logits.astype(np.float32),
        "labels": labels,
        "index": np.arange(test + val),
        "split": split,
    }
    save_tensors(path, tensors, {"classes": CLASSES})


def write_weights(path: Path) -> None:
    header = {"kind": "student", "flops": {"own": 1.5e9, "teacher": 6.0e9, "fit": 0.5e9}, "parameters": 1234}
    save_tensors(path, {"head.weight": np.zeros((4, 8), np.float32)}, header)


def write_history(path: Path, level: float, seed: int, epochs=12) -> None:
    """Write a learning curve that rises the faster the higher `level` is."""
    rng = np.random.default_rng(1000 + seed)
    top1 = 0.9 - 0.7 * np.exp(-(1 + level) * np.arange(epochs) / 4) + rng.normal(size=epochs) * 0.01
    columns = {"loss": 2.3 * (1 - top1), "val_loss": 2.5 * (1 - top1), "val_top1": top1}
    rows = [f"{e + 1},{','.join(repr(float(v[e])) for v in columns.values())}" for e in range(epochs)]
    path.write_text("\n".join(["epoch," + ",".join(columns), *rows]) + "\n")


def write_figures(folder: Path, left_out=("impulse",)) -> None:
    """Write what the stage `draw` leaves for the page: a small drawing each, and captions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        svg = (
            '<?xml version="1.0"?>\n<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="144pt"'
            ' viewBox="0 0 144 72" xmlns="http://www.w3.org/2000/svg">\n<metadata><x>http://w3.org</x></metadata>'
            '<defs><clipPath id="p"><path d="M0 0"/></clipPath></defs><path style="fill: #1d2127"/>'
            '<g clip-path="url(#p)"><use xlink:href="#p"/></g></svg>'
        )
        (folder / f"{name}.svg").write_text(svg)
    about = {
        "captions": {name: f"What {name} shows." for name in FIGURES},
        "left_out": list(left_out),
        "titles": {name: f"Title {name}" for name in FIGURES},
    }
    (folder / "captions.json").write_text(json.dumps(about))


def write_impulse(fit: Path, weights: Path) -> dict:
    """Write a fit and the weights of a student that still has its queries and keys; return the tensors."""
    rng = np.random.default_rng(3)
    depth, heads, dim, head_dim = 2, 2, 16, 8
    made = {
        "q": rng.normal(size=(depth, heads, dim, head_dim)).astype(np.float32),
        "k": rng.normal(size=(depth, heads, head_dim, dim)).astype(np.float32),
        "offsets": rng.integers(-1, 2, size=(depth, heads, 2)),
    }
    save_tensors(fit, made, {"logit_scale": 0.5, "model": commands.MODEL})
    q, k = made["q"][0].swapaxes(1, 2).reshape(-1, dim), made["k"][0].reshape(-1, dim)
    tensors = {"blocks.0.attn.qkv.weight": np.concatenate([q, k, np.zeros_like(k)])}
    header = {"kind": "student", "flops": {"own": 1.5e9, "teacher": 0.0, "fit": 0.0}, "parameters": 1234}
    save_tensors(weights, tensors, {**header, "logit_scale": 0.5, "model": commands.MODEL})
    return made


def spectrum(ranks, count: int) -> np.ndarray:
    """Return singular values (layers, n, count) of tokens of these (strict, loose) ranks (layers, n, 2)."""
    strict, loose = np.moveaxis(np.asarray(ranks), -1, 0)[..., None]
    place = np.arange(count)
    return np.where(place < loose, 1, np.where(place < strict, 1e-3, 1e-8)).astype(np.float32)


RANKS = [[(5, 5)] * 5, [(12, 9), (12, 8), (13, 9), (16, 9), (12, 10)]]  # strict, loose; layer by image


def write_maps(
    path: Path, made: dict, teachers=("mae",), split="val", grid=4, depth=2, ranks=RANKS, channels=64
) -> None:
    """Write what `extract_maps` leaves: noise for every arm, and for teachers that rebuild images.

    `ranks` (strict, loose) are those of the tokens that enter each layer of every network, for five images.
    """
    rng = np.random.default_rng(5)
    tensors = {}
    about: dict = {
        "kind": "maps",
        "study": "digits",
        "heads_layer": 0,
        "reconstructions": [],
        "without_attention": [],
        "entering": [],
        "ranked_images": {},
    }
    about |= {"images": {}, "networks": []}
    for dataset in made["datasets"]:
        tensors[f"images/{dataset}"] = rng.integers(256, size=(3, 1, 2 * grid, 2 * grid), dtype=np.uint8)
        about["images"][dataset] = {"split": split, "index": [0, 1, 2], "classes": CLASSES[:3]}
        about["ranked_images"][dataset] = {"split": split, "index": [0, 1, 2, 3, 4], "classes": CLASSES}
        for kind, name in [*(("student", s) for s in students(made)), *(("teacher", t) for t in teachers)]:
            for part, count in (("looked", depth), ("heads", 2)):
                values = rng.dirichlet(np.ones(grid**2), size=(count, 3)).reshape(count, 3, grid, grid)
                tensors[f"{kind}/{dataset}/{name}/{part}"] = values.astype(np.float32)
            copies = {"method": "copy", "teacher": "mae", "what": "map", "maps": "other_image"}
            transfer = copies if name == "copy_other" else {"method": "none"} if kind == "student" else {}
            who = {"kind": kind, "dataset": dataset, "name": name, "seed": made["seeds"][0]}
            about["entering"].append({**who, "channels": channels, "tokens": grid**2})
            tensors[f"{kind}/{dataset}/{name}/singular"] = spectrum(ranks, min(channels, grid**2))
            about["networks"].append({**who, "transfer": transfer, "cls_token": name.startswith("vit")})
            if kind == "teacher":
                hidden = np.zeros((3, grid, grid), np.float32)
                hidden[:, 1:] = 1
                tensors[f"reconstruction/{dataset}/{name}/hidden"] = hidden
                predicted = rng.normal(0.5, 0.5, size=(3, 1, 2 * grid, 2 * grid)).astype(np.float32)
                tensors[f"reconstruction/{dataset}/{name}/predicted"] = predicted
                about["reconstructions"].append({**who, "patch_size": 2, "norm_pix_loss": True})
    save_tensors(path, tensors, about)


def spoil(path: str, how: str) -> None:
    """Damage a file as users do: lose it, cut it off, put something else in its place."""
    file = Path(path)
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3 + 1])
    elif file.suffix == ".csv":
        file.write_text("time,level\n0,1\n")
    elif file.suffix == ".json":
        file.write_text('[{"name": "something else"}]\n')
    elif file.suffix == ".svg":
        file.write_text("<html></html>\n")
    else:
        save_tensors(file, {"x": np.zeros(3)}, {})


def large_page(made: dict, count: int) -> str:
    """Return the page of a prepared study with `count` cards, whose settings are as long as real ones."""
    study = build_study(made, "studies.digits")
    folder = "results/digits"
    table = inputs.read_table(f"{folder}/table.csv", "digits", study)
    pairs = inputs.read_comparisons(f"{folder}/comparisons.csv", "digits", study)
    tidy = inputs.read_results(f"{folder}/results.csv", "digits", study)
    record = json.loads(Path("runs/digits/random/seed0/run.json").read_text())
    long = {f"students.{i}": {f"key_{j}": j for j in range(10)} for i in range(5)}
    record |= {"params": json.dumps(long), "inputs": {f"data/{i}": "ab" * 32 for i in range(3)}}
    curve = read_history("runs/digits/random/seed0/history.csv")
    runs = {}
    for i in range(count):
        arm = students(made)[i % len(students(made))]
        runs[f"runs/digits/{arm}/seed{i}/run.json"] = {**record, "seconds": {"total": float(i * 7 % count)}}
    figures = [
        {
            "name": name,
            "title": f"Title {name}",
            "caption": f"What {name} shows.",
            "left_out": False,
            "svg": Path(f"{folder}/figures/{name}.svg").read_text(),
        }
        for name in FIGURES
    ]
    curves = dict.fromkeys(runs, curve)
    own = {s: settings(s) for s in students(made)}
    return render(study, table, pairs, tidy, runs, curves, figures, folder, own)


def stage_options(folder: Path, params: dict) -> list[str]:
    return [
        *("--params", json.dumps(params), "--threads", "1"),
        *("--run-json", str(folder / "run.json"), "--events", str(folder / "events.jsonl")),
    ]


def make_runs(root: Path, made: dict) -> list[str]:
    """Write predictions, weights, metrics.json and run.json below `root`; return the run folders."""
    folders = []
    for dataset in made["datasets"]:
        for student in students(made):
            for seed in made["seeds"]:
                folder = root / "runs" / dataset / student / f"seed{seed}"
                write_predictions(folder / "predictions.safetensors", LEVEL[student], seed)
                write_weights(folder / "weights.safetensors")
                write_history(folder / "history.csv", LEVEL[student], seed)
                found = evaluate.evaluate(
                    folder / "predictions.safetensors", folder / "weights.safetensors", 15
                )
                (folder / "metrics.json").write_text(json.dumps(found))
                record = {
                    "params": json.dumps({"students.x": {"labels": 200, "init": {"source": student}}}),
                    "inputs": {f"data/{dataset}.safetensors": "ab" * 32, "src/attnprior/files.py": "c" * 64},
                    "job": f"train_student/{dataset}/{student}/seed{seed}",
                    "commit": "0123456789abcdef",
                    "versions": {"python": "3.11.9", "torch": "2.9.0"},
                    "device": "cpu (Model <X>)",
                    "threads": 1,
                    "started": "2026-01-01T00:00:00+00:00",
                    "seconds": {"startup": 1.0, "compute": 9.5, "total": 10.5},
                }
                (folder / "run.json").write_text(json.dumps(record))
                folders.append(str(folder))
    return folders


def imported(stage: str, arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Run a stage in a process of its own and return which of the modules `names` it imported."""
    script = (
        f"import sys\nfrom attnprior.stages.{stage} import main\nassert main(sys.argv[1:]) == 0\n"
        f"print(' '.join(m for m in {names!r} if m in sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(attnprior.__file__).parents[1])}
    command = [sys.executable, "-c", script, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return out.stdout.splitlines()[-1].split()
