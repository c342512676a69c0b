"""No `kill -9` makes a rerun lie: bytes, events, MLflow and dvc.lock are as if nothing had happened."""

import itertools
import os
import random
from collections import Counter

import pytest

from tests.faults import disturb, study

KILLS = int(os.environ.get("ATTNPRIOR_TEST_KILLS", "30"))
SEED = int(os.environ.get("ATTNPRIOR_TEST_SEED", "20240501"))
IN_TRAINING = 0.5  # of the kills, at least
# What is killed in one run, one after the other: it outlives its tracker, and the jobs beside the killed one.
RUNS = (
    ("attnprior",),
    ("tracker", "job"),
    ("snakemake",),
    ("job", "attnprior"),
    ("tracker", "snakemake"),
    ("job", "snakemake"),
    ("tracker", "attnprior"),
)


def assert_consistent(project, expected, when):
    """Nothing that is there differs from the undisturbed run, and nothing else is recorded."""
    assert study.altered(project, expected) == [], when
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
    kills, rounds, runs = [], 0, itertools.cycle(RUNS)
    while len(kills) < KILLS:
        ended = disturb.kill(project, next(runs), rng)
        kills += ended.kills
        when = f"kill {len(kills)}, {ended.kills}, seed {SEED}:\n{ended.out}\n{ended.err}"
        assert "Traceback" not in ended.out + ended.err, when
        assert_consistent(project, expected, when)
        last = ended.kills[-1].victim if ended.kills else None
        if last == "job" and ended.status:
            assert ended.status == 1 and "(log: logs/" in disturb.errors(ended.err)[0], when
        if last == "snakemake" and ended.status:
            assert ended.status == 1 and "snakemake was killed (SIGKILL)" in ended.err, when
        if ended.status == 0:
            project.attnprior("run", **study.TRACKED)  # what a killed tracker left
            assert_finished(project, expected, points)
            disturb.clear(project)
            rounds += 1
    done = project.attnprior("run", **study.TRACKED)
    assert "Traceback" not in done.stderr
    project.attnprior("run", **study.TRACKED)
    assert_finished(project, expected, points)
    victims = Counter(k.victim for k in kills)
    named = ", ".join(f"{n} of {v}" for v, n in sorted(victims.items()))
    in_training = sum(k.in_training for k in kills)
    measured(
        f"{len(kills)} kills ({named}), {in_training} of them between epochs of a training,"
        f" {rounds + 1} studies finished; after each, what was there of {len(expected)} files was compared"
    )
    assert in_training >= IN_TRAINING * len(kills)
    assert min(victims.values()) >= KILLS // 8 and len(victims) == 4
