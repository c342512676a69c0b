"""The study that is disturbed: one teacher, one fit, two students of many short epochs, real MLflow store."""

import hashlib
import json
import sqlite3
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import yaml

from tests.workflow import project as projects
from tests.workflow.project import Project

EPOCHS = {"mae": 8, "student": 25}
TRAININGS = ("pretrain_teacher", "train_student")
TRACKED = {"ATTNPRIOR_TRACKING": "on", "ATTNPRIOR_CHECKPOINT_SECONDS": "0"}


def settings(params: dict) -> dict:
    """Return the shipped settings with one seed and two arms: ten jobs."""
    projects.small(params)
    for recipe, epochs in EPOCHS.items():
        params["recipes"][recipe].update(epochs=epochs, warmup_epochs=1, warmup_lr=0.0)
    study = params["studies"]["digits"]
    study["seeds"] = [0]
    study["panels"]["model_i"].update(baseline="impulse", arms=["impulse", "copy"])
    return params


def create(root: Path) -> Project:
    """Return a new project with nothing made."""
    project = projects.create(root)
    params = settings(yaml.safe_load((projects.ROOT / "params.yaml").read_text()))
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    project.attnprior("sync")
    project.commit("The study that is disturbed")
    return project


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differing(project: Project, expected: dict[str, bytes]) -> list[str]:
    """Return the artifacts of `project` that are not as expected, missing ones included."""
    found = project.contents()
    return sorted(p for p in {*found, *expected} if found.get(p) != expected.get(p))


def altered(project: Project, expected: dict[str, bytes]) -> list[str]:
    """Return the artifacts that are there and not as expected.

    Without what a killed job left of a file that it was writing: it goes when that job has finished.
    """
    found = project.contents()
    return [p for p in found if found[p] != expected.get(p) and not fnmatch(p, "*/.*.tmp")]


def wrong_records(project: Project, expected: dict[str, bytes]) -> list[str]:
    """Return what dvc.lock records that an undisturbed run would not have recorded, read without DVC.

    Every recorded file must be in the cache, whole, with the bytes of the undisturbed run; a record of the
    machine (run.json) must name the hashes of those bytes.
    """
    lock = project.root / "dvc.lock"
    if not lock.exists():
        return []
    md5s = {hashlib.md5(content).hexdigest(): path for path, content in expected.items()}
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in expected.items()}
    problems, names = [], {path: hashlib.md5(content).hexdigest() for path, content in expected.items()}
    for stage, entry in yaml.safe_load(lock.read_text())["stages"].items():
        seen = set()
        for out in entry["outs"]:
            files = {out["path"]: out["md5"]}
            if out["md5"].endswith(".dir"):
                listed = json.loads(cached(project, out["md5"]).read_text())
                files = {f"{out['path']}/{f['relpath']}": f["md5"] for f in listed}
            seen |= set(files)
            for path, md5 in files.items():
                if path in names and names[path] != md5:
                    problems.append(f"{stage}: {path} is recorded with other bytes ({md5s.get(md5)})")
                if path.endswith("results/digits/metrics.json"):
                    continue  # in git, not in the cache
                content = cached(project, md5).read_bytes()
                if hashlib.md5(content).hexdigest() != md5:
                    problems.append(f"{stage}: {path} is damaged in the cache")
                if path.endswith("run.json"):
                    made = json.loads(content)["outputs"]
                    problems += [
                        f"{stage}: {path} names another {p}"
                        for p in made
                        if hashes.get(p, made[p]) != made[p]
                    ]
        outs = tuple(o["path"] for o in entry["outs"])
        lacking = {p for p in names if p.startswith(tuple(f"{o}/" for o in outs))} - seen
        problems += [f"{stage}: recorded without {p}" for p in sorted(lacking)]
    return problems


def cached(project: Project, md5: str) -> Path:
    return project.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def logged(project: Project) -> dict[str, list[dict]]:
    """Return the whole lines of every event log that are events."""
    found = {}
    for path in sorted((project.root / "logs").rglob("*.events.jsonl")):
        rows = []
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue  # half a line of a killed attempt
        found[path.relative_to(project.root).as_posix()] = rows
    return found


def points(project: Project) -> dict[tuple[str, int], dict]:
    """Return the values of each (job, step) in the logs; repeated steps must be equal.

    Of a log only the events of its newest job id count: an attempt that started afresh emptied the log.
    """
    out: dict[tuple[str, int], dict] = {}
    for rows in logged(project).values():
        job = ""
        for row in rows:
            if row["event"] == "start":
                job = row["job"]
            elif row["event"] == "metrics":
                key = (job, row["step"])
                assert out.setdefault(key, row["values"]) == row["values"], f"{key} has two values"
    return out


def stored_points(project: Project) -> Counter:
    """Return how often the store holds each (job, metric, step, value) of finished runs, read with SQL.

    Without `images_per_second`, which the importer makes of the times of two rows.
    """
    with sqlite3.connect(f"file:{project.root / 'mlflow.db'}?mode=ro", uri=True) as db:
        rows = db.execute(
            "select t.value, m.key, m.step, m.value from metrics m"
            " join runs r on r.run_uuid = m.run_uuid"
            " join tags t on t.run_uuid = r.run_uuid and t.key = 'attnprior.job'"
            " where r.status = 'FINISHED' and m.key not like 'final/%'"
            " and m.key != 'images_per_second'"
        ).fetchall()
    db.close()
    return Counter(rows)


def expected_points(project: Project) -> Counter:
    """Return what `stored_points` must be by the logs."""
    rows = points(project)
    return Counter((job, k, step, v) for (job, step), values in rows.items() for k, v in values.items())
