"""`attnprior verify`: recorded jobs made again elsewhere, and what differs named with its cause."""

import os
import signal
import subprocess
import sys
import time

import pytest

from attnprior.errors import UserError
from attnprior.files import read_json, write_json
from attnprior.workflow import causes, verify
from tests.workflow.project import Project, environment

WEIGHTS = "runs/digits/impulse/seed0/weights.safetensors"


def run(project: Project, *arguments: str, status: int) -> str:
    """Run verify with the temporary folder inside its own; nothing may be left there."""
    folder = project.root.parent / "temporary"
    folder.mkdir(exist_ok=True)
    done = project.attnprior("verify", *arguments, ok=False, TMPDIR=str(folder))
    assert done.returncode == status, done.stdout + done.stderr
    assert not [p for p in folder.iterdir() if p.name.startswith("attnprior")]
    return done.stdout + done.stderr


def state(root) -> dict[str, tuple]:
    """Return size and time stamp of every file but Python's caches."""
    files = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in names:
            stat = os.lstat(os.path.join(folder, name))
            files[os.path.join(folder, name)] = (stat.st_size, stat.st_mtime_ns)
    return files


def replace(project: Project, path: str, old: str, new: str) -> None:
    file = project.root / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_unchanged_arm_is_identical_and_the_checkout_stays_as_it_is(finished):
    before = state(finished.root)
    said = run(finished, "digits-impulse", "--seeds", "0", status=0)
    assert "verify digits-impulse: identical: all 4 artifacts of 2 jobs have the recorded bytes" in said
    assert "seed1" not in said and "not as recorded" not in said
    assert state(finished.root) == before


def test_lost_references_and_inputs_are_said_before_anything_runs(project):
    subprocess.run(["rm", "-rf", ".dvc/cache", "runs/digits/impulse"], cwd=project.root, check=True)
    said = run(project, "digits-impulse", status=5)
    assert "reference not available" in said and WEIGHTS in said and "dvc pull" in said
    assert "[1/" not in said
    subprocess.run(["rm", "-rf", "fits"], cwd=project.root, check=True)
    (project.root / "teachers/digits/mae_model_i/seed0/weights.safetensors").unlink()
    said = run(project, "digits-copy", status=5)
    assert "teachers/digits/mae_model_i/seed0/weights.safetensors, which the jobs read" in said


def test_unknown_names_are_one_line_with_status_2(finished):
    assert "did you mean 'digits-impulse'" in run(finished, "digits-impuls", status=2)
    assert "--seeds 7: digits-copy has the seeds 0, 1" in run(finished, "copy", "--seeds", "7", status=2)


@pytest.fixture
def settings(finished):
    return finished.params()


@pytest.mark.parametrize("name", ["digits-copy", "digits/copy", "copy"])
def test_an_arm_reads_its_recorded_data_and_teacher(settings, name):
    plan = verify.make_plan(settings, name, [1])
    assert plan.inputs == (
        "data/digits.safetensors",
        "teachers/digits/mae_model_i/seed1/weights.safetensors",
    )
    assert {t.rpartition("/")[0] for t in plan.targets} == {"runs/digits/copy/seed1"}
    assert plan.stages == ["arm@digits-copy"]


def test_a_study_is_made_from_nothing_and_some_seeds_have_no_tables(settings):
    plan = verify.make_plan(settings, None, [])
    assert not plan.inputs and "results/digits/table.csv" in plan.targets
    assert plan.stages[0] == "data@digits" and plan.stages[-1] == "study-digits"
    some = verify.make_plan(settings, "digits", [1])
    assert not any(t.startswith("results/") or "seed0" in t for t in some.targets)
    with pytest.raises(UserError, match="--seeds 2: digits has the seeds 0, 1"):
        verify.make_plan(settings, "digits", [2])


def test_causes_are_the_facts_that_differ_between_two_records(finished, tmp_path):
    old = read_json(finished.root / "runs/digits/impulse/seed0/run.json")
    new = read_json(finished.root / "runs/digits/impulse/seed0/run.json")
    write_json(tmp_path / "run.json", old)
    assert causes.changes(tmp_path / "run.json", new).facts == {}
    new["versions"]["torch"], new["device"], new["threads"] = "1.0", "cuda (H200)", 2
    new["inputs"]["src/attnprior/train/optim.py"] = "0"
    new["inputs"]["data/digits.safetensors"] = "0"
    new["params"] = new["params"].replace('"labels":200', '"labels":150')
    found = causes.changes(tmp_path / "run.json", new)
    assert found.facts == {
        "parameters": ("students.impulse.labels 200 → 150",),
        "code": ("src/attnprior/train/optim.py",),
        "input": ("data/digits.safetensors",),
        "versions": (f"torch {old['versions']['torch']} → 1.0",),
        "device": (f"{old['device']} → cuda (H200)",),
        "threads": ("1 → 2",),
    }
    assert "code: src/attnprior/train/optim.py" in causes.summary({"job": found})
    assert causes.changes(None, new) is None


@pytest.mark.slow
def test_changed_parameter_is_the_named_cause(project):
    project.put("recipes.student.lr", 0.004)
    said = run(project, "digits-impulse", "--seeds", "0", status=4)
    assert f"first difference: {WEIGHTS} (train_student/digits/impulse/seed0)" in said
    assert "likely cause: parameters: recipes.student.lr 0.002 → 0.004\n" in said


@pytest.mark.slow
def test_uncommitted_change_of_the_code_is_the_named_cause(project):
    replace(project, "src/attnprior/train/optim.py", "lr=lr,", "lr=1.5 * lr,")
    said = run(project, "digits-impulse", "--seeds", "0", status=4)
    assert f"first difference: {WEIGHTS}" in said
    assert "likely cause: code: src/attnprior/train/optim.py\n" in said


@pytest.mark.slow
def test_another_order_of_sums_is_equal_within_tolerance(project):
    replace(
        project,
        "src/attnprior/models/vit.py",
        "self.prefix :].mean(dim=1)",
        "self.prefix :].flip(1).mean(dim=1)",
    )
    said = run(project, "digits-impulse", "--seeds", "0", status=3)
    assert "tolerance: a tensor 1% of its norm" in said
    assert "equal within tolerance" in said.splitlines()[-1]
    assert "likely cause: code: src/attnprior/models/vit.py" in said


@pytest.mark.slow
def test_changed_code_that_changes_nothing_is_identical_and_said(project):
    with open(project.root / "src/attnprior/train/optim.py", "a") as f:
        f.write("# a comment\n")
    said = run(project, "digits-impulse", "--seeds", "0", status=0)
    assert "not as recorded: code: src/attnprior/train/optim.py" in said


@pytest.mark.slow
def test_a_weights_file_changed_before_it_was_recorded_is_found(project):
    path = project.root / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40  # the exponent of the last number
    path.write_bytes(content)
    project.dvc("commit", "-f", "-q", "arm@digits-impulse")
    said = run(project, "digits-impulse", "--seeds", "0", status=4)
    assert f"first difference: {WEIGHTS}" in said
    assert f"likely cause: the recorded {WEIGHTS} is not what the job wrote" in said
    path.write_bytes(b"neither is this, and nobody believes it")
    assert "1 of 1" not in run(project, "digits-impulse", "--seeds", "1", status=0)


@pytest.mark.slow
def test_job_that_fails_is_named(project):
    module = project.root / "src/attnprior/train/supervised.py"
    module.write_text(module.read_text() + "raise RuntimeError('broken here')\n")
    said = run(project, "digits-impulse", "--seeds", "0", status=2)
    assert (
        "error: train_student/digits/impulse/seed0 failed when made again: RuntimeError: broken here" in said
    )
    module.write_text(module.read_text() + "def (\n")
    said = run(project, "digits-impulse", "--seeds", "0", status=2)
    assert "src/attnprior/train/supervised.py: line" in said and "invalid syntax" in said


@pytest.mark.slow
def test_a_study_in_a_clone_without_data_is_compared_by_the_hashes_in_git(finished, tmp_path):
    subprocess.run(["git", "clone", "-q", str(finished.root), str(tmp_path / "clone")], check=True)
    said = run(Project(tmp_path / "clone"), "digits", status=5)
    lines = said.splitlines()
    assert any(line.startswith("compare/digits") and " identical " in line for line in lines)
    assert any(line.startswith("fetch_dataset/digits") and " identical " in line for line in lines)
    assert "reference not available" in lines[-1]


@pytest.mark.slow
def test_a_whole_study_is_identical(finished):
    said = run(finished, status=0)
    assert "verify digits: identical" in said
    assert "report/digits" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_verification_leaves_no_folder_and_no_process(project, number):
    folder = project.root.parent / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "attnprior", "verify", "--scratch", str(folder)]
    child = subprocess.Popen(
        command,
        cwd=project.root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 100
    while not list(folder.glob("*/logs/**/*.events.jsonl")):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.1)
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert list(folder.iterdir()) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in running
