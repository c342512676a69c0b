"""Progress of a run from event logs that real jobs left, replayed line by line, and from run.json."""

import json
from pathlib import Path

import pytest

from attnprior.workflow import progress as watching
from attnprior.workflow.engines import Job
from attnprior.workflow.eventlogs import Tail
from attnprior.workflow.progress import Progress, earlier_seconds

RECORDED = Path(__file__).parents[1] / "data/events"
TRAIN = (RECORDED / "train_student.events.jsonl").read_bytes().splitlines(keepends=True)
PRETRAIN = (RECORDED / "pretrain_teacher.events.jsonl").read_bytes().splitlines(keepends=True)


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def job(root, rule="train_student", seed=0):
    folder = root / rule / f"seed{seed}"
    logs = {"text": f"logs/{rule}/{seed}.log", "events": str(folder / "events.jsonl")}
    folder.mkdir(parents=True, exist_ok=True)
    return Job(rule, {"seed": str(seed)}, [], [], str(folder / "run.json"), "{}", logs)


def write(job, *lines):
    Path(job.logs["events"]).write_bytes(b"".join(lines))


def append(job, *lines):
    with open(job.logs["events"], "ab") as f:
        f.write(b"".join(lines))


def finish(job, seconds, invocation="now"):
    Path(job.run_json).write_text(json.dumps({"invocation": invocation, "seconds": {"total": seconds}}))


def event(**values):
    return json.dumps(values).encode() + b"\n"


def started(at, **values):
    names = {"job": "a", "job_id": "b", "rule": "c"}
    return event(event="start", time=at, **names, **values)


def watch(*jobs, clock=None, earlier=None):
    progress = Progress(jobs, earlier, clock or Clock())
    progress.invocation = "now"
    return progress


def test_a_job_is_followed_from_waiting_to_done(tmp_path):
    one, other = job(tmp_path), job(tmp_path, seed=1)
    progress = watch(one, other)
    assert progress.update() == ([], [])
    assert (progress.snapshot.waiting, progress.snapshot.rows) == (2, ())
    write(one, *TRAIN[:1])
    progress.update()
    (row,) = progress.snapshot.rows
    assert (row.key, row.step, row.total, row.loss, row.ends_at) == (one.key, 0, 30, None, None)
    append(one, *TRAIN[1:8])
    progress.update()
    (row,) = progress.snapshot.rows
    first, last = json.loads(TRAIN[1]), json.loads(TRAIN[7])
    assert (row.step, row.loss, row.accuracy) == (7, last["values"]["loss"], last["values"]["val_top1"])
    pace = (last["time"] - first["time"]) / 6  # seconds an epoch, the first of which also loads
    assert row.images_per_second == pytest.approx(200 / pace)
    assert row.ends_at == pytest.approx(last["time"] + 23 * pace)
    append(one, *TRAIN[8:])
    assert progress.update() == ([], [])  # its run.json is what counts
    finish(one, 7.0)
    assert progress.update() == ([one], [])
    assert progress.update() == ([], [])
    snapshot = progress.snapshot
    assert (snapshot.total, snapshot.done, snapshot.running, snapshot.waiting) == (2, 1, 0, 1)
    assert progress.done[one.key]["seconds"]["total"] == 7.0
    assert progress.unfinished() == [other]


def test_a_teacher_has_a_loss_and_no_accuracy(tmp_path):
    one = job(tmp_path, "pretrain_teacher")
    progress = watch(one)
    write(one, *PRETRAIN[:5])
    progress.update()
    (row,) = progress.snapshot.rows
    assert (row.step, row.total, row.accuracy) == (4, 10, None)
    assert row.loss == json.loads(PRETRAIN[4])["values"]["loss"]


def test_an_old_log_and_an_old_result_count_for_nothing(tmp_path):
    one = job(tmp_path)
    write(one, *TRAIN)
    finish(one, 7.0, invocation="before")
    progress = watch(one)
    assert progress.update() == ([], [])
    assert progress.snapshot.waiting == 1


def test_a_log_begun_anew_is_read_even_if_it_has_become_longer(tmp_path):
    one = job(tmp_path)
    write(one, *TRAIN[:3])
    progress = watch(one)
    write(one, started(5.0, total=9, resumed_epoch=0), *TRAIN[1:])
    progress.update()
    assert progress.snapshot.rows[0].total == 9


def test_a_resumed_job_begins_where_it_stopped(tmp_path):
    one = job(tmp_path)
    write(one, *TRAIN[:6], b'{"event":"metr')
    progress = watch(one)
    append(one, b"\n", started(100.0, total=30, images=200, resumed_epoch=5))
    progress.update()
    assert progress.snapshot.rows[0].step == 5
    append(one, *[event(event="metrics", time=100.0 + s, step=s, values={"loss": 1.0}) for s in (6, 7, 8)])
    progress.update()
    assert progress.snapshot.rows[0].images_per_second == pytest.approx(200)


def test_a_failure_is_told_once_and_a_second_try_runs_again(tmp_path):
    one = job(tmp_path)
    progress = watch(one)
    failed = event(event="end", time=2.0, status="failed", values={}, error="it broke")
    write(one, started(1.0), failed)
    assert progress.update() == ([], [(one, "it broke")])
    assert progress.update() == ([], [])
    assert progress.snapshot.failed == 1
    append(one, started(3.0))
    progress.update()
    assert (progress.snapshot.failed, progress.snapshot.running) == (0, 1)
    append(one, failed)
    assert progress.update() == ([], [(one, "it broke")])


def test_a_stopped_job_is_told_at_the_end_for_snakemake_may_submit_it_again(tmp_path):
    one, said = job(tmp_path), "stopped by SIGUSR1 after epoch 3 step 5; run again to continue"
    progress = watch(one)
    write(one, started(1.0), event(event="end", time=2.0, status="stopped", values={}, error=said))
    assert progress.update() == ([], [])
    assert progress.update(last=True) == ([], [])
    assert progress.stopped() == [(one, said)]
    assert (progress.snapshot.failed, progress.snapshot.stopped) == (0, 1)
    assert progress.unfinished() == [one]
    append(one, started(3.0, resumed_epoch=2))
    progress.update()
    assert (progress.snapshot.stopped, progress.snapshot.running) == (0, 1)
    assert progress.stopped() == []


def test_a_job_killed_without_a_word_has_failed_when_nothing_runs_any_more(tmp_path):
    one = job(tmp_path)
    progress = watch(one)
    write(one, *TRAIN[:4])
    assert progress.update() == ([], [])
    ((who, why),) = progress.update(last=True)[1]
    assert who is one and "killed" in why
    assert progress.snapshot.failed == 1


def test_a_line_is_read_once_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_bytes(TRAIN[0] + TRAIN[1][:20])
    assert [e["event"] for e in tail.read()] == ["start"]
    assert tail.read() == []
    with open(path, "ab") as f:
        f.write(TRAIN[1][20:] + b"nonsense\n" + TRAIN[2])
    assert [e["step"] for e in tail.read()] == [1, 2]


def test_only_what_was_appended_is_read(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(TRAIN))
    tail = Tail(path)
    tail.read()
    extra = event(event="metrics", time=1.0, step=31, values={})
    with open(path, "ab") as f:
        f.write(extra)
    taken = []

    class Counting:
        def __init__(self, *args):
            self.file = open(*args)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def seek(self, *args):
            return self.file.seek(*args)

        def read(self, *args):
            taken.append(self.file.read(*args))
            return taken[-1]

    monkeypatch.setattr("attnprior.workflow.eventlogs.open", Counting, raising=False)
    assert [e["step"] for e in tail.read()] == [31]
    assert sum(map(len, taken)) <= len(extra) + 64


def test_the_end_of_a_run_follows_from_its_pace(tmp_path):
    clock = Clock(0.0)
    jobs = [job(tmp_path, seed=k) for k in range(6)]
    progress = watch(*jobs, clock=clock)
    progress.update()
    assert progress.snapshot.ends_at is None  # nothing is known yet
    clock.now = 10.0  # two have run side by side for ten seconds, four are left
    for one in jobs[:2]:
        finish(one, 10.0)
    progress.update()
    assert progress.snapshot.ends_at == pytest.approx(30.0)
    write(jobs[2], started(10.0))
    write(jobs[3], started(10.0))
    clock.now = 15.0
    progress.update()
    assert progress.snapshot.ends_at == pytest.approx(30.0)


def test_a_rule_not_seen_yet_takes_what_it_took_before(tmp_path):
    clock = Clock(0.0)
    first, second = job(tmp_path, "fit_impulse"), job(tmp_path)
    finish(second, 80.0, invocation="before")
    assert earlier_seconds([first, second]) == {"train_student": [80.0]}
    progress = watch(first, second, clock=clock, earlier=earlier_seconds([first, second]))
    finish(first, 10.0)
    clock.now = 10.0
    progress.update()
    assert progress.snapshot.ends_at == pytest.approx(90.0)


def test_of_many_waiting_jobs_some_are_looked_at_in_turn_and_all_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "SLICE", 3)
    jobs = [job(tmp_path, seed=k) for k in range(10)]
    progress = watch(*jobs)
    for one in jobs:
        finish(one, 1.0)
    found = [progress.update()[0]]
    assert len(found[0]) == 3
    for _ in range(4):
        found.append(progress.update()[0])
    assert [j.key for part in found for j in part].count(jobs[0].key) == 1
    assert {j.key for part in found for j in part} == {j.key for j in jobs}
    again = watch(*jobs)
    assert len(again.update(last=True)[0]) == 10


def test_rows_of_earlier_attempts_give_no_rate(tmp_path):
    one, clock = job(tmp_path), Clock(1.0)
    progress = watch(one, clock=clock)
    rows = [event(event="metrics", time=1.0, step=s, values={"loss": 1.0}, filled=True) for s in (1, 2)]
    write(one, started(1.0, total=9, images=10, resumed_epoch=2), *rows)
    progress.update()
    assert (progress.snapshot.rows[0].step, progress.snapshot.rows[0].images_per_second) == (2, None)
    append(
        one, *(event(event="metrics", time=t, step=s, values={"loss": 1.0}) for t, s in ((5.0, 3), (7.0, 4)))
    )
    progress.update()
    assert progress.snapshot.rows[0].images_per_second == 5.0
