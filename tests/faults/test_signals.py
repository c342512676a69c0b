"""SIGINT and SIGTERM at any moment end a run soon, with one line, and it can be resumed."""

import os
import random
import signal
import time

import pytest

from tests.faults import disturb, study

SIGNALS = int(os.environ.get("ATTNPRIOR_TEST_SIGNALS", "8"))
SEED = int(os.environ.get("ATTNPRIOR_TEST_SEED", "20240503"))


@pytest.mark.faults
def test_signals_at_random_moments(undisturbed, expected, tmp_path, measured):
    rng = random.Random(SEED)
    project = undisturbed.copy(tmp_path / "project")
    disturb.clear(project)
    sent = in_training = 0
    while sent < SIGNALS:
        number = (signal.SIGTERM, signal.SIGINT)[sent % 2]
        whole_group = number == signal.SIGINT and rng.random() < 0.5  # what a terminal does
        run, before, more = disturb.Run(project), disturb.epochs(project), rng.randrange(1, 8)
        if rng.random() < 0.6:
            hit = run.until(lambda run=run, n=before + more: disturb.epochs(project) >= n)
        else:
            at = time.monotonic() + rng.uniform(1.0, 15)
            hit = run.until(lambda at=at: time.monotonic() >= at)
        was_training = disturb.training(project)
        if hit and run.process.poll() is None:
            (os.killpg if whole_group else os.kill)(run.process.pid, number)
        ended = run.finish(timeout=120)
        when = f"{number.name} {sent}, seed {SEED}, group {whole_group}\n{ended.out}\n{ended.err}"
        assert "Traceback" not in ended.out + ended.err, when
        if ended.status:
            assert ended.status == 128 + number, when
            assert len(disturb.errors(ended.err)) == 1, when
            assert "resume" in ended.err or "goes on" in ended.err, when
            sent += 1
            in_training += was_training
        assert study.altered(project, expected) == [], when
        assert study.wrong_records(project, expected) == [], when
        if ended.status == 0:
            assert study.differing(project, expected) == []
            disturb.clear(project)
    project.attnprior("run", **study.TRACKED)
    assert study.differing(project, expected) == []
    assert study.stored_points(project) == study.expected_points(project)
    measured(
        f"{sent} signals, {in_training} of them between epochs of a training; {len(expected)} files compared"
    )
    assert in_training >= sent // 3
