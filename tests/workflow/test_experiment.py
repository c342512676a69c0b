"""Logs of an experiment outlive the folder in which DVC ran it."""

from pathlib import Path

import pytest

from attnprior.workflow import experiment


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The folder of the experiment "fewer", with a log, below the checkout that it belongs to."""
    folder = tmp_path / ".dvc/tmp/exps/standalone/tmp1"
    (folder / "logs/evaluate").mkdir(parents=True)
    (folder / "logs/evaluate/seed0.log").write_text("new")
    monkeypatch.setenv("DVC_EXP_NAME", "fewer")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    return folder


def test_logs_are_copied_to_the_checkout_beside_its_own(elsewhere, tmp_path):
    (tmp_path / "logs/evaluate").mkdir(parents=True)
    (tmp_path / "logs/evaluate/seed0.log").write_text("its own")
    experiment.keep_logs(elsewhere)
    experiment.keep_logs(elsewhere)  # a second stage of the same experiment
    kept = tmp_path / "logs/experiments/fewer/evaluate/seed0.log"
    assert kept.read_text() == "new"
    assert (tmp_path / "logs/evaluate/seed0.log").read_text() == "its own"
    assert experiment.is_of_experiment(kept, tmp_path)
    assert not experiment.is_of_experiment(tmp_path / "logs/evaluate/seed0.log", tmp_path)


def test_nothing_is_copied_outside_of_an_experiment_or_where_it_runs_in_the_checkout(elsewhere, monkeypatch):
    monkeypatch.setenv("DVC_ROOT", str(elsewhere))
    experiment.keep_logs(elsewhere)
    monkeypatch.delenv("DVC_EXP_NAME")
    experiment.keep_logs(elsewhere)
    assert not list(Path(elsewhere).rglob("experiments"))


def test_a_checkout_that_cannot_be_written_costs_the_logs_only(elsewhere, tmp_path):
    (tmp_path / "logs").write_text("a file where the folder should be")
    experiment.keep_logs(elsewhere)
    assert (tmp_path / "logs").is_file()
