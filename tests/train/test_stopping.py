"""A training that is asked to stop saves its state between two steps and goes on with the same bytes."""

import copy
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from attnprior.data.augment import Shifted
from attnprior.errors import UserError
from attnprior.train import stopping
from attnprior.train.checkpoint import Checkpoint
from attnprior.train.engine import train
from attnprior.train.stopping import Ended, Stopped
from attnprior.train.supervised import Supervised
from tests.train.small import AUGMENT, RECIPE, MemoryCheckpoint, NoCheckpoint, data, network
from tests.train.test_engine import same

MIXED = replace(AUGMENT, flip=0.5, mixup=0.8, cutmix=1.0, mix_probability=0.7, mix_switch=0.5)
LARS = {"optimizer": "lars", "momentum": 0.9, "trust": 0.01}
FULL = replace(RECIPE, ema=0.9, augment=MIXED, grad_clip=1.0, accumulate=2, batch_size=4, **LARS)
handled = partial(stopping.signals, to_the_end=False)
STEPS = 3  # of an epoch, in all recipes here


@pytest.fixture(autouse=True)
def _no_limit(monkeypatch):
    for name in ("ATTNPRIOR_TIME_LIMIT", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)


def run(checkpoint, recipe=FULL, method="none", sends=(), settings=None, evaluate=True):
    """Train; `sends` are (epoch, batch, signal): what comes while that batch is computed."""
    net = network(method, **(settings or {}))
    objective = Supervised(net, recipe, 0)

    def wrapped(batch):
        values = objective(batch)
        for epoch, number, which in sends:
            if (epoch, number) == (batch.epoch, batch.step):
                signal.raise_signal(which)
        return values

    images, labels = data()
    measured = (lambda: {"val_loss": float(net.predict(images.plain()).sum())}) if evaluate else None
    with handled():
        rows = train(net.student, wrapped, images, labels, recipe, 0, checkpoint, evaluate=measured)
    return net.student, rows


@pytest.mark.parametrize(
    ("recipe", "method", "settings"),
    [(FULL, "none", {}), (replace(RECIPE, drop_path=0.3, ema=0.5), "distil", {"weight": 3.0})],
)
def test_a_training_stopped_within_two_epochs_ends_with_the_same_bytes(tmp_path, recipe, method, settings):
    expected, rows = run(NoCheckpoint(tmp_path), recipe, method, settings=settings)
    checkpoint, moments = MemoryCheckpoint(tmp_path), [(0, 1), (1, 0), (2, 2)]
    for epoch, step in moments:
        number = step * recipe.accumulate  # the signal comes in the first batch of the step
        with pytest.raises(
            Stopped, match=rf"^stopped by SIGUSR1 after epoch {epoch + 1} step {step + 1}; run"
        ):
            run(checkpoint, recipe, method, [(epoch, number, signal.SIGUSR1)], settings)
        checkpoint.state = checkpoint.saves[-1]
        assert len(checkpoint.state["rows"]) == epoch and checkpoint.state["step"] == step + 1
    found, again = run(checkpoint, recipe, method, settings=settings)
    assert same(expected, found) and rows == again


def test_a_state_saved_after_any_step_leads_to_the_same_bytes(tmp_path):
    expected, rows = run(NoCheckpoint(tmp_path))
    checkpoint = MemoryCheckpoint(tmp_path, within=True)
    run(checkpoint)
    assert [(len(s["rows"]), s["step"]) for s in checkpoint.saves] == [
        *[(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0)]
    ]
    for state in checkpoint.saves[1::3]:
        resumed = NoCheckpoint(tmp_path)
        resumed.state = state
        found, again = run(resumed)
        assert same(expected, found) and rows == again


def test_an_evaluation_is_left_and_made_again(tmp_path):
    expected, rows = run(NoCheckpoint(tmp_path))
    checkpoint = MemoryCheckpoint(tmp_path)
    net = network()

    def evaluate():
        signal.raise_signal(signal.SIGTERM)
        return {"val_loss": float(net.predict(data()[0].plain()).sum())}

    with (
        pytest.raises(Stopped, match=rf"SIGTERM after epoch 1 step {STEPS};"),
        handled(),
    ):
        train(net.student, Supervised(net, FULL, 0), *data(), FULL, 0, checkpoint, evaluate=evaluate)
    checkpoint.state = checkpoint.saves[-1]
    assert checkpoint.state["rows"] == [] and checkpoint.state["step"] == STEPS
    found, again = run(checkpoint)
    assert same(expected, found) and rows == again


@pytest.mark.parametrize(
    ("numbers", "error", "status"),
    [
        ((signal.SIGTERM,), Stopped, 75),
        ((signal.SIGUSR1, signal.SIGUSR1), Stopped, 75),
        ((signal.SIGTERM, signal.SIGUSR1), Stopped, 75),
        ((signal.SIGINT,), Stopped, 130),
        ((signal.SIGTERM, signal.SIGTERM), Ended, 143),
        ((signal.SIGUSR1, signal.SIGTERM), Ended, 143),
        ((signal.SIGTERM, signal.SIGINT), KeyboardInterrupt, None),
    ],
)
def test_the_first_signal_asks_and_a_second_one_ends(tmp_path, numbers, error, status):
    checkpoint = MemoryCheckpoint(tmp_path)
    with pytest.raises(error) as caught:
        run(checkpoint, sends=[(1, 2, number) for number in numbers])
    found = {Stopped: lambda e: e.status, Ended: lambda e: e.code}.get(error, lambda e: None)
    assert found(caught.value) == status
    assert (len(checkpoint.saves) == 2) == (error is Stopped)  # after the first epoch, and now


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_outside_of_a_training_a_signal_ends_at_once(number, status):
    with pytest.raises(Ended) as caught, handled():
        signal.raise_signal(number)
    assert caught.value.code == status and str(caught.value) == f"terminated ({number.name})"


def test_a_signal_after_the_last_look_ends_when_the_loop_does():
    with pytest.raises(Ended), handled(), stopping.watching(lambda: 0.0):
        signal.raise_signal(signal.SIGUSR1)


def test_once_the_state_is_saved_or_all_is_written_signals_are_ignored(tmp_path):
    with handled():
        with pytest.raises(Stopped), stopping.watching(lambda: 0.0):
            raise Stopped("SIGTERM", 1, 1)
        for number in stopping.SIGNALS:
            signal.raise_signal(number)
    with handled():
        Checkpoint(tmp_path / "job", "key", "id", print).close(remove=True)
        for number in stopping.SIGNALS:
            signal.raise_signal(number)
    with pytest.raises(Ended), handled():
        signal.raise_signal(signal.SIGTERM)  # of the next job of this process


@pytest.mark.parametrize("error", [UserError("diverged"), ValueError("a fault")])
def test_an_error_of_the_loop_is_not_hidden_by_a_signal_that_follows(error):
    with handled():
        with pytest.raises(type(error), match=str(error)), stopping.watching(lambda: 0.0):
            raise error
        for number in stopping.SIGNALS:
            signal.raise_signal(number)


def test_a_signal_while_the_interpreter_ends_takes_nothing_from_a_finished_job():
    code = (
        "import os, signal; from attnprior.train import stopping\n"
        "with stopping.signals(to_the_end=True): stopping.ignore()\n"
        "for n in stopping.SIGNALS: os.kill(os.getpid(), n)\n"
        "print('ended')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_state_within_an_epoch_goes_on_on_a_gpu(tmp_path):
    images = Shifted(torch.zeros(20, 1, 8, 8, dtype=torch.uint8, device="cuda"), [0.3], [0.25], 1)
    labels = data()[1].cuda()
    net, checkpoint = network("none").to("cuda"), MemoryCheckpoint(tmp_path, within=True)
    train(net.student, Supervised(net, RECIPE, 0), images, labels, RECIPE, 0, checkpoint)
    state = copy.deepcopy(checkpoint.saves[0])
    assert state["step"] == 1
    state["total"] = state["total"].cpu()  # as a file is read
    checkpoint.state = state
    train(net.student, Supervised(net, RECIPE, 0), images, labels, RECIPE, 0, checkpoint)


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(n) for n in stopping.SIGNALS]
    with handled():
        assert signal.getsignal(signal.SIGUSR1) not in before
    assert [signal.getsignal(n) for n in stopping.SIGNALS] == before


def test_a_time_limit_stops_after_a_step_and_the_training_goes_on(tmp_path, monkeypatch):
    expected, rows = run(NoCheckpoint(tmp_path))
    checkpoint = MemoryCheckpoint(tmp_path)
    monkeypatch.setenv("ATTNPRIOR_TIME_LIMIT", "0.001")  # this process is older
    for step in (1, 2):
        with pytest.raises(Stopped, match=rf"^stopped by time limit after epoch 1 step {step};"):
            run(checkpoint)
        checkpoint.state = checkpoint.saves[-1]
    monkeypatch.setenv("ATTNPRIOR_TIME_LIMIT", "1e9")
    found, again = run(checkpoint)
    assert same(expected, found) and rows == again


def test_the_end_is_left_room_for_a_step_a_save_and_a_margin(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(stopping.provenance, "process_age", lambda: 0.0)
    monkeypatch.setenv("ATTNPRIOR_TIME_LIMIT", "100")  # until 1100, margin 5
    save = [0.0]
    with stopping.watching(lambda: save[0]) as watch:
        for passed, took, reason in (
            (10, 0, None),
            (20, 0, None),
            (5, 35, None),  # 1035 + longest step 20 + 35 + 5 = 1095
            (4, 35, None),
            (2, 35, "time limit"),  # 1101
        ):
            now[0], save[0] = now[0] + passed, float(took)
            assert watch.wanted() == reason


def test_slurm_tells_the_end_unless_a_limit_is_given_or_that_end_has_passed(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    end, margin = stopping.deadline()
    assert end - time.monotonic() == pytest.approx(3600, abs=5) and margin == 20
    monkeypatch.setenv("ATTNPRIOR_TIME_LIMIT", "1e6")
    assert stopping.deadline()[0] - time.monotonic() > 7e5
    monkeypatch.delenv("ATTNPRIOR_TIME_LIMIT")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1600000000")
    assert stopping.deadline() == (math.inf, 0.0)


@pytest.mark.parametrize("value", ["soon", "-3", "nan", "0"])
@pytest.mark.parametrize("name", ["ATTNPRIOR_TIME_LIMIT", "SLURM_JOB_END_TIME"])
def test_a_wrong_limit_is_one_line(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"^{name}: '{value}' is no number of seconds above 0; correct it"):
        stopping.deadline()
