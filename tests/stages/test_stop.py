"""Jobs that are asked to stop in the midst of an epoch: status 75, and the bytes of an undisturbed run."""

import json
import random
import re
import signal
import time

import pytest

from tests.stages import commands
from tests.stages.test_resume import STUDENT, TEACHER, finish

CASES = {
    "student": (
        "train_student",
        # 30 steps an epoch
        commands.train("distil", recipe={**commands.RECIPE, "epochs": 12, "batch_size": 2, "ema": 0.9}),
        "runs/digits/distil/seed0",
        STUDENT,
        "logs/train_student/distil.seed0.events.jsonl",
    ),
    "teacher": (
        "pretrain_teacher",
        commands.teacher(
            recipe={**commands.PRETRAINING, "epochs": 6, "batch_size": 16, "accumulate": 2, "processes": 1}
        ),
        "teachers/digits/mae/seed0",
        TEACHER,
        "logs/pretrain_teacher/mae.seed0.events.jsonl",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_job_stopped_in_two_epochs_ends_with_the_same_bytes(project, case):
    rule, arguments, folder, names, log = CASES[case]
    if case == "teacher":
        (project / "teachers").unlink()
    finish(commands.start(rule, arguments, project))
    expected = {name: (project / folder / name).read_bytes() for name in names}
    for name in (*names, "run.json"):
        (project / folder / name).unlink()
    said = []
    for epoch, number in ((1, signal.SIGUSR1), (3, signal.SIGTERM)):
        process = commands.start(rule, arguments, project)
        for line in process.stdout:
            if line.startswith(f"epoch {epoch}:"):
                break
        time.sleep(random.SystemRandom().uniform(0.005, 0.05))
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 75
        at = re.fullmatch(
            rf"stopped by {number.name} after epoch (\d+) step (\d+); run again to continue\n", error
        )
        assert at is not None and int(at[1]) > epoch
        said.append(error.strip())
        assert not any((project / folder / name).exists() for name in (*names, "run.json"))
    kept = (project / log).read_text()
    (project / log).unlink()  # as Snakemake does before it runs a job again
    out = finish(commands.start(rule, arguments, project))
    assert "resuming attempt 3 after epoch" in out
    for name in names:
        assert (project / folder / name).read_bytes() == expected[name], name
    before, found = (
        [json.loads(line) for line in text.splitlines()] for text in (kept, (project / log).read_text())
    )
    assert [(e["status"], e["error"]) for e in before if e["event"] == "end"] == [
        ("stopped", t) for t in said
    ]
    assert found[-1]["status"] == "finished"
    rows = {e["step"]: e["values"] for e in found if e["event"] == "metrics"}
    steps = [e["step"] for e in found if e["event"] == "metrics"]
    assert steps == [*range(1, len(steps) + 1)]  # all of them, none twice
    assert all(rows[e["step"]] == e["values"] for e in before if e["event"] == "metrics")
    assert [e["step"] for e in found if e.get("filled")] == steps[: found[0]["resumed_epoch"]]
    assert not (project / "checkpoints" / folder).exists()


def test_a_time_limit_stops_the_job_and_a_wrong_one_is_told_first(project):
    rule, arguments, _, _, log = CASES["student"]
    process = commands.start(rule, arguments, project, ATTNPRIOR_TIME_LIMIT="0.5")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75
    assert error == "stopped by time limit after epoch 1 step 1; run again to continue\n"
    assert json.loads((project / log).read_text().splitlines()[-1])["status"] == "stopped"
    process = commands.start(rule, arguments, project, ATTNPRIOR_TIME_LIMIT="1h")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    assert (
        error == "error: ATTNPRIOR_TIME_LIMIT: '1h' is no number of seconds above 0; correct it or unset it\n"
    )
