"""What a finished study leaves: numbers that an independent reader gets as well, inputs, events."""

import csv
import json
import subprocess
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy.special import erf

from tests.workflow.project import Project, environment


def forward(w: dict, images: np.ndarray, scale: float, alpha: float) -> np.ndarray:
    """Return logits of a Model I student, written from the paper's equations with NumPy in float64."""
    grid, p, dim, heads = 4, 2, 64, 4

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    patches = images.reshape(-1, 1, grid, p, grid, p).transpose(0, 2, 4, 3, 5, 1).reshape(-1, grid**2, p * p)
    kernel = w["patch_embed.proj.weight"].transpose(0, 2, 3, 1).reshape(dim, -1)
    x = patches @ kernel.T + w["patch_embed.proj.bias"]
    y, column = np.divmod(np.arange(grid**2), grid)
    omega = 10000.0 ** (-np.arange(dim // 4) / (dim // 4 - 1))
    angles = [f(np.outer(c, omega)) for c in (column, y) for f in (np.sin, np.cos)]
    position = np.concatenate(angles, axis=1)
    for i in range(4):
        h = norm(x, f"blocks.{i}.norm1")
        u = alpha * h + (1 - alpha) * position
        q_weight, k_weight, v_weight = np.split(w[f"blocks.{i}.attn.qkv.weight"], 3)
        split = [
            (a @ m.T).reshape(len(x), grid**2, heads, -1).transpose(0, 2, 1, 3)
            for a, m in ((u, q_weight), (u, k_weight), (h, v_weight))
        ]
        logits = scale * split[0] @ split[1].swapaxes(-1, -2)
        attention = np.exp(logits - logits.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        mixed = (attention @ split[2]).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + mixed @ w[f"blocks.{i}.attn.proj.weight"].T
        h = norm(x, f"blocks.{i}.norm2") @ w[f"blocks.{i}.mlp.fc1.weight"].T + w[f"blocks.{i}.mlp.fc1.bias"]
        h = h * 0.5 * (1 + erf(h / np.sqrt(2)))
        x = x + h @ w[f"blocks.{i}.mlp.fc2.weight"].T + w[f"blocks.{i}.mlp.fc2.bias"]
    return norm(x, "norm").mean(1) @ w["head.weight"].T + w["head.bias"]


def test_an_independent_reader_of_the_files_gets_the_accuracy_in_the_table(finished: Project):
    data = load_file(finished.root / "data/digits.safetensors")
    with safe_open(finished.root / "data/digits.safetensors", "np") as f:
        about = json.loads(f.metadata()["json"])
    test = data["split"] == 2
    images = (data["images"][test] / 255.0 - about["mean"][0]) / about["std"][0]
    with open(finished.root / "results/digits/results.csv", newline="") as f:
        table = {
            (r["arm"], int(r["seed"])): float(r["value"])
            for r in csv.DictReader(f)
            if (r["split"], r["metric"]) == ("test", "top1")
        }
    for arm in ("random", "impulse"):
        for seed in (0, 1):
            path = finished.root / f"runs/digits/{arm}/seed{seed}/weights.safetensors"
            with safe_open(path, "np") as f:
                header = json.loads(f.metadata()["json"])
            weights = {k: v.astype(np.float64) for k, v in load_file(path).items()}
            logits = forward(weights, images, header["logit_scale"], header["model"]["alpha"])
            saved = load_file(path.with_name("predictions.safetensors"))
            np.testing.assert_allclose(saved["logits"][saved["split"] == 2], logits, atol=1e-4)
            assert table[arm, seed] == np.mean(logits.argmax(1) == data["labels"][test])


WATCH = """
import sys
opened = open(sys.argv.pop(1), "w")
def hook(event, args):
    if event == "open" and isinstance(args[0], str):
        print(args[0], args[1], file=opened, flush=True)
sys.addaudithook(hook)
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def test_a_training_job_reads_only_declared_inputs(finished: Project, tmp_path):
    """Every file below the project that the job opens for reading is an input in Snakemake's graph."""
    project = finished.copy(tmp_path / "project")
    record = project.record("runs/digits/copy/seed0/run.json")
    (tmp_path / "watch.py").write_text(WATCH)
    out = project.root / "scratch"
    command = [sys.executable, "-B", str(tmp_path / "watch.py"), str(tmp_path / "opened")]
    command += ["attnprior.stages.train_student", "--dataset", "digits", "--student", "copy", "--seed", "0"]
    command += ["--data", "data/digits.safetensors", "--fit"]
    command += ["--teacher", "teachers/digits/mae_model_i/seed0/weights.safetensors"]
    for name in ("weights.safetensors", "history.csv", "predictions.safetensors"):
        command += [f"--{name.split('.')[0]}", str(out / name)]
    command += ["--checkpoint", str(out / "checkpoint"), "--params", record["params"], "--threads", "1"]
    command += ["--run-json", str(out / "run.json"), "--events", str(out / "events.jsonl")]
    env = environment(PYTHONPATH=str(project.root / "src"))
    subprocess.run(command, cwd=project.root, env=env, check=True, capture_output=True)
    read = set()
    for line in (tmp_path / "opened").read_text().splitlines():
        path, _, mode = line.rpartition(" ")
        path = str((project.root / path).resolve())
        inside = path.startswith(f"{project.root.resolve()}/") and not path.startswith(f"{out.resolve()}/")
        if inside and "r" in mode and not path.endswith(".pyc"):
            read.add(path[len(str(project.root.resolve())) + 1 :])
    assert "src/attnprior/transfer.py" in read
    assert read <= set(record["inputs"])
    assert (out / "history.csv").read_bytes() == (
        project.root / "runs/digits/copy/seed0/history.csv"
    ).read_bytes()
    assert (
        load_file(out / "weights.safetensors").keys()
        == load_file(project.root / "runs/digits/copy/seed0/weights.safetensors").keys()
    )


def test_events_of_every_job_equal_the_rows_of_its_history(finished: Project):
    compared = 0
    for history in [
        *finished.root.glob("runs/*/*/*/history.csv"),
        *finished.root.glob("teachers/*/*/*/history.csv"),
    ]:
        first = "train_student" if "runs" in history.parts else "pretrain_teacher"
        dataset, name, seed = history.parts[-4:-1]
        log = finished.root / f"logs/{first}/{dataset}/{name}/{seed}.events.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        points = [e for e in events if e["event"] == "metrics"]
        with open(history, newline="") as f:
            rows = list(csv.DictReader(f))
        assert [e["step"] for e in points] == [int(r["epoch"]) for r in rows]
        for event, row in zip(points, rows, strict=True):
            assert event["values"] == {k: float(v) for k, v in row.items() if k not in ("epoch", "step")}
        assert events[0]["event"] == "start"
        assert events[-1]["event"] == "end"
        assert events[-1]["status"] == "finished"
        compared += len(rows)
    assert compared == 6 * 2 + 2 * 2


def test_every_artifact_has_a_record_with_commit_versions_and_hashes(finished: Project):
    records = [p for p in finished.root.rglob("*run.json") if ".dvc" not in p.parts]
    assert len(records) == 21
    for path in records:
        record = json.loads(path.read_text())
        assert record["commit"]
        assert record["versions"]["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
        assert record["outputs"]
        assert any(name.startswith("src/attnprior/stages/") for name in record["inputs"])
        assert record["max_rss_mb"] < 1000
