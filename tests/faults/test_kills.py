"""No `kill -9` makes a rerun lie: bytes, events, MLflow and dvc.lock are as if nothing had happened."""

import os
import random

import pytest

from tests.faults import disturb, study

KILLS = int(os.environ.get("ATTNPRIOR_TEST_KILLS", "30"))
SEED = int(os.environ.get("ATTNPRIOR_TEST_SEED", "20240501"))
IN_TRAINING = 0.5  # of the kills, at least


def assert_consistent(project, expected, when):
    """Nothing that is there differs from the undisturbed run, and nothing else is recorded."""
    found = project.contents()
    assert [p for p in found if found[p] != expected[p]] == [], when
    assert study.wrong_records(project, expected) == [], when


def assert_finished(project, expected, undisturbed_points):
    assert study.differing(project, expected) == []
    assert project.planned() == set()
    assert study.points(project) == undisturbed_points
    assert study.stored_points(project) == study.expected_points(project)


@pytest.mark.faults
def test_kills_at_random_moments(undisturbed, expected, tmp_path, measured):
    rng = random.Random(SEED)
    project = undisturbed.copy(tmp_path / "project")
    disturb.clear(project)
    points = study.points(undisturbed)
    kinds = [*disturb.VICTIMS, "attnprior"]
    hits = in_training = rounds = 0
    while hits < KILLS:
        victim = kinds[hits % len(kinds)]
        ended = disturb.kill(project, victim, rng)
        when = f"kill {hits} of {victim}, seed {SEED}:\n{ended.out}\n{ended.err}"
        assert "Traceback" not in ended.out + ended.err, when
        assert_consistent(project, expected, when)
        hits += ended.hit
        in_training += ended.in_training
        if victim == "job" and ended.hit and ended.status:
            assert ended.status == 1 and "(log: logs/" in disturb.errors(ended.err)[0], when
        if victim == "snakemake" and ended.hit and ended.status:
            assert ended.status == 1 and "snakemake was killed (SIGKILL)" in ended.err, when
        if ended.status == 0:
            project.attnprior("run", **study.TRACKED)  # what a killed tracker left
            assert_finished(project, expected, points)
            disturb.clear(project)
            rounds += 1
    last = project.attnprior("run", **study.TRACKED)
    assert "Traceback" not in last.stderr
    project.attnprior("run", **study.TRACKED)
    assert_finished(project, expected, points)
    measured(
        f"{hits} kills, {in_training} of them between epochs of a training, {rounds + 1} studies finished;"
        f" after each, what was there of {len(expected)} files was compared"
    )
    assert in_training >= IN_TRAINING * hits
