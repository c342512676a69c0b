"""`attnprior status`: what it reads from event logs and the lock, and what it says of a run under way."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from attnprior.train.checkpoint import Checkpoint
from attnprior.workflow import lock, status
from tests.faults import disturb
from tests.workflow.test_progress import event, finish, job, started, write

HOLDER = {"invocation": "now"}


def rows(*steps):
    return [event(event="metrics", time=float(s), step=s, values={"loss": 0.5}) for s in steps]


def keys(watched):
    return [w.job.key for w in watched]


def test_attempts_are_told_apart_by_their_end_and_by_the_run_they_belong_to(tmp_path):
    jobs = [job(tmp_path, seed=k) for k in range(5)]
    write(jobs[0], started(0.0, invocation="now", total=9), *rows(1))
    write(jobs[1], started(0.0, invocation="before", total=9), *rows(1, 2))
    ends = [event(event="end", time=1.0, status=s, error="it broke") for s in ("failed", "stopped")]
    write(jobs[2], started(0.0, invocation="now"), ends[0])
    write(jobs[3], started(0.0, invocation="now"), ends[1])
    found = status.attempts_of(jobs, HOLDER)
    parts = found.running, found.interrupted, found.failed, found.stopped
    assert [keys(p) for p in parts] == [[j.key] for j in jobs[:4]]
    assert status.done_of(found.interrupted[0]) == "2 of 9"
    assert keys(status.attempts_of(jobs, None).interrupted) == [j.key for j in jobs[:2]]


def test_what_failed_before_a_run_waits_in_it(tmp_path):
    jobs = [job(tmp_path, seed=k) for k in range(2)]
    for one, end in zip(jobs, ("failed", "stopped"), strict=True):
        write(
            one, started(0.0, invocation="before"), event(event="end", time=1.0, status=end, error="it broke")
        )
    attempts = status.attempts_of(jobs, HOLDER)
    assert attempts == status.Attempts([], [], [], [])
    assert status.of_run(attempts, {j.key for j in jobs}, jobs, 3.0) == ["0 running, 2 waiting, 0 failed"]
    before = status.attempts_of(jobs, None)
    assert (keys(before.failed), keys(before.stopped)) == ([jobs[0].key], [jobs[1].key])


def test_a_training_that_holds_its_checkpoint_runs_whoever_started_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = job(tmp_path)
    write(one, started(0.0, total=9), *rows(1))
    folder = Path("checkpoints", *one.key.split("/"))
    with Checkpoint(folder, "key", "id", print):
        assert keys(status.attempts_of([one], None).running) == [one.key]
    assert keys(status.attempts_of([one], None).interrupted) == [one.key]


def test_time_left_is_that_of_all_jobs_at_the_present_number_side_by_side(tmp_path):
    done, *jobs = [job(tmp_path, seed=k) for k in range(6)]
    finish(done, 30.0)
    for one in jobs[:2]:  # an epoch a second, 6 of 9 left
        write(one, started(0.0, invocation="now", total=9, images=40), *rows(1, 2, 3))
    attempts = status.attempts_of(jobs, HOLDER)
    lines = status.of_run(attempts, {j.key for j in jobs}, [done, *jobs], now=3.0)
    assert lines[-1] == "2 running, 3 waiting, 0 failed, about 51 s left"  # (2 x 6 + 3 x 30) / 2
    assert [line.split() for line in lines[1:3]] == [
        [one.key, "3/9", "0.5", "40", "6", "s"] for one in jobs[:2]
    ]


def test_no_time_is_given_where_a_rule_has_never_run(tmp_path):
    one, other = job(tmp_path), job(tmp_path, "evaluate")
    write(one, started(0.0, invocation="now", total=9), *rows(1, 2, 3))
    attempts = status.attempts_of([one, other], HOLDER)
    assert (
        status.of_run(attempts, {one.key, other.key}, [one, other], 3.0)[-1]
        == "1 running, 1 waiting, 0 failed"
    )


def test_of_a_failed_job_the_last_lines_of_its_log_are_shown(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("".join(f"line {k}\n\n" for k in range(9)))
    assert status.last_lines(str(path)) == [f"line {k}" for k in range(4, 9)]
    assert status.last_lines(str(tmp_path / "none")) == []


def note(folder, **facts):
    path = folder / lock.LOCK
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"host": socket.gethostname(), **facts}))


def test_the_run_under_way_is_known_by_its_process_or_elsewhere_by_its_note(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lock.holder() is None
    script = "import time; print(flush=True); time.sleep(60)"
    ours = subprocess.Popen([sys.executable, "-c", script, "attnprior"], stdout=subprocess.PIPE)
    try:
        ours.stdout.readline()
        note(tmp_path, pid=ours.pid, invocation="now")
        assert lock.holder()["invocation"] == "now"
        note(tmp_path, pid=os.getpid() if b"attnprior" not in Path("/proc/self/cmdline").read_bytes() else 1)
        assert lock.holder() is None
    finally:
        ours.kill()
        ours.wait()
    note(tmp_path, pid=ours.pid, invocation="now", running=True)
    assert lock.holder() is None
    note(tmp_path, pid=1, host="elsewhere", running=True)
    assert "process 1 on elsewhere" in lock.described(lock.holder())
    note(tmp_path, pid=1, host="elsewhere", running=False)
    assert lock.holder() is None


@pytest.mark.slow
def test_a_run_is_watched_from_another_shell_and_one_that_was_killed_is_told(project):
    project.put("recipes.student.epochs", 400)
    run = disturb.Run(project)
    assert run.until(
        lambda: any("epoch 3:" in p.read_text() for p in project.root.glob("logs/train_student/**/*.log"))
    )
    said = project.attnprior("status").stdout
    assert f"at work: another `attnprior run` (process {run.process.pid})" in said
    assert re.search(r"train_student/digits/\w+/seed\d +\d+/400 ", said), said
    assert re.search(r"^[12] running, \d+ waiting, 0 failed", said, re.M), said
    assert "next:" not in said
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait()
    said = project.attnprior("status").stdout
    assert "at work:" not in said and "next: attnprior run" in said
    ended = r"interrupted: train_student/digits/\w+/seed\d after \d+ of 400: begun and not ended"
    assert re.search(ended, said), said
