"""Snakemake, DVC and the files agree: the shipped graph and stages, driven from the command line."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.workflow.project import Project, environment

TABLES = {"compare/digits", "extract_maps/digits", "draw/digits", "report/digits"}


def arm(student: str, *seeds: int) -> set[str]:
    return {f"{rule}/digits/{student}/seed{k}" for rule in ("train_student", "evaluate") for k in seeds}


def assert_settled(project: Project) -> None:
    assert project.planned() == set()
    assert project.snakemake_planned() == set()
    assert project.dvc_changed() == set()


def test_finished_study_has_nothing_to_do(project):
    assert_settled(project)
    done = project.attnprior("run")
    assert "nothing to do" in done.stdout
    assert project.git("status", "--porcelain") == ""


def test_both_engines_declare_the_same_work(project):
    assert "agree" in project.attnprior("check").stdout


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('        - ${item.model_file}: ["${item.model_key}"]\n', "", "params lack models.model_i"),
        ("        - ${item.fit}\n", "", "deps lack fits/impulse3/seed0/fit.safetensors"),
        ("- evaluation\n", "- evaluation\n        - active\n", "param active is read by no job"),
    ],
)
def test_check_names_what_dvc_does_not_declare(project, old, new, complaint):
    path = project.root / "dvc.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    done = project.attnprior("check", ok=False)
    assert done.returncode == 1
    assert complaint in done.stdout


def test_after_bare_snakemake_run_has_nothing_to_do_and_dvc_records(project):
    project.put("students.random.labels", 150)
    project.snakemake()
    assert project.planned() == set()
    assert "arm@digits-random" in project.dvc_changed()
    project.attnprior("run")
    assert_settled(project)


def test_one_key_of_one_student_reruns_its_arm_and_the_tables(project):
    project.put("students.impulse.labels", 150)
    expected = arm("impulse", 0, 1) | TABLES
    assert project.planned() == expected
    assert project.snakemake_planned() == expected
    assert project.dvc_changed() == {"arm@digits-impulse", "study-digits"}  # figures name its labels
    before = project.record("runs/digits/copy/seed0/run.json")
    project.attnprior("run")
    assert project.record("runs/digits/copy/seed0/run.json") == before
    assert_settled(project)


@pytest.mark.faults
def test_a_new_seed_runs_only_that_seed(project):
    project.put("studies.digits.seeds", [0, 1, 2])
    expected = TABLES - {"extract_maps/digits"} | {  # it looks into the first seed
        f"{t}/seed2" for t in ("pretrain_teacher/digits/mae_model_i", "fit_impulse/impulse3")
    }
    for student in ("random", "impulse", "copy"):
        expected |= arm(student, 2)
    assert project.planned() == expected
    project.attnprior("run")
    assert_settled(project)
    assert "2" in {
        line.split(",")[5]
        for line in (project.root / "results/digits/results.csv").read_text().split("\n")
        if "," in line
    }


def test_comments_and_touched_files_change_nothing(project):
    text = (project.root / "params.yaml").read_text()
    (project.root / "params.yaml").write_text("# a comment\n" + text)
    for path in [*project.root.glob("src/**/*.py"), *project.root.glob("data/*")]:
        path.touch()
    assert_settled(project)


@pytest.mark.faults
def test_kill_of_the_whole_group_repeats_only_what_was_in_flight(project):
    project.put("recipes.student.lr", 0.001)
    everything = project.planned()
    child = subprocess.Popen(
        [sys.executable, "-m", "attnprior", "run"],
        cwd=project.root,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    finished: set[str] = set()
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.match(r"\[ *\d+/\d+\] (\S+)", line):
            finished.add(found[1])
        if len(finished) == 3:
            break
    time.sleep(0.5)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    left = project.planned()
    assert left <= everything - finished
    # What was finished stays; at most the two jobs in flight had started besides.
    records = {
        k: project.record(f"runs/{k.split('/', 1)[1]}/run.json") for k in finished if k.startswith("train")
    }
    again = project.attnprior("run")
    assert "removing the lock of a run that was killed" in again.stderr
    rerun = set(re.findall(r"\] (\S+)  ", again.stdout))
    assert rerun == left
    for key, record in records.items():
        assert project.record(f"runs/{key.split('/', 1)[1]}/run.json") == record
    assert_settled(project)


def test_clone_to_another_path_with_pull_and_sync_has_nothing_to_do(project, tmp_path):
    remote = tmp_path / "remote"
    project.dvc("remote", "add", "-d", "folder", str(remote))
    project.commit("Remote")
    project.dvc("push", "-q")
    project.sh("git", "clone", "-q", str(project.root), str(tmp_path / "elsewhere" / "clone"))
    clone = Project(tmp_path / "elsewhere" / "clone")
    clone.dvc("pull", "-q")
    clone.attnprior("sync")
    assert_settled(clone)
    assert clone.contents() == project.contents()


@pytest.mark.slow
def test_edit_after_clone_and_before_sync_reruns_only_what_changed(project, tmp_path):
    project.sh("git", "clone", "-q", str(project.root), str(tmp_path / "clone"))
    clone = Project(tmp_path / "clone")
    clone.dvc("cache", "dir", "--local", str(project.root / ".dvc/cache"))
    clone.dvc("checkout", "-q")
    clone.put("students.copy.labels", 150)
    clone.attnprior("run")
    assert_settled(clone)
    for student, same in (("copy", False), ("random", True)):
        path = f"runs/digits/{student}/seed0/run.json"
        assert (clone.record(path) == project.record(path)) is same


@pytest.mark.faults
def test_switching_between_commits_both_ways_has_nothing_to_do(project):
    first, old = project.git("rev-parse", "HEAD").strip(), project.contents()
    project.put("students.random.labels", 150)
    project.attnprior("run")
    second, new = project.commit("Fewer labels"), project.contents()
    assert new != old
    for commit, expected in ((first, old), (second, new)):
        project.git("checkout", "-q", commit)
        project.dvc("checkout", "-q")
        project.attnprior("sync")
        assert_settled(project)
        assert project.contents() == expected


@pytest.mark.slow
def test_metadata_of_another_commit_is_not_believed(project):
    """Files of one commit with Snakemake metadata of another that claims the present settings."""
    project.put("students.random.labels", 150)
    project.snakemake()  # metadata now says 150 labels
    project.dvc("checkout", "-q", "--force")  # files are those with 200 labels again
    assert arm("random", 0, 1) | TABLES <= project.planned()
    project.attnprior("sync")
    assert arm("random", 0, 1) | TABLES == project.snakemake_planned()


@pytest.mark.faults
def test_dvc_exp_run_with_a_changed_student_key(project):
    # No Snakemake metadata, as in a fresh checkout: `dvc` alone has to be right.
    project.sh("rm", "-rf", ".snakemake")
    done = project.dvc("exp", "run", "-S", "students.copy.labels=150")
    assert "arm@digits-copy" in done.stdout
    assert "arm@digits-random" not in re.findall(r"Running stage '(.*)'", done.stdout)
    assert project.params()["students"]["copy"]["labels"] == 150
    assert project.planned() == set()
    assert project.dvc_changed() == set()


def test_damaged_artifact_is_made_again_with_the_same_bytes(project):
    before = project.contents()
    path = project.root / "runs/digits/impulse/seed1/weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    assert "train_student/digits/impulse/seed1" in project.planned()
    project.attnprior("run")
    assert_settled(project)
    assert project.contents() == before


def test_a_changed_source_file_reruns_the_stages_that_import_it(project):
    path = project.root / "src/attnprior/analysis/metrics.py"
    path.write_text(path.read_text() + "\n# changed\n")
    rules = {job.split("/")[0] for job in project.planned()}
    assert rules == {job.split("/")[0] for job in project.snakemake_planned()}
    assert rules == {"evaluate", "compare", "draw", "report"}
    assert {s.split("@")[0] for s in project.dvc_changed()} >= {"arm"}


@pytest.mark.slow
def test_dropped_student_leaves_the_tables(project):
    panel = project.params()["studies"]["digits"]["panels"]["model_i"]
    panel["arms"].remove("impulse")
    project.put("studies.digits.panels.model_i", panel)
    assert project.planned() == TABLES
    project.attnprior("run")
    assert_settled(project)
    rows = (project.root / "results/digits/table.md").read_text()
    assert "| copy |" in rows and "| impulse |" not in rows


def test_config_on_the_command_line_is_refused(project):
    done = project.snakemake("-n", "--config", "evaluation={'ece_bins': 3}", ok=False)
    assert done.returncode != 0
    assert "--config changes evaluation, which DVC would not see" in done.stdout + done.stderr


def test_second_run_names_the_first(project):
    project.put("recipes.student.lr", 0.001)
    first = subprocess.Popen(
        [sys.executable, "-m", "attnprior", "run"],
        cwd=project.root,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        first.stdout.readline()
        second = project.attnprior("run", ok=False)
        assert second.returncode == 1
        assert f"another `attnprior run` (process {first.pid})" in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1
    finally:
        first.terminate()
        first.wait()


def test_lock_of_a_foreign_snakemake_is_explained(project):
    project.put("students.random.labels", 150)
    locks = project.root / ".snakemake/locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text("runs/digits/random/seed0/run.json\n")
    done = project.attnprior("run", ok=False)
    assert done.returncode == 1
    assert "snakemake --unlock" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    project.snakemake("--unlock")
    assert not list(locks.glob("*"))


def test_a_failed_job_is_one_line_and_the_others_are_finished_and_recorded(project):
    project.put("students.random.overrides", {"lr": 1e30})
    project.put("students.impulse.labels", 150)
    done = project.attnprior("run", ok=False)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    for seed, line in enumerate(sorted(errors)):
        assert f"train_student/digits/random/seed{seed}: " in line
        assert "training diverged at step" in line
        assert f"logs/train_student/digits/random/seed{seed}.log" in line
    assert project.planned() == arm("random", 0, 1) | TABLES
    assert {"arm@digits-random"} <= project.dvc_changed() <= {"arm@digits-random", "study-digits"}
    assert "failed: train_student/digits/random/seed0: " in project.attnprior("status").stdout
