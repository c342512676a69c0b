"""The small study on a real Slurm: whole, and with everything that a cluster does to jobs."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter

import pytest

from tests.slurm.conftest import Background, events

pytestmark = pytest.mark.slurm
TRAININGS = ("--until", "train_student")


def lengthen(project, epochs):
    """Let one arm of a finished study train longer: its two jobs are made again, and can be caught."""
    project.put("students.random.overrides", {"epochs": epochs})
    shutil.rmtree(project.root / "logs/train_student/digits/random")  # else an old log says that it trains


def again(project, job):
    """Return whether the second attempt of a job has begun to train."""
    path = project.root / "logs" / f"{job}.events.jsonl"
    return path.exists() and any(e["event"] == "start" and e["attempt"] > 1 for e in events(project, job))


def resumed_without_repetition(project, job):
    """Check that the job has more than one attempt, and that MLflow has each epoch once, in one run.

    The log has the last attempt only: Snakemake removes logs of a job that it runs again.
    """
    epochs = project.params()["students"]["random"]["overrides"]["epochs"]
    last = [e for e in events(project, job) if e["event"] == "start"][-1]
    assert last["attempt"] > 1 and last["resumed_epoch"] >= 1
    ends = [e for e in events(project, job) if e["event"] == "end"]
    assert ends[-1]["status"] == "finished"
    with sqlite3.connect(project.root / "mlflow.db") as store:
        rows = store.execute(
            "select step from metrics join tags using (run_uuid) where metrics.key = 'loss'"
            " and tags.key = 'attnprior.job_id' and tags.value = ?",
            (last["job_id"],),
        )
        assert Counter(s for (s,) in rows) == Counter(range(1, epochs + 1))


def test_the_whole_study_is_made_recorded_and_tracked(whole):
    assert whole.said.returncode == 0 and "21 of 21 jobs to run" in whole.said.stdout
    assert json.loads(whole.dvc("status", "--json").stdout or "{}") == {}
    assert whole.planned() == set() and whole.snakemake_planned() == set()
    with sqlite3.connect(whole.root / "mlflow.db") as store:
        status = Counter(s for (s,) in store.execute("select status from runs"))
    assert status == {"FINISHED": 22}  # 21 jobs and the run above them
    assert whole.slurm.jobs() == {}


def test_the_results_are_those_of_one_machine(whole, alone):
    assert whole.contents() == alone.contents()


def test_every_training_had_one_gpu(whole):
    numbers = [n for n, comment in whole.jobs.items() if comment.startswith("rule_train_student")]
    assert len(numbers) >= 6
    assert {whole.slurm.job(n)["TresPerJob"] for n in numbers} == {"gres:gpu:1"}
    seen = whole.slurm.gpus_seen()
    assert {seen[n] for n in numbers} <= {"0", "1"}


def test_a_job_sees_its_gpu_only(cluster):
    """What a stage would see, from two jobs at a time in Slurm with the options of the plugin."""
    script = "echo $CUDA_VISIBLE_DEVICES; sleep 5"
    env = {**os.environ, **cluster.slurm.environment}
    jobs = [
        subprocess.Popen(
            ["srun", "-n1", "--gpus=1", "sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert sorted(j.communicate(timeout=60)[0].strip() for j in jobs) == ["0", "1"]


def test_a_cancelled_job_is_submitted_again_and_resumes(cluster):
    lengthen(cluster, 25)
    run = Background(cluster, *TRAININGS)
    number, job = run.caught()
    cluster.slurm.ask("scancel", number)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    resumed_without_repetition(cluster, job)


def test_a_requeued_job_resumes(cluster):
    lengthen(cluster, 25)
    run = Background(cluster, *TRAININGS)
    number, job = run.caught()
    cluster.slurm.ask("scontrol", "requeue", number)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    resumed_without_repetition(cluster, job)


def test_ctrl_c_cancels_what_was_submitted_and_the_next_run_goes_on(cluster):
    lengthen(cluster, 25)
    run = Background(cluster)
    run.caught()
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    done = run.finish(120)
    assert done.returncode == 128 + signal.SIGINT
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: stopped")]) == 1
    end = time.monotonic() + 30
    while cluster.slurm.jobs():
        assert time.monotonic() < end, cluster.slurm.jobs()
        time.sleep(0.5)
    assert cluster.run().returncode == 0
    assert json.loads(cluster.dvc("status", "--json").stdout or "{}") == {}


def test_a_job_that_runs_out_of_time_resumes_in_the_next_attempt(cluster):
    lengthen(cluster, 3000)
    shutil.rmtree(cluster.root / "runs")
    target = "runs/digits/random/seed0/weights.safetensors"
    untold = ("--default-resources", "slurm_partition=main")  # without the signal of the profile
    limit = ("--set-resources", "train_student:runtime=1", "--retries", "1")
    run = Background(cluster, *untold, *limit, "--until", target)
    _, job = run.caught()
    run.until(lambda: cluster.slurm.ask("squeue", "-h", "-t", "TIMEOUT", "-o", "%i").split())
    run.until(lambda: again(cluster, job))
    start = events(cluster, job)[0]
    os.kill(run.process.pid, signal.SIGTERM)
    run.finish(120)
    assert start["resumed_epoch"] > 0 and start["attempt"] == 2


def ended_early(cluster, **more):
    """Return the events of a training that the signal ended, and the start of its next attempt."""
    lengthen(cluster, 3000)
    target = "runs/digits/random/seed0/weights.safetensors"
    (cluster.root / target).unlink()
    limit = ("--set-resources", "train_student:runtime=2", "--retries", "1")
    run = Background(cluster, *limit, "--until", target, **more)
    _, job = run.caught()
    run.until(lambda: again(cluster, job))
    start = [e for e in events(cluster, job) if e["event"] == "start"][-1]
    os.kill(run.process.pid, signal.SIGTERM)
    run.finish(120)
    # Snakemake removes the log of a job that it runs again, and prints it before.
    said = max(cluster.root.glob("logs/snakemake/*.log")).read_text()
    first = [json.loads(line) for line in said.splitlines() if line.startswith('{"event":')]
    return [e for e in first if e["time"] < start["time"]], start


def test_a_job_is_told_to_end_before_its_time_is_over(cluster):
    first, start = ended_early(cluster)
    assert first[-1]["event"] == "end" and "SIGTERM" in first[-1]["error"]
    assert first[-1]["time"] - first[0]["time"] < 100  # its limit was 120 s
    assert start["attempt"] == 2 and start["resumed_epoch"] > 0


def test_a_job_that_is_told_to_end_saves_where_it_is(cluster):
    first, start = ended_early(cluster, ATTNPRIOR_CHECKPOINT_SECONDS="3600")  # saved on the signal only
    assert start["resumed_epoch"] == max(e["step"] for e in first if e["event"] == "metrics")


def test_a_drained_node_delays_jobs_only(cluster):
    lengthen(cluster, 3)
    run = Background(cluster, "--until", "evaluate")
    run.until(lambda: cluster.slurm.jobs("RUNNING"))
    node = f"NodeName={cluster.slurm.host}"
    cluster.slurm.ask("scontrol", "update", node, "State=DRAIN", "Reason=test")
    run.until(lambda: cluster.slurm.jobs("PENDING") and not cluster.slurm.jobs("RUNNING,COMPLETING"))
    cluster.slurm.ask("scontrol", "update", node, "State=RESUME")
    done = run.finish()
    assert done.returncode == 0, done.stderr


def test_a_controller_that_restarts_is_waited_for(cluster):
    lengthen(cluster, 25)
    run = Background(cluster, *TRAININGS)
    number, _ = run.caught()
    run.until(lambda: cluster.slurm.saved(number))  # else it would start the job twice and drain the node
    cluster.slurm.stop_controller()
    time.sleep(15)
    cluster.slurm.start_controller()
    done = run.finish()
    assert done.returncode == 0, done.stderr


def test_files_that_are_seen_late_are_waited_for(cluster):
    lengthen(cluster, 3)
    target = "runs/digits/random/seed0/weights.safetensors"
    weights = cluster.root / target
    hidden, order = weights.with_name(f"{weights.name}.late"), cluster.slurm.folder / "late"
    order.write_text(str(weights))
    try:
        run = Background(cluster, "--until", target)
        run.until(hidden.exists)
    finally:
        order.unlink()
    log = max((cluster.root / "logs/snakemake").glob("*.log"), key=lambda p: p.stat().st_mtime)
    run.until(lambda: "seconds for missing files" in log.read_text())
    time.sleep(3)
    assert not weights.exists()
    hidden.rename(weights)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    assert cluster.record("runs/digits/random/seed0/run.json")["attempts"] == 1
    assert "train_student/digits/random/seed0" not in cluster.planned()


def test_job_arrays(cluster):
    lengthen(cluster, 3)
    before = set(cluster.slurm.jobs("all"))
    done = cluster.run("--slurm-array-jobs", "train_student")
    assert done.returncode == 0, done.stderr
    new = set(cluster.slurm.jobs("all")) - before
    trained = {n for n in new if "_" in n}
    assert len(trained) == 2 and len({n.partition("_")[0] for n in trained}) == 1
    assert sorted(cluster.slurm.gpus_seen()[n] for n in trained) == ["0", "1"]  # both ran at a time
    assert json.loads(cluster.dvc("status", "--json").stdout or "{}") == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--default-resources", "slurm_partition=nowhere"], "no partition 'nowhere'; there are main, short"),
        (
            ["--default-resources", "slurm_partition=main", "gpu_model=a100"],
            "GPU of type 'a100', partition 'main' has fake",
        ),
        (["--default-resources", "slurm_partition=short"], "minutes, partition 'short' has 10"),
        (
            ["--resources", "runtime=999", "--set-resources", "train_student:runtime=999"],
            "partition 'main' has 240",
        ),
        (["--profile", "nowhere"], "no such profile"),
    ],
)
def test_what_slurm_cannot_run_is_refused_before_anything_is_submitted(cluster, arguments, message):
    lengthen(cluster, 3)
    before = set(cluster.slurm.jobs("all"))
    done = cluster.run(*arguments, ok=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(errors) == 1 and message in errors[0], done.stderr
    assert set(cluster.slurm.jobs("all")) == before


def test_doctor_names_a_plugin_without_a_controller(cluster):
    def said():
        found = json.loads(cluster.attnprior("doctor", "--json", ok=False, **cluster.environment()).stdout)
        return next(f for f in found if f["check"] == "slurm")

    assert said()["level"] == "ok"
    cluster.slurm.stop_controller()
    try:
        assert said()["level"] == "warning" and "no controller answers" in said()["text"]
    finally:
        cluster.slurm.start_controller()
