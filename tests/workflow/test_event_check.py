"""Damaged event logs: what is corrected by history.csv, and what is named."""

import json

import pytest

from attnprior.events import EventLog
from attnprior.files import digest
from attnprior.workflow import event_check
from attnprior.workflow.eventlogs import RATE, read_jobs

NAME = "logs/train_student/x.events.jsonl"
PARAMS = {"students.x": {"labels": 200}}


def row(step):
    return {"lr": 0.1, "loss": 1 / (1 + step), "val_top1": step / 100}


@pytest.fixture
def root(tmp_path):
    """A finished job with its log, history and record."""
    log = EventLog(tmp_path / NAME)
    start = {"job": "train_student/x/seed0", "job_id": "one", "rule": "train_student", "attempt": 1}
    log.start(resume=False, **start, params=PARAMS, params_digest=digest(PARAMS), invocation="i")
    for step in range(1, 6):
        log.metrics(step, row(step))
    log.end("finished", {"val_top1": 0.05}, ["runs/x/history.csv", "runs/x/run.json"])
    (tmp_path / "runs/x").mkdir(parents=True)
    lines = ["epoch,step,lr,loss,val_top1"]
    lines += [f"{s},{7 * s}," + ",".join(map(repr, row(s).values())) for s in range(1, 6)]
    (tmp_path / "runs/x/history.csv").write_text("\n".join(lines) + "\n")
    from datetime import UTC, datetime

    record = {"invocation": "i", "started": datetime.now(UTC).isoformat(timespec="seconds")}
    (tmp_path / "runs/x/run.json").write_text(json.dumps(record))
    return tmp_path


def checked(root):
    jobs = read_jobs(root / NAME)
    event_check.check(root, NAME, jobs)
    return jobs


def rows(job):
    return {e["step"]: e["values"] for e in job.events if e["event"] == "metrics"}


def change(root, old, new):
    path = root / NAME
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_whole_log_is_passed_as_it_is(root, capsys):
    (job,) = checked(root)
    assert rows(job) == {s: row(s) for s in range(1, 6)}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [('"loss":0.25', '"loss":0.35'), ('"loss":0.25', '"lows":0.25'), ('"loss":0.25', '"loss"x0.25')],
)
def test_a_damaged_row_is_taken_from_the_history(root, capsys, old, new):
    change(root, old, new)
    (job,) = checked(root)
    assert rows(job) == {s: row(s) for s in range(1, 6)}
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {NAME}: damaged (") and said.count("\n") == 1
    assert "steps 3 are taken from history.csv" in said


def test_rows_that_a_full_disk_lost_are_taken_from_the_history(root):
    path = root / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[-1:]))
    (job,) = checked(root)
    assert rows(job) == {s: row(s) for s in range(1, 6)}
    assert sorted(s for _, _, _, s in job.points(0) if s) == sorted([*range(1, 6)] * 3 + [5])


def timed(root, kept, **start):
    """Change the log to a start and the rows `kept`, one a second, and return its job as corrected."""
    path = root / NAME
    events = [json.loads(line) for line in path.read_text().splitlines()]
    events = [{**events[0], "images": 10, **start}, *(e for e in events if e.get("step") in kept), events[-1]]
    for event in events:
        event["time"] = events[0]["time"] + event.get("step", 6) * (event["event"] != "start")
    path.write_text("".join(json.dumps(e) + "\n" for e in events))
    (job,) = checked(root)
    assert [e["step"] for e in job.events if e["event"] == "metrics"] == [*range(1, 6)]
    assert [json.loads(line) for line in job.lines] == job.events
    return job


@pytest.mark.parametrize(
    ("kept", "start", "rated"),
    [
        ((4, 5), {"attempt": 2, "resumed_epoch": 3}, (5,)),
        ((1, 2, 4, 5), {}, (2, 4, 5)),
        ((1, 2), {}, (2,)),
        ((1, 2, 3, 4, 5), {}, (2, 3, 4, 5)),
    ],
)
def test_rows_of_the_history_stand_at_their_place_and_have_no_rate(root, kept, start, rated):
    points = list(timed(root, kept, **start).points(0))
    rates = {s: v for k, v, _, s in points if k == RATE}
    assert rates == dict.fromkeys(rated, pytest.approx(10.0))  # 10 images an epoch, an epoch a second
    assert [s for k, _, _, s in points if k.startswith("final/")] == [5]
    times = [t for k, _, t, _ in points if k != RATE]
    assert times == sorted(times)


def test_epochs_whose_log_snakemake_removed_are_taken_from_the_history_without_a_warning(root, capsys):
    path = root / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    again = lines[0].replace(b'"attempt":1', b'"attempt":2,"resumed_epoch":2')
    path.write_bytes(b"".join([again, *lines[3:]]))
    (job,) = checked(root)
    assert rows(job) == {s: row(s) for s in range(1, 6)}
    assert job.filled and capsys.readouterr().err == ""


def test_the_history_of_another_run_is_not_used(root, capsys):
    (root / "runs/x/run.json").write_text('{"invocation": "other", "started": "2020-01-01T00:00:00+00:00"}')
    change(root, '"loss":0.25', '"loss":0.35')
    (job,) = checked(root)
    assert rows(job)[3]["loss"] == 0.35
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"labels":200', '"labels":900', "settings do not agree"),
        ('{"event":"end"', '{"evemt":"end"', "line 7 is no event"),
    ],
)
def test_what_cannot_be_corrected_is_named(root, capsys, old, new, said):
    change(root, old, new)
    checked(root)
    assert said in capsys.readouterr().err


def test_what_a_kill_leaves_is_no_damage(root, capsys):
    path = root / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join(lines[:3]) + lines[3][:20] + b"\n" + lines[0] + b"".join(lines[2:4]) + lines[4][:9]
    )
    checked(root)
    assert capsys.readouterr().err == ""
