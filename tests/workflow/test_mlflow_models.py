"""Students as MLflow models, from a finished project to a process that only has MLflow's store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnprior import files
from attnprior.errors import UserError
from attnprior.workflow.mlflow_models import wanted_jobs
from tests.workflow.project import environment

PARAMS = {
    "active": ["s"],
    "students": {
        s: {"init": {"source": "random"}, "transfer": {"method": "none"}} for s in ("random", "copy")
    },
    "studies": {
        "s": {
            "datasets": ["digits"],
            "seeds": [0, 1],
            "panels": {"p": {"arms": ["random", "copy"], "controls": []}},
        }
    },
}


def test_arms_name_their_training_jobs_and_none_means_all():
    copy = {f"train_student/digits/copy/seed{k}" for k in (0, 1)}
    assert wanted_jobs(PARAMS, ["digits-copy"]) == copy
    assert wanted_jobs(PARAMS, []) == copy | {f"train_student/digits/random/seed{k}" for k in (0, 1)}
    with pytest.raises(UserError, match="--models digits-cop: .* did you mean 'digits-copy'"):
        wanted_jobs(PARAMS, ["digits-cop"])


@pytest.mark.slow
@pytest.mark.workflow
def test_a_logged_student_predicts_what_the_study_measured(project, tmp_path):
    from mlflow.tracking import MlflowClient

    said = project.attnprior("track", "--models", "digits-copy", "digits-impulse").stdout
    assert said.rstrip().endswith("4 new models, 0 known")
    client = MlflowClient(f"sqlite:///{project.root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("attnprior").experiment_id
    models = {m.name: m for m in client.search_logged_models([experiment])}
    assert sorted(models) == [f"digits-{s}-seed{k:03}" for s in ("copy", "impulse") for k in (0, 1)]
    for student in ("copy", "impulse"):
        model = models[f"digits-{student}-seed001"]
        run = client.get_run(model.source_run_id)
        assert run.data.tags["model"] == f"models:/{model.model_id}"
        assert (run.data.tags["arm"], run.data.tags["seed"]) == (f"digits-{student}", "001")
        assert run.info.status == "FINISHED"
        folder = Path(model.artifact_location.removeprefix("file://"))
        names = {p.name for p in folder.rglob("*") if p.is_file()}
        assert {"MLmodel", "weights.safetensors", "input_example.json"} <= names
        assert ("teacher.safetensors" in names) == (student == "copy")
        assert {Path(n).suffix for n in names} <= {"", ".safetensors", ".json", ".py", ".yaml", ".txt"}
        env = environment(MLFLOW_TRACKING_URI=f"sqlite:///{project.root / 'mlflow.db'}")
        command = [sys.executable, str(Path(__file__).with_name("loaded.py"))]
        command += [f"models:/{model.model_id}", str(project.root / "data/digits.safetensors"), "out.npy"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().startswith(str(folder))  # the code that was logged, not this checkout
        path = project.root / f"runs/digits/{student}/seed1/predictions.safetensors"
        expected, _ = files.load_tensors(path, "numpy")
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected["logits"])
        example = json.loads((folder / "input_example.json").read_text())
        assert np.array(example).shape == (2, 1, 8, 8)
    again = project.attnprior("track", "--models", "digits-copy", "digits-impulse").stdout
    assert again.rstrip().endswith("0 new models, 4 known")
    weights = project.root / "runs/digits/random/seed0/weights.safetensors"
    os.truncate(weights, 100)  # not what the job made
    said = project.attnprior("track", "--models").stdout
    assert said.rstrip().endswith("1 new models, 4 known")
