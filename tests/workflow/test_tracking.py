"""The importer against real SQLite stores; logs are written by the jobs' own EventLog."""

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attnprior
from attnprior.events import EventLog
from attnprior.files import digest
from attnprior.workflow import mlflow_ui, tracking
from attnprior.workflow.eventlogs import read_jobs

SECONDS = 1_700_000_000.0
SETTINGS = {
    "students.impulse": {"init": {"source": "impulse", "fit": None}, "labels": 200, "long": "x" * 9000}
}
ENV = {**os.environ, "PYTHONPATH": str(Path(attnprior.__file__).parents[1])}


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    for name in [k for k in os.environ if k.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A store made once; making one takes seconds, copying it does not."""
    root = tmp_path_factory.mktemp("made")
    write_job(root, "first")
    assert tracking.track(root).warning is None
    with sqlite3.connect(root / "mlflow.db") as db:
        for table in ("metrics", "latest_metrics", "params", "tags", "inputs", "datasets", "runs"):
            db.execute(f"delete from {table}")
    db.close()
    return root / "mlflow.db"


@pytest.fixture
def root(tmp_path, empty_store):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


def start(log, job_id, *, resume=False, job="train_student/digits/impulse/seed0", **changes):
    values = {
        "job": job,
        "job_id": job_id,
        "attempt": 1,
        "resumed_epoch": 0,
        "rule": job.partition("/")[0],
        "wildcards": {"dataset": "digits", "student": "impulse", "seed": 0},
        "params": SETTINGS,
        "params_digest": digest(SETTINGS),
        "inputs": {"data/digits.safetensors": "a" * 64},
        "commit": "c" * 40,
        "invocation": "1234567890abcdef",
        "device": "cpu (A model)",
        "versions": {"python": "3.11.9", "torch": "2.9.0"},
    }
    log.start(resume=resume, **{**values, **changes})


def log_path(root, name):
    return root / "logs" / "train_student" / f"{name}.events.jsonl"


def row(step):
    return {"train_loss": 1 / (1 + step), "val_top1": step / 100}


def write_job(root, name, steps=5, end="finished", **changes):
    log = EventLog(log_path(root, name))
    start(log, f"id-{name}", job=f"train_student/digits/{name}/seed0", **changes)
    for step in range(steps):
        log.metrics(step, row(step))
    if end:
        log.end(
            end, {"val_top1": 0.5} if end == "finished" else {}, [], None if end == "finished" else "it broke"
        )
    return log


def client(root):
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def stored(root):
    """Return (children by job id, parents by invocation) as MLflow's client sees them."""
    c = client(root)
    runs = c.search_runs([c.get_experiment_by_name("attnprior").experiment_id], max_results=1000)
    children = {r.data.tags["attnprior.job_id"]: r for r in runs if "attnprior.job_id" in r.data.tags}
    parents = {r.data.tags["attnprior.invocation"]: r for r in runs if "attnprior.job_id" not in r.data.tags}
    assert len(children) + len(parents) == len(runs)
    return children, parents


def histories(root, run):
    c = client(root)
    return {
        k: [(m.step, m.value, m.timestamp) for m in c.get_metric_history(run.info.run_id, k)]
        for k in run.data.metrics
    }


def content(root):
    """Return everything stored but the random run ids."""
    children, parents = stored(root)
    names = {r.info.run_id: k for k, r in [*children.items(), *parents.items()]}
    out = {}
    for key, r in [*children.items(), *parents.items()]:
        tags = {k: names.get(v, v) for k, v in r.data.tags.items()}
        out[key] = (
            r.info.status,
            r.info.start_time,
            r.info.end_time,
            tags,
            r.data.params,
            histories(root, r),
        )
    return out


def expected_points(path):
    """Return the metric points of a log, counted without the package."""
    rows = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "metrics":
            for key, value in event["values"].items():
                rows.setdefault((key, event["step"]), (value, round(event["time"] * 1000)))
    return rows


def missing_points(root, job_id, path):
    children, _ = stored(root)
    found = {
        (k, step): (value, t)
        for k, points in histories(root, children[job_id]).items()
        if not k.startswith("final/")
        for step, value, t in points
    }
    wanted = expected_points(path)
    return {k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)}


def test_a_job_becomes_a_run_with_its_history_settings_and_origin(root):
    write_job(root, "impulse")
    summary = tracking.track(root)
    assert (summary.warning, summary.jobs, summary.points) == (None, 1, 11)
    children, parents = stored(root)
    run, parent = children["id-impulse"], parents["1234567890abcdef"]
    assert run.info.run_name == "train_student/digits/impulse/seed000"
    assert run.info.status == parent.info.status == "FINISHED"
    events = [json.loads(x) for x in log_path(root, "impulse").read_text().splitlines()]
    assert run.info.start_time == round(1000 * events[0]["time"])
    assert run.info.end_time == parent.info.end_time == round(1000 * events[-1]["time"])
    assert missing_points(root, "id-impulse", log_path(root, "impulse")) == set()
    assert histories(root, run)["final/val_top1"] == [(4, 0.5, round(1000 * events[-1]["time"]))]
    tags = run.data.tags
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert tags["stage"] == "train_student"
    assert (tags["dataset"], tags["student"], tags["arm"]) == ("digits", "impulse", "digits-impulse")
    assert (tags["seed"], tags["init"], tags["status"]) == ("000", "impulse", "finished")
    assert tags["commit"] == tags["mlflow.source.git.commit"] == "c" * 40
    assert tags["attnprior.params_digest"] == digest(SETTINGS)
    assert tags["attnprior.device"] == "cpu (A model)"
    assert tags["attnprior.version.torch"] == "2.9.0"
    assert tags["attempt"] == "1"
    assert json.loads(tags["attnprior.inputs"]) == {"data/digits.safetensors": "a" * 64}
    params = run.data.params
    assert params["student.name"] == "impulse"
    assert params["student.init.source"] == "impulse"
    assert params["student.init.fit"] == "null"
    assert params["student.labels"] == "200"
    assert params["student.long"] == "x" * 6000


def test_runs_can_be_found_and_sorted_by_what_they_are(root):
    for name, seed in (("copy", 10), ("copy", 9), ("impulse", 9)):
        wildcards = {"dataset": "digits", "student": name, "seed": seed}
        transfer = {"method": "copy", "teacher": "mae"} if name == "copy" else {"method": "none"}
        settings = {"init": {"source": "random"}, "transfer": transfer, "labels": 200}
        log = EventLog(log_path(root, f"{name}{seed}"))
        start(
            log,
            f"id-{name}{seed}",
            job=f"train_student/digits/{name}/seed{seed}",
            wildcards=wildcards,
            params={
                f"students.{name}": settings,
                "recipes.student": {"lr": 0.002},
                "compute": {"device": "cpu"},
            },
        )
        log.metrics(1, {"val_top1": seed / 10})
        log.end("finished", {}, [])
    tracking.track(root)
    c = client(root)

    def names(query):
        found = c.search_runs(
            [c.get_experiment_by_name("attnprior").experiment_id], query, order_by=["attributes.run_name"]
        )
        return [r.info.run_name.removeprefix("train_student/digits/") for r in found]

    stage = "tags.stage = 'train_student'"
    assert names(stage) == ["copy/seed009", "copy/seed010", "impulse/seed009"]
    assert names(f"{stage} and tags.teacher = 'mae' and tags.seed = '010'") == ["copy/seed010"]
    assert names(f"{stage} and tags.arm = 'digits-copy' and metrics.val_top1 < 0.95") == ["copy/seed009"]
    assert names("params.`student.labels` = '200' and params.`recipe.lr` = '0.002'") == names(stage)
    assert names("params.`student.name` = 'impulse' and tags.status = 'finished'") == ["impulse/seed009"]
    assert names("tags.status = 'failed'") == []


def test_a_data_set_is_an_input_of_the_run_once(root):
    write_job(root, "impulse")
    for _ in range(2):
        tracking.track(root)
        (found,) = stored(root)[0]["id-impulse"].inputs.dataset_inputs
        assert (found.dataset.name, found.dataset.digest) == ("digits", "a" * 36)
        assert json.loads(found.dataset.source) == {"uri": "data/digits.safetensors", "sha256": "a" * 64}
        assert [(t.key, t.value) for t in found.tags] == [("mlflow.data.context", "train")]
        (root / tracking.STAMP).unlink()  # reads everything again
    with sqlite3.connect(root / "mlflow.db") as db:
        assert db.execute("select count(*) from inputs").fetchone() == (1,)
        db.execute("delete from tags where key = 'attnprior.imported'")  # as if the import had been cut
    db.close()
    tracking.track(root)
    assert len(stored(root)[0]["id-impulse"].inputs.dataset_inputs) == 1


def test_images_per_second_follow_from_the_times_of_the_rows(root):
    recorded = Path(__file__).parents[1] / "data/events/train_student.events.jsonl"
    path = log_path(root, "recorded")
    path.parent.mkdir(parents=True)
    shutil.copy(recorded, path)
    tracking.track(root)
    (run,) = stored(root)[0].values()
    events = [json.loads(line) for line in recorded.read_text().splitlines()]
    points = {step: value for step, value, _ in histories(root, run)["images_per_second"]}
    assert sorted(points) == list(range(2, 31))
    assert points[2] == pytest.approx(200 / (events[2]["time"] - events[1]["time"]))


def test_system_metrics_come_from_run_json_and_the_benchmark_and_only_once(root):
    from attnprior.workflow.mlflow_system import system_metrics

    job = "train_student/digits/impulse/seed0"
    log = EventLog(log_path(root, "impulse"))
    start(log, "id-impulse", job=job)
    log.metrics(7, row(7))
    log.end("finished", {}, ["runs/w.safetensors", "runs/run.json"])
    (root / "runs").mkdir()
    record = {"job": job, "invocation": "1234567890abcdef", "seconds": {"compute": 4.5, "startup": 1.5}}
    (root / "runs/run.json").write_text(json.dumps(record))
    log_path(root, "impulse").with_name("impulse.benchmark.tsv").write_text(
        "s\th:m:s\tmax_rss\tio_in\tio_out\tmean_load\tcpu_time\n6.2\t0:00:06\t351.17\tNA\t1.50\t98.23\t5.90\n"
    )
    assert tracking.track(root).points == 2
    assert tracking.track(root, extras=[system_metrics]).extras == ["6 new system metrics"]
    run = stored(root)[0]["id-impulse"]
    assert {k: v for k, v in run.data.metrics.items() if k.startswith("system/")} == {
        "system/compute_seconds": 4.5,
        "system/startup_seconds": 1.5,
        "system/max_rss_megabytes": 351.17,
        "system/disk_written_megabytes": 1.5,
        "system/cpu_utilization_percentage": 98.23,
        "system/cpu_seconds": 5.9,
    }
    assert tracking.track(root, extras=[system_metrics]).extras == ["0 new system metrics"]


def test_a_lost_point_is_noticed_by_the_comparison_that_these_tests_use(root):
    write_job(root, "impulse")
    tracking.track(root)
    with sqlite3.connect(root / "mlflow.db") as db:
        db.execute("delete from metrics where key = 'train_loss' and step = 3")
    db.close()
    assert missing_points(root, "id-impulse", log_path(root, "impulse")) == {("train_loss", 3)}


def test_tracking_again_changes_nothing(root):
    write_job(root, "impulse")
    write_job(root, "copy", end="failed")
    tracking.track(root)
    before = content(root)
    assert tracking.track(root).points == 0
    (root / tracking.STAMP).unlink()  # reads everything again
    assert tracking.track(root).points == 0
    assert content(root) == before


def test_only_new_points_are_added_while_a_job_runs(root):
    locks = root / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").touch()
    log = write_job(root, "impulse", steps=3, end=None)
    assert tracking.track(root).points == 6
    children, parents = stored(root)
    assert children["id-impulse"].info.status == parents["1234567890abcdef"].info.status == "RUNNING"
    log.metrics(3, row(3))
    log.metrics(4, {"train_loss": float("nan")})
    assert tracking.track(root).points == 3
    log.end("finished", {"val_top1": 0.5}, [])
    assert tracking.track(root).points == 1
    assert stored(root)[1]["1234567890abcdef"].info.status == "RUNNING"  # more jobs may follow
    (locks / "0.output.lock").unlink()
    assert tracking.pending(root)
    tracking.track(root)
    children, parents = stored(root)
    assert children["id-impulse"].info.status == parents["1234567890abcdef"].info.status == "FINISHED"
    points = histories(root, children["id-impulse"])["train_loss"]
    assert [p[0] for p in points] == [0, 1, 2, 3, 4]
    assert math.isnan(points[-1][1])


def test_a_half_written_line_waits_for_its_end(root):
    write_job(root, "impulse", steps=3, end=None)
    path = log_path(root, "impulse")
    whole = path.read_bytes()
    line = json.dumps({"event": "metrics", "time": SECONDS, "step": 3, "values": row(3)}).encode()
    path.write_bytes(whole + line[:25])
    assert tracking.track(root).points == 6
    path.write_bytes(whole + line + b"\n")
    assert tracking.track(root).points == 2
    assert missing_points(root, "id-impulse", path) == set()


def test_a_resumed_attempt_repeats_steps_without_doubles(root):
    write_job(root, "impulse", steps=4, end=None)
    path = log_path(root, "impulse")
    with open(path, "ab") as f:
        f.write(b'{"event":"metr')  # killed here
    tracking.track(root)
    assert stored(root)[0]["id-impulse"].info.status == "KILLED"
    log = EventLog(path)
    start(
        log, "id-impulse", resume=True, attempt=2, resumed_epoch=2, job="train_student/digits/impulse/seed0"
    )
    for step in range(2, 6):
        log.metrics(step, row(step))
    log.end("finished", {"val_top1": 0.5}, [])
    assert tracking.track(root).points == 5
    children, _ = stored(root)
    run = children["id-impulse"]
    assert (run.info.status, run.data.tags["attempt"]) == ("FINISHED", "2")
    points = histories(root, run)
    assert [p[0] for p in points["train_loss"]] == [0, 1, 2, 3, 4, 5]
    assert [p[1] for p in points["val_top1"]] == [row(k)["val_top1"] for k in range(6)]


def test_a_stopped_job_goes_on_in_its_run_without_doubles_or_an_error(root):
    log = write_job(root, "a", steps=3, end=None)
    log.end("stopped", {}, [], "stopped by SIGTERM after epoch 3 step 5; run again to continue")
    tracking.track(root)
    run = stored(root)[0]["id-a"]
    assert run.info.status == "KILLED" and "attnprior.error" not in run.data.tags
    log = EventLog(log_path(root, "a"))
    start(log, "id-a", resume=True, job="train_student/digits/a/seed0", attempt=2, resumed_epoch=2)
    for step in range(3, 5):
        log.metrics(step, row(step))
    log.end("finished", {"val_top1": 0.5}, [])
    tracking.track(root)
    run = stored(root)[0]["id-a"]
    assert run.info.status == "FINISHED" and "attnprior.error" not in run.data.tags
    assert [p[:2] for p in histories(root, run)["val_top1"]] == [(s, s / 100) for s in range(5)]


def test_epochs_of_an_attempt_whose_log_was_removed_are_there_once(root):
    """Snakemake removes the log of a job that it runs again; history.csv has the epochs of all attempts."""
    path, record = log_path(root, "impulse"), root / "runs/x/run.json"
    write_job(root, "impulse", steps=3, end=None)
    tracking.track(root)
    path.unlink()
    log = EventLog(path)
    again = {"attempt": 2, "resumed_epoch": 1}
    start(log, "id-impulse", resume=True, **again, job="train_student/digits/impulse/seed0")
    log.metrics(2, {"lr": 0.1, **row(2)})
    tracking.track(root)
    log.metrics(3, {"lr": 0.1, **row(3)})
    record.parent.mkdir(parents=True)
    lines = [f"{s},0.1,{row(s)['train_loss']!r},{row(s)['val_top1']!r}\n" for s in range(4)]
    record.with_name("history.csv").write_text("epoch,lr,train_loss,val_top1\n" + "".join(lines))
    begun = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    record.write_text(json.dumps({"invocation": "1234567890abcdef", "started": begun}))
    log.end("finished", {"val_top1": 0.5}, ["runs/x/history.csv", "runs/x/run.json"])
    tracking.track(root)
    points = histories(root, stored(root)[0]["id-impulse"])
    assert [p[0] for p in points["train_loss"]] == [0, 1, 2, 3]
    assert [p[1] for p in points["val_top1"]] == [row(k)["val_top1"] for k in range(4)]


def test_a_fresh_start_ends_the_run_it_replaces(root):
    write_job(root, "impulse", steps=2, end=None)
    (root / ".snakemake/locks").mkdir(parents=True)
    (root / ".snakemake/locks/0.lock").touch()
    tracking.track(root)
    log = EventLog(log_path(root, "impulse"))
    start(log, "id-second", job="train_student/digits/impulse/seed0")
    tracking.track(root)
    children, _ = stored(root)
    assert children["id-impulse"].info.status == "KILLED"
    assert children["id-second"].info.status == "RUNNING"


def test_a_log_with_two_job_ids_makes_two_runs(root):
    write_job(root, "impulse", steps=2, end=None)
    log = EventLog(log_path(root, "impulse"))
    start(log, "id-second", resume=True, job="train_student/digits/impulse/seed0")
    log.end("failed", {}, [], "--threads 1: too few")
    tracking.track(root)
    children, parents = stored(root)
    assert children["id-impulse"].info.status == "KILLED"
    assert children["id-second"].info.status == "FAILED"
    assert children["id-second"].data.tags["attnprior.error"] == "--threads 1: too few"
    assert parents["1234567890abcdef"].info.status == "FAILED"


def test_jobs_of_a_bare_snakemake_share_a_parent(root):
    write_job(root, "impulse", invocation=None)
    write_job(root, "copy", invocation=None)
    tracking.track(root)
    children, parents = stored(root)
    assert list(parents) == ["snakemake"]
    assert {r.data.tags["mlflow.parentRunId"] for r in children.values()} == {
        parents["snakemake"].info.run_id
    }


def test_more_points_than_one_call_takes(root):
    log = EventLog(log_path(root, "long"))
    start(log, "id-long", params={f"models.m{k}": {"width": k} for k in range(230)})
    for step in range(900):
        log.metrics(step, row(step))
    log.end("finished", {}, [])
    assert tracking.track(root).points == 1800
    assert missing_points(root, "id-long", log_path(root, "long")) == set()
    assert len(stored(root)[0]["id-long"].data.params) == 230


def test_a_cut_import_is_completed(root, monkeypatch):
    from attnprior.workflow.mlflow_store import Store

    log = EventLog(log_path(root, "long"))
    start(log, "id-long")
    for step in range(900):
        log.metrics(step, row(step))
    original, calls = Store._log, []

    def cut(self, run_id, points, params, tags):
        if not calls:
            calls.append(1)
            original(self, run_id, points[:700], params, {})
            raise RuntimeError("killed here")
        original(self, run_id, points, params, tags)

    monkeypatch.setattr(Store, "_log", cut)
    assert "killed here" in tracking.track(root).warning
    assert tracking.track(root).points == 1100
    assert missing_points(root, "id-long", log_path(root, "long")) == set()


def test_a_log_that_was_lost_between_attempts_makes_no_doubles(root):
    write_job(root, "impulse", steps=4, end=None)
    tracking.track(root)
    log_path(root, "impulse").unlink()
    log = EventLog(log_path(root, "impulse"))
    start(log, "id-impulse", resume=True, attempt=2, job="train_student/digits/impulse/seed0")
    for step in range(3, 6):
        log.metrics(step, row(step))
    log.end("finished", {}, [])
    assert tracking.track(root).points == 4
    run = stored(root)[0]["id-impulse"]
    assert [p[0] for p in histories(root, run)["train_loss"]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("passes", ["one process", "a process each"])
def test_a_shorter_log_that_grows_while_it_is_followed_makes_no_doubles(root, passes):
    """As when a node dies: its newest epochs were seen and tracked, and another node repeats them."""
    tracker, total = tracking.Tracker(root, lambda: None), 0

    def follow():
        nonlocal total
        if passes == "a process each":
            return tracking.track(root).points
        before, total = total, tracker.try_pass().points
        return total - before

    write_job(root, "impulse", steps=6, end=None)
    assert follow() == 12
    path = log_path(root, "impulse")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))  # start and epochs 0 to 2
    log = EventLog(path)
    start(log, "id-impulse", resume=True, attempt=2, job="train_student/digits/impulse/seed0")
    assert follow() == 0
    for step in range(3, 8):
        log.metrics(step, row(step))
        assert follow() == (2 if step > 5 else 0)
    log.end("finished", {}, [])
    follow()
    run = stored(root)[0]["id-impulse"]
    assert [p[0] for p in histories(root, run)["train_loss"]] == list(range(8))
    assert run.info.status == "FINISHED"


def test_the_rate_of_an_attempt_whose_log_is_gone_is_no_damage(root):
    def attempt(number, resumed, seconds, steps, end=()):
        log = EventLog(log_path(root, "impulse"))
        start(log, "id-impulse", resume=False, attempt=number, resumed_epoch=resumed, images=10)
        for step in steps:
            log.metrics(step, row(step))
        if end:
            log.end(*end)
        events = [json.loads(line) for line in log_path(root, "impulse").read_text().splitlines()]
        for k, event in enumerate(events):
            event["time"] = SECONDS + 100 * number + k * seconds
        log_path(root, "impulse").write_text("".join(json.dumps(e) + "\n" for e in events))

    attempt(1, 0, 2.0, range(1, 6))  # killed, its state saved after 3
    assert tracking.track(root).warning is None
    attempt(2, 3, 5.0, range(4, 7), ("finished", {"val_top1": 0.5}, []))
    assert tracking.track(root).warning is None
    os.utime(root / "mlflow.db")  # somebody opened it
    assert tracking.track(root).warning is None
    (run,) = stored(root)[0].values()
    assert {s: v for s, v, _ in histories(root, run)["images_per_second"]} == {
        **dict.fromkeys((2, 3, 4, 5), 5.0),
        6: 2.0,
    }
    with sqlite3.connect(root / "mlflow.db") as db:
        db.execute("update metrics set value = 0.25 where key = 'train_loss' and step = 2")
        db.execute("update metrics set value = 0.25 where key = 'train_loss' and step = 4")
    db.close()
    assert "mlflow.db is damaged (train_loss" in tracking.track(root).warning


@pytest.mark.parametrize("part", [0.001, 0.015, 0.3, 0.97])
def test_a_store_cut_anywhere_is_named_as_damaged_with_what_to_do(root, part):
    write_job(root, "impulse", steps=2)
    tracking.track(root)
    store = root / "mlflow.db"
    content = store.read_bytes()
    store.write_bytes(content[: int(len(content) * part)])
    warning = tracking.track(root).warning
    assert "mlflow.db is damaged (" in warning and "delete it" in warning


def test_a_run_deleted_by_hand_stays_deleted(root):
    write_job(root, "impulse", steps=2, end=None)
    tracking.track(root)
    client(root).delete_run(stored(root)[0]["id-impulse"].info.run_id)
    write_job(root, "impulse", steps=4)
    assert tracking.track(root).warning is None
    assert stored(root)[0] == {}


def test_tables_are_attached_to_the_run_of_compare_and_weights_are_not(root):
    out = root / "results/digits"
    out.mkdir(parents=True)
    names = ["table.md", "table.csv", "metrics.json", "results.csv", "weights.safetensors"]
    for name in names:
        (out / name).write_text(name)
    log = EventLog(root / "logs/compare/digits.events.jsonl")
    start(log, "id-compare", job="compare/digits")
    log.end("finished", {"model_i/impulse/top1_mean": 0.8}, [f"results/digits/{n}" for n in names])
    tracking.track(root)
    run = stored(root)[0]["id-compare"]
    assert run.data.metrics == {"final/model_i/impulse/top1_mean": 0.8}
    found = {a.path for a in client(root).list_artifacts(run.info.run_id, "results/digits")}
    assert found == {f"results/digits/{n}" for n in ("table.md", "table.csv", "metrics.json")}


def test_tables_that_lie_here_are_not_attached_to_the_run_of_an_experiment(root):
    (root / "results/digits").mkdir(parents=True)
    (root / "results/digits/table.md").write_text("of the checkout, not of the experiment")
    log = EventLog(root / "logs/experiments/fewer/compare/digits.events.jsonl")
    start(log, "id-fewer", job="compare/digits", invocation="fewer")
    log.end("finished", {"model_i/impulse/top1_mean": 0.7}, ["results/digits/table.md"])
    tracking.track(root)
    children, parents = stored(root)
    assert list(parents) == ["fewer"]
    assert client(root).list_artifacts(children["id-fewer"].info.run_id) == []


def test_a_log_of_nonsense_is_passed_over(root):
    path = log_path(root, "odd")
    path.parent.mkdir(parents=True)
    path.write_bytes(
        b'\xff\xfe\n{"event":"metrics","time":1,"step":1,"values":{}}\n[]\n{"event":"start"}\n{}\n"x"\n'
    )
    write_job(root, "impulse")
    assert tracking.track(root).warning is None
    assert list(stored(root)[0]) == ["id-impulse"]


def test_metrics_that_only_one_row_has_and_odd_names_are_kept(root):
    log = EventLog(log_path(root, "odd"))
    start(log, "id-odd")
    log.metrics(0, {"loss": 1.0})
    log.metrics(1, {"loss": 0.5, "prob<e>": 0.25})
    tracking.track(root)
    assert stored(root)[0]["id-odd"].data.metrics == {"loss": 0.5, "prob_e_": 0.25}


def test_a_tracked_project_is_recognised_without_importing_mlflow(root):
    write_job(root, "impulse")
    tracking.track(root)
    script = (
        "import sys\nfrom attnprior.workflow import tracking\n"
        "print(tracking.pending('.'), tracking.track('.').points)\n"
        "print('mlflow' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=ENV, capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines() == ["False 0", "False"]


def test_pending_says_when_something_is_new(root, monkeypatch):
    assert not tracking.pending(root)  # no logs at all
    log = write_job(root, "impulse", end=None)
    assert tracking.pending(root)
    tracking.track(root)
    assert not tracking.pending(root)
    log.metrics(9, row(9))
    assert tracking.pending(root)
    tracking.track(root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'other.db'}")
    assert tracking.pending(root)


def test_default_store_is_an_absolute_path_in_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking.tracking_uri(".") == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.invalid")
    assert tracking.tracking_uri(".") == "http://example.invalid"


def test_without_logs_no_store_is_made(tmp_path):
    assert tracking.track(tmp_path).warning is None
    assert list(tmp_path.iterdir()) == []


def test_following_adds_points_between_passes_and_ends_with_a_last_one(root):
    log = write_job(root, "impulse", steps=1, end=None)
    seen = []

    def wait():
        if seen:
            seen.append(len(histories(root, stored(root)[0]["id-impulse"])["train_loss"]))
        else:
            seen.append(0)
        log.metrics(len(seen), row(len(seen)))
        return len(seen) < 4

    tracking.track(root, follow=wait)
    assert seen == [0, 2, 3, 4]
    assert missing_points(root, "id-impulse", log_path(root, "impulse")) == set()


def test_a_store_deleted_while_following_is_made_again(root, empty_store):
    log = write_job(root, "impulse", steps=1, end=None)
    passes = []

    def wait():
        passes.append(1)
        if len(passes) == 2:
            (root / "mlflow.db").unlink()
        log.metrics(len(passes), row(len(passes)))
        return len(passes) < 3

    assert tracking.track(root, follow=wait).warning is None
    assert missing_points(root, "id-impulse", log_path(root, "impulse")) == set()


def warned(capsys):
    err = capsys.readouterr().err
    assert err.startswith("warning: MLflow at ")
    assert err.count("\n") == 1
    return err


def test_a_server_out_of_reach_costs_one_warning_and_no_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    write_job(tmp_path, "impulse")
    begun = time.perf_counter()
    summary = tracking.track(tmp_path)
    assert time.perf_counter() - begun < 2
    assert "refused" in summary.warning
    assert "not up to date" in str(summary)
    assert "results are not affected" in warned(capsys)


def test_a_server_that_answers_nonsense_or_nothing_costs_one_warning(tmp_path, monkeypatch, capsys):
    import socket

    with socket.socket() as silent:  # accepts connections, never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        write_job(tmp_path, "impulse")
        begun = time.perf_counter()
        assert tracking.track(tmp_path).warning
        assert time.perf_counter() - begun < 20
    warned(capsys)


def test_a_broken_store_costs_one_warning_while_following(root, capsys):
    (root / "mlflow.db").write_bytes(b"this is no data base" * 100)
    write_job(root, "impulse")
    rounds = iter([True, True, False])
    assert "not a database" in tracking.track(root, follow=lambda: next(rounds)).warning
    warned(capsys)


def set_revision(root, revision):
    with sqlite3.connect(root / "mlflow.db") as db:
        db.execute("update alembic_version set version_num = ?", (revision,))
    db.close()


def test_a_store_of_a_newer_mlflow_costs_one_warning(root, capsys):
    set_revision(root, "0123456789ab")
    write_job(root, "impulse")
    assert tracking.track(root).warning
    assert "made by a newer MLflow than the one installed (schema 0123456789ab)" in warned(capsys)


def test_a_store_of_an_older_mlflow_costs_one_warning_that_says_how_to_upgrade(root, capsys):
    set_revision(root, "f5a4f2784254")
    write_job(root, "impulse")
    assert tracking.track(root).warning
    uri = f"sqlite:///{root / 'mlflow.db'}"
    assert f"back it up, then run: mlflow db upgrade {uri};" in warned(capsys)


def test_a_data_base_of_something_else_is_left_as_it_is(tmp_path, capsys):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as db:
        db.execute("create table alembic_version (version_num text)")
        db.execute("create table notes (text text)")
    db.close()
    before = path.read_bytes()
    write_job(tmp_path, "impulse")
    rounds = iter([True, True, False])
    assert tracking.track(tmp_path, follow=lambda: next(rounds)).warning
    assert "no MLflow store but something else's; name another store in MLFLOW_TRACKING_URI" in warned(capsys)
    assert path.read_bytes() == before


def test_a_store_that_cannot_be_written_costs_one_warning(root, capsys):
    path = root / "mlflow.db"
    content = bytearray(path.read_bytes())
    content[18] = 3  # SQLite's own mark for a file that may only be read, whoever asks
    path.write_bytes(content)
    write_job(root, "impulse")
    assert tracking.track(root).warning
    assert "cannot be written; make it writable, or name another store" in warned(capsys)
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_store_really_made_by_an_older_mlflow_works_after_the_upgrade_that_is_advised(tmp_path, capsys):
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    engine = create_engine(uri)
    Base.metadata.create_all(engine)
    engine.dispose()
    command.upgrade(_get_alembic_config(uri), "f5a4f2784254")  # MLflow 2.19
    write_job(tmp_path, "impulse")
    assert "older MLflow" in tracking.track(tmp_path).warning
    advice = warned(capsys).partition("run: ")[2].partition(";")[0].split()
    subprocess.run([sys.executable, "-m", *advice], env=ENV, capture_output=True, check=True)
    assert tracking.track(tmp_path).warning is None
    assert missing_points(tmp_path, "id-impulse", log_path(tmp_path, "impulse")) == set()


def test_a_deleted_experiment_costs_one_warning(root, capsys):
    c = client(root)
    c.delete_experiment(c.get_experiment_by_name("attnprior").experiment_id)
    write_job(root, "impulse")
    assert "mlflow experiments restore" in tracking.track(root).warning
    warned(capsys)


def test_pages_are_served_on_this_machine_only(tmp_path):
    with pytest.raises(Exception, match=r"host 0\.0\.0\.0: MLflow's pages have no log-in"):
        mlflow_ui.ui(tmp_path, host="0.0.0.0")


def test_reading_keeps_the_first_of_repeated_steps(tmp_path):
    write_job(tmp_path, "impulse", steps=2, end=None)
    log = EventLog(log_path(tmp_path, "impulse"))
    start(log, "id-impulse", resume=True, job="train_student/digits/impulse/seed0")
    log.metrics(1, {"train_loss": 0.5, "extra": 1.0})
    (job,) = read_jobs(log_path(tmp_path, "impulse"))
    points = list(job.points(0))
    assert [(k, s) for k, _, _, s in points] == [
        *[("train_loss", 0), ("val_top1", 0), ("train_loss", 1), ("val_top1", 1), ("extra", 1)]
    ]


@pytest.mark.slow
def test_a_deleted_store_is_rebuilt_with_the_same_content(root):
    write_job(root, "impulse")
    write_job(root, "copy", end="failed")
    write_job(root, "other", invocation=None, end=None)
    tracking.track(root)
    before = content(root)
    (root / "mlflow.db").unlink()
    assert tracking.pending(root)
    assert tracking.track(root).points == 11 + 10 + 10
    assert content(root) == before


@pytest.mark.slow
def test_two_first_uses_at_once_make_one_sound_store(tmp_path):
    for name in ("impulse", "copy", "distil"):
        write_job(tmp_path, name)
    command = [sys.executable, "-m", "attnprior.workflow.tracking"]
    both = [subprocess.Popen(command, cwd=tmp_path, env=ENV, stderr=subprocess.PIPE) for _ in range(2)]
    assert [p.communicate(timeout=200)[1] for p in both] == [b"", b""]
    children, parents = stored(tmp_path)
    assert sorted(children) == ["id-copy", "id-distil", "id-impulse"]
    assert len(parents) == 1
    for name in ("impulse", "copy", "distil"):
        assert missing_points(tmp_path, f"id-{name}", log_path(tmp_path, name)) == set()


@pytest.mark.slow
def test_the_background_process_follows_until_its_input_ends(root):
    log = write_job(root, "impulse", steps=2, end=None)
    command = [sys.executable, "-m", "attnprior.workflow.tracking", "--follow"]
    child = subprocess.Popen(command, cwd=root, env=ENV, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    log.end("finished", {}, [])
    assert child.communicate(timeout=100)[1] == b""
    assert child.returncode == 0
    assert stored(root)[0]["id-impulse"].info.status == "FINISHED"
