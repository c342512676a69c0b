"""Jobs killed at any moment end with the bytes of an undisturbed run."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.stages import commands

STUDENT = ("weights.safetensors", "history.csv", "predictions.safetensors")
TEACHER = ("weights.safetensors", "history.csv", "metrics.json")


def finish(process):
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def kill_after(process, text):
    """Read the log of `process` up to a line that starts with `text`, wait a moment, and kill it."""
    for line in process.stdout:
        if line.startswith(text):
            break
    time.sleep(random.SystemRandom().uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "ended before it was killed"


def check(project, rule, arguments, folder, names, moments, events):
    finish(commands.start(rule, arguments, project))
    expected = {name: (project / folder / name).read_bytes() for name in names}
    for name in names:
        (project / folder / name).unlink()
    (project / folder / "run.json").unlink()
    for moment in moments:
        kill_after(commands.start(rule, arguments, project, ATTNPRIOR_CHECKPOINT_SECONDS="0"), moment)
        assert not any((project / folder / name).exists() for name in (*names, "run.json"))
    out = finish(commands.start(rule, arguments, project))
    assert "resuming attempt" in out
    for name in names:
        assert (project / folder / name).read_bytes() == expected[name], name
    found = [json.loads(line) for line in (project / events).read_text().splitlines()]
    starts = [e for e in found if e["event"] == "start"]
    assert [s["attempt"] for s in starts] == list(range(1, len(moments) + 2))
    assert len({s["job_id"] for s in starts}) == 1
    assert starts[-1]["resumed_epoch"] > starts[0]["resumed_epoch"] == 0
    assert json.loads((project / folder / "run.json").read_text())["attempts"] == len(moments) + 1
    assert not (project / "checkpoints" / folder).exists()


@pytest.mark.parametrize(("name", "epochs"), [("distil", 60), ("probe", 200)])
def test_a_student_killed_twice_ends_with_the_same_bytes(project, name, epochs):
    recipe = {**commands.RECIPE, "epochs": epochs}
    first, second = sorted(random.SystemRandom().sample(range(2, 50), 2))
    arguments = commands.train(name, recipe=recipe)
    moments = (f"epoch {first}:", f"epoch {second}:")
    check(
        project,
        "train_student",
        arguments,
        f"runs/digits/{name}/seed0",
        STUDENT,
        moments,
        f"logs/train_student/{name}.seed0.events.jsonl",
    )


def test_a_teacher_killed_in_training_ends_with_the_same_bytes(project):
    (project / "teachers").unlink()
    recipe = {**commands.PRETRAINING, "epochs": 12}
    moment = f"epoch {random.SystemRandom().randrange(2, 10)}:"
    check(
        project,
        "pretrain_teacher",
        commands.teacher(recipe=recipe),
        "teachers/digits/mae/seed0",
        TEACHER,
        (moment,),
        "logs/pretrain_teacher/mae.seed0.events.jsonl",
    )


def test_other_parameters_ignore_the_checkpoint_of_a_killed_run(project):
    long = commands.train("plain", recipe={**commands.RECIPE, "epochs": 200})
    kill_after(commands.start("train_student", long, project, ATTNPRIOR_CHECKPOINT_SECONDS="0"), "epoch 3:")
    short = commands.train("plain", recipe={**commands.RECIPE, "epochs": 2})
    out = finish(commands.start("train_student", short, project))
    assert "is of other parameters, inputs, code or versions; training starts afresh" in out
    assert len((project / "runs/digits/plain/seed0/history.csv").read_text().splitlines()) == 3
    events = (project / "logs/train_student/plain.seed0.events.jsonl").read_text().splitlines()
    assert json.loads(events[0])["attempt"] == 1 and len(events) == 4


def test_a_job_that_another_process_trains_is_refused_and_left_alone(project):
    arguments = commands.train("plain", recipe={**commands.RECIPE, "epochs": 2000})
    orphan = commands.start("train_student", arguments, project)
    try:
        for line in orphan.stdout:
            if line.startswith("epoch 2:"):
                break
        second = commands.start("train_student", arguments, project)
        _, error = second.communicate(timeout=60)
        assert second.returncode == 1 and error.count("\n") == 1
        assert f"process {orphan.pid} is training this job" in error
        events = Path(project, "logs/train_student/plain.seed0.events.jsonl").read_text()
        assert events.count('"event":"start"') == 1 and '"failed"' not in events
    finally:
        orphan.kill()
        orphan.communicate()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_job_says_so_and_can_be_resumed(project, signal_number):
    arguments = commands.train("plain", recipe={**commands.RECIPE, "epochs": 300})
    process = commands.start("train_student", arguments, project, ATTNPRIOR_CHECKPOINT_SECONDS="0")
    for line in process.stdout:
        if line.startswith("epoch 2:"):
            break
    process.send_signal(signal_number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 75, signal.SIGINT: 130}[signal_number]
    log = project / "logs/train_student/plain.seed0.events.jsonl"
    assert json.loads(log.read_text().splitlines()[-1])["status"] == "stopped"
    assert (project / "checkpoints/runs/digits/plain/seed0/state.pt").exists()
