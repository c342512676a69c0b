"""The small study where submit host and nodes share no file system: whole, and with what goes wrong there."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.nofs.conftest import HIDES
from tests.workflow import background

pytestmark = pytest.mark.nofs
JOB = "train_student/digits/copy/seed0"
TARGET = "runs/digits/copy/seed0/weights.safetensors"


def events(host, job=JOB):
    path = host.root / "logs" / f"{job}.events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Background(background.Background):
    """A run that a test disturbs while one student trains for `epochs`."""

    def __init__(self, host, epochs=200, **more):
        self.epochs = epochs
        host.put("students.copy.overrides", {"epochs": epochs})
        shutil.rmtree(host.root / "logs/train_student/digits/copy", ignore_errors=True)
        super().__init__(host, *host.arguments("--until", TARGET), **more)

    def again(self):
        self.start(*self.project.arguments("--until", TARGET))

    def trains(self):
        """Wait until the submit host has seen an epoch of the training; return its epochs so far."""
        self.until(lambda: any(e["event"] == "metrics" for e in events(self.project)))
        return max(e["step"] for e in events(self.project) if e["event"] == "metrics")

    def node_process(self):
        """Return the process that the newest job is on its node."""
        return int(self.project.root.with_name("pid").read_text())


def resumed_on_b(host, epochs):
    """Check that node b went on with what node a had done, and that MLflow has each epoch once."""
    assert [line.split()[0] for line in host.started() if "copy-seed0" in line] == ["a", "b"]
    last = [e for e in events(host) if e["event"] == "start"][-1]
    assert last["attempt"] == 2 and last["resumed_epoch"] >= 1
    assert events(host)[-1]["status"] == "finished"
    history = (host.root / "runs/digits/copy/seed0/history.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in history] == list(range(1, epochs + 1))
    with sqlite3.connect(host.root / "mlflow.db") as store:
        rows = store.execute(
            "select step from metrics join tags using (run_uuid) where metrics.key = 'loss'"
            " and tags.key = 'attnprior.job_id' and tags.value = ?",
            (last["job_id"],),
        )
        assert Counter(s for (s,) in rows) == Counter(range(1, epochs + 1))


def left_at_url(host) -> list[str]:
    """Return the names of what is at the URL beside files by content."""
    return [name for name in host.at_url() if not name.startswith("files/")]


def test_the_whole_study_is_made_recorded_and_tracked(whole):
    assert re.search(r"(\d+) of \1 jobs to run", whole.said.stdout)
    assert json.loads(whole.dvc("status", "--json").stdout or "{}") == {}
    assert whole.planned() == set() and whole.snakemake_planned() == set()
    assert "nothing to do" in whole.run().stdout
    with sqlite3.connect(whole.root / "mlflow.db") as store:
        status = Counter(s for (s,) in store.execute("select status from runs"))
    assert status == {"FINISHED": len(whole.started()) + 1}  # the jobs, and the run above them
    assert left_at_url(whole) == []
    assert not list((whole.root / ".snakemake/remote/jobs").iterdir())


def test_every_job_ran_on_the_node_and_leaves_nothing_there_but_inputs(whole):
    assert len(whole.started()) == len(list(whole.root.glob("logs/**/*.events.jsonl")))
    assert [p.name for p in (whole.node("a") / ".snakemake/node").iterdir()] == ["files"]
    assert list(whole.root.glob("logs/**/*.benchmark.tsv"))


def test_the_node_saw_no_file_of_the_submit_host(whole):
    if not HIDES:
        pytest.skip("needs root and mounts of a process's own")
    assert whole.root.with_name("seen").read_text() == ""


def test_the_results_are_those_of_one_machine(whole, alone):
    assert whole.contents() == alone.contents()


def test_attnprior_check_and_verify_hold(whole):
    whole.attnprior("check")
    assert whole.attnprior("sync").stdout.endswith("0 to run\n")


def test_unchanged_inputs_are_not_sent_again(finished_host):
    finished_host.put("students.copy.overrides", {"lr": 0.001})
    finished_host.run("--until", TARGET)  # its own prefix: sends data set and teacher
    before = finished_host.at_url()
    finished_host.put("students.copy.overrides", {"lr": 0.0015})
    finished_host.run("--until", TARGET)
    after = finished_host.at_url()
    assert len(before) == 2 + 4 and len(after) == len(before) + 4  # inputs, and outputs of each training
    assert before.items() <= after.items()


def test_a_job_stopped_on_one_node_goes_on_on_another(finished_host):
    run = Background(finished_host)
    seen = run.trains()
    finished_host.send_to("b")
    os.kill(run.node_process(), signal.SIGTERM)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    resumed_on_b(finished_host, run.epochs)
    last = [e for e in events(finished_host) if e["event"] == "start"][-1]
    assert last["resumed_epoch"] >= seen
    assert left_at_url(finished_host) == []


def test_a_node_that_dies_is_noticed_and_another_goes_on(finished_host):
    run = Background(finished_host, ATTNPRIOR_REMOTE_SILENCE="8")
    run.trains()
    run.until(lambda: any(n.startswith("checkpoints/") for n in left_at_url(finished_host)))
    finished_host.send_to("b")
    os.killpg(os.getpgid(run.node_process()), signal.SIGKILL)
    done = run.finish()
    assert done.returncode == 0, done.stderr
    resumed_on_b(finished_host, run.epochs)


def test_ctrl_c_stops_the_node_and_the_next_run_goes_on_elsewhere(finished_host):
    run = Background(finished_host)
    run.trains()
    os.killpg(run.process.pid, signal.SIGINT)
    done = run.finish(120)
    assert done.returncode == 128 + signal.SIGINT
    finished_host.send_to("b")
    run.again()
    done = run.finish()
    assert done.returncode == 0, done.stderr
    resumed_on_b(finished_host, run.epochs)


def test_a_killed_run_leaves_its_jobs_and_the_next_takes_them_over(finished_host):
    run = Background(finished_host)
    run.trains()
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.communicate()
    for line in subprocess.run(
        ["pgrep", "-f", "attnprior.workflow.scheduler"], capture_output=True, text=True
    ).stdout.split():
        if Path(f"/proc/{line}/cwd").resolve() == finished_host.root:
            os.kill(int(line), signal.SIGKILL)
    finished_host.send_to("b")
    run.again()
    done = run.finish()
    assert done.returncode == 0, done.stderr
    assert len([line for line in finished_host.started() if "copy-seed0" in line]) == 1


def refused(host, **more):
    """Return the only error line of a run that starts nothing."""
    done = host.run(ok=False, **more)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert host.started() == [] and not list((host.root / ".snakemake/remote/jobs").glob("*"))
    return lines[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "other"}, "access is refused"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "access is refused"),
        ({"ATTNPRIOR_REMOTE_URL": "s3://nowhere/here"}, "there is no such bucket"),
        ({"ATTNPRIOR_REMOTE_URL": ""}, "ATTNPRIOR_REMOTE_URL: not set"),
        ({"ATTNPRIOR_REMOTE_URL": "nowhere:here"}, "rclone knows no such remote"),
        ({"ATTNPRIOR_REMOTE_URL": "/no/such/folder"}, "there is no folder /no/such/folder"),
        ({"ATTNPRIOR_REMOTE_START": ""}, "ATTNPRIOR_REMOTE_START: not set"),
        ({"ATTNPRIOR_REMOTE_START": "ssh {host}"}, "may have {rule}"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_submitted(host, change, message):
    assert message in refused(host, **change)


def test_a_full_place_is_one_line(host, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a small file system is mounted, by root only")
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", full], check=True)
    try:
        (full / "filler").write_bytes(b"x" * 4096)
        assert "there is no room" in refused(host, ATTNPRIOR_REMOTE_URL=str(full))
    finally:
        subprocess.run(["umount", full], check=True)


def test_a_command_that_starts_nothing_is_told(host):
    done = host.run(
        "--until",
        "fetch_dataset",
        "--retries",
        "0",
        ok=False,
        ATTNPRIOR_REMOTE_START="echo no node >&2; false #",
    )
    assert done.returncode == 1
    assert "ATTNPRIOR_REMOTE_START failed with status 1: no node" in done.stderr, done.stderr
    assert left_at_url(host) == []


def test_a_node_with_other_code_refuses(host):
    with open(host.node("a") / "src/attnprior/data/datafile.py", "a") as f:
        f.write("# other\n")
    done = host.run("--until", "fetch_dataset", "--retries", "0", ok=False)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "fetch_dataset/digits" in lines[0], done.stderr
    assert "datafile.py" in lines[0] and "is not as on the machine that submits" in lines[0]
    assert left_at_url(host) == []
