"""One flipped bit, a cut file, down to nothing: made again with the same bytes, or named in one line."""

import json
import os
import random
import sqlite3

import pytest
import yaml

from tests.faults import disturb, study

SEED = int(os.environ.get("ATTNPRIOR_TEST_SEED", "20240502"))
RUN = "runs/digits/copy/seed0"
# What a file is an example of -> where it is found; one file is drawn where there are several.
KINDS = {
    "data": ["data/digits.safetensors"],
    "teacher": ["teachers/digits/mae_model_i/seed0/weights.safetensors"],
    "teacher's numbers": ["teachers/*/*/*/metrics.json", "teachers/*/*/*/history.csv"],
    "fit": ["fits/*/*/fit.safetensors", "fits/*/*/metrics.json", "fits/*/*/history.csv"],
    "weights": [f"{RUN}/weights.safetensors"],
    "history": [f"{RUN}/history.csv"],
    "predictions": [f"{RUN}/predictions.safetensors"],
    "metrics": [f"{RUN}/metrics.json"],
    "tables": ["results/digits/*.csv", "results/digits/table.*", "results/digits/metrics.json"],
    "figures": ["results/digits/figures/*"],
    "page": ["results/digits/report.html"],
    "run.json of a training": [f"{RUN}/run.json", "teachers/*/*/*/run.json", "fits/*/*/run.json"],
    "run.json": ["data/*run.json", f"{RUN}/evaluate.run.json", "results/digits/*run.json"],
    "arms": ["workflow/arms.yaml"],
    "record of Snakemake": [".snakemake/metadata/**/*"],
    "DVC's copy of a file": [],
    "DVC's copy of a folder's list": [],
    "dvc.lock": ["dvc.lock"],
}
OF_DVC = ("DVC's copy of a file", "DVC's copy of a folder's list", "dvc.lock")


def flip(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.choice([0, 1, 1]) * rng.randrange(1, len(content))]


def victim(project, kind, rng):
    """Return a file of the given kind."""
    if kind.startswith("DVC's copy"):
        outs = [o["md5"] for s in lock(project)["stages"].values() for o in s["outs"] if "md5" in o]
        folders = [m for m in outs if m.endswith(".dir")]
        listed = [e["md5"] for m in folders for e in json.loads(study.cached(project, m).read_text())]
        cached = folders if "folder" in kind else listed + [m for m in outs if not m.endswith(".dir")]
        files = [f for f in map(lambda m: study.cached(project, m), sorted(cached)) if f.exists()]
    else:
        files = [f for p in KINDS[kind] for f in sorted(project.root.glob(p)) if f.is_file()]
    return rng.choice([f for f in files if f.stat().st_size])


def overwrite(path, content: bytes) -> None:
    os.chmod(path, path.stat().st_mode | 0o200)  # DVC's copies are read-only
    mode = path.stat().st_mode
    path.write_bytes(content)
    os.chmod(path, mode & ~0o222 if ".dvc/cache" in str(path) else mode)


def lock(project) -> dict:
    return yaml.safe_load((project.root / "dvc.lock").read_text())


def stages(project, names) -> dict:
    """Return what dvc.lock records of the stages, without what follows from records of the machine."""
    found = lock(project)["stages"]
    return {n: [(o["path"], o.get("nfiles")) for o in found[n]["outs"]] for n in names}


def assert_mended(project, expected, path, before, names, said):
    """Everything is as it was; a run.json is as it was, or made by a job that ran again."""
    assert study.differing(project, expected) == [], said
    assert study.wrong_records(project, expected) == [], said
    assert stages(project, names[0]) == names[1], said
    after = path.read_bytes() if path.exists() else b""
    if path.name.endswith("run.json") and after != before:
        old, new = json.loads(before), json.loads(after)
        assert old["started"] != new["started"], said
        assert all(old[k] == new[k] for k in ("job", "params", "inputs", "versions", "device")), said


def try_damage(project, expected, kind, how, rng):
    """Damage one file, run, and check; put the file back where the run said that somebody must."""
    path = victim(project, kind, rng)
    before = path.read_bytes()
    names = list(lock(project)["stages"])
    known = (names, stages(project, names))
    content = how(before, rng)
    overwrite(path, content)
    done = project.attnprior("run", ok=False)
    name = path.relative_to(project.root).as_posix()
    said = f"{kind}: {name} {how.__name__}, seed {SEED}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr, said
    if done.returncode:
        complaints = disturb.lines(done.stderr)
        assert len(complaints) == 1 and complaints[0].startswith("error: "), said
        assert name in complaints[0] and ("delete" in complaints[0] or "restore" in complaints[0]), said
        overwrite(path, before)
        project.attnprior("run")
    assert_mended(project, expected, path, before, known, said)
    return f"{kind}: {name} {how.__name__}: {'named' if done.returncode else 'mended'}"


@pytest.mark.faults
@pytest.mark.parametrize("how", [flip, cut])
def test_damaged_files(project, expected, how, measured):
    rng = random.Random(f"{SEED}{how.__name__}")
    for kind in KINDS:
        if how is flip or rng.random() < 0.5 or kind in OF_DVC:
            measured(try_damage(project, expected, kind, how, rng))
    assert "nothing to do" in project.attnprior("run").stdout


@pytest.mark.faults
def test_a_damaged_list_of_dvc_is_not_believed(project, expected, measured):
    """Many flips of dvc.lock, which is text: keys, hashes, sizes, names of stages."""
    rng = random.Random(SEED)
    for _ in range(8):
        measured(try_damage(project, expected, "dvc.lock", flip, rng))


@pytest.mark.faults
@pytest.mark.parametrize("how", [flip, cut])
def test_a_damaged_checkpoint_is_not_used(project, expected, how):
    rng = random.Random(f"{SEED}{how.__name__}")
    disturb.remove(project.root / f"{RUN}/run.json")
    run = disturb.Run(project)
    start = disturb.epochs(project)
    state = project.root / "checkpoints/train_student/digits/copy/seed0/state.pt"
    assert run.until(lambda: state.exists() and disturb.training(project)), f"{start}\n{run.finish().err}"
    for pid in run.jobs():
        os.kill(pid, 9)
    assert run.finish().status == 1
    content = state.read_bytes()
    state.write_bytes(how(content, rng))
    done = project.attnprior("run")
    assert f"{state.relative_to(project.root)} was damaged and is deleted" in done.stderr
    assert "Traceback" not in done.stderr
    assert study.differing(project, expected) == []


@pytest.mark.faults
@pytest.mark.parametrize("how", [flip, cut])
def test_a_damaged_event_log_is_named_and_results_stay(project, expected, undisturbed, how):
    """Before MLflow had the points: a flipped digit is corrected by history.csv; else the log is named."""
    rng = random.Random(f"{SEED}{how.__name__}")
    disturb.remove(project.root / "mlflow.db")
    log = project.root / "logs/train_student/digits/copy/seed0.events.jsonl"
    log.write_bytes(how(log.read_bytes(), rng))
    done = project.attnprior("run", **study.TRACKED)
    warned = [line for line in disturb.lines(done.stderr) if line.startswith("warning: ")]
    stored = study.stored_points(project)
    whole = study.expected_points(undisturbed)
    assert "Traceback" not in done.stderr
    assert not set(stored) - set(whole)  # nothing wrong in it
    named = any("copy/seed0.events.jsonl" in line for line in warned)
    assert named or stored == whole or how is not flip
    assert study.differing(project, expected) == []


@pytest.mark.faults
@pytest.mark.parametrize("how", [flip, cut])
def test_a_damaged_mlflow_store_is_named_or_right(project, expected, undisturbed, how):
    rng = random.Random(f"{SEED}{how.__name__}")
    store = project.root / "mlflow.db"
    project.attnprior("run", **study.TRACKED)  # of this place
    store.write_bytes(how(store.read_bytes(), rng))
    done = project.attnprior("run", **study.TRACKED)
    assert "Traceback" not in done.stderr
    assert study.differing(project, expected) == []
    if "mlflow.db is damaged" in done.stderr:
        assert "delete it" in done.stderr and done.stderr.count("\n") == 1
        store.unlink()
        assert project.attnprior("run", **study.TRACKED).stderr == ""
    assert study.stored_points(project) == study.expected_points(undisturbed)


@pytest.mark.faults
def test_an_altered_value_in_the_mlflow_store_is_named(project):
    project.attnprior("run", **study.TRACKED)
    with sqlite3.connect(project.root / "mlflow.db") as db:
        db.execute("update metrics set value = value + 1 where rowid in (select max(rowid) from metrics)")
    db.close()
    assert "mlflow.db is damaged (" in project.attnprior("run", **study.TRACKED).stderr
