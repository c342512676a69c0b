import os
import resource
import signal
import textwrap

import pytest
import torch

from attnprior.errors import BusyError, UserError
from attnprior.train.checkpoint import Checkpoint
from tests import processes

STATE = {"model": {"w": torch.arange(3.0)}, "rows": [{"epoch": 1, "loss": 0.1}]}


def nothing(_text):
    pass


def saved(folder, key="k", job_id="first"):
    with Checkpoint(folder, key, job_id, nothing) as checkpoint:
        checkpoint.save(1, STATE)
    return folder / "state.pt"


def test_a_saved_state_comes_back_with_its_job_and_one_more_attempt(tmp_path):
    saved(tmp_path)
    for attempt in (2, 3):  # counted although no state is saved in between
        with Checkpoint(tmp_path, "k", "other", nothing) as checkpoint:
            assert (checkpoint.job_id, checkpoint.attempts, checkpoint.epoch) == ("first", attempt, 1)
            assert torch.equal(checkpoint.state["model"]["w"], STATE["model"]["w"])
            assert checkpoint.state["rows"] == STATE["rows"]


def test_without_a_state_training_starts_afresh(tmp_path):
    with Checkpoint(tmp_path / "new", "k", "mine", nothing) as checkpoint:
        assert checkpoint.state is None
        assert (checkpoint.job_id, checkpoint.attempts, checkpoint.epoch) == ("mine", 1, 0)


def test_a_state_of_another_key_is_reported_and_replaced(tmp_path):
    path = saved(tmp_path)
    said = []
    with Checkpoint(tmp_path, "other key", "mine", said.append) as checkpoint:
        assert checkpoint.state is None and checkpoint.job_id == "mine" and checkpoint.attempts == 1
        checkpoint.save(5, STATE)
    assert len(said) == 1 and str(path) in said[0] and "afresh" in said[0]
    with Checkpoint(tmp_path, "other key", "x", nothing) as checkpoint:
        assert checkpoint.epoch == 5


def test_one_flipped_bit_in_a_tensor_is_seen(tmp_path):
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(STATE["model"]["w"].numpy().tobytes())
    content[at + 3] ^= 1
    path.write_bytes(content)
    said = []
    with Checkpoint(tmp_path, "k", "mine", said.append) as checkpoint:
        assert checkpoint.state is None and checkpoint.attempts == 1
    assert len(said) == 1 and "wrong checksum" in said[0]


def test_a_full_disk_is_one_line_and_the_state_before_stays(tmp_path):
    path = saved(tmp_path)
    before = path.read_bytes()
    large = {"model": {"w": torch.zeros(2**18)}, "rows": []}
    with Checkpoint(tmp_path, "k", "mine", nothing) as checkpoint:
        before = path.read_bytes()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limit[1]))  # no file grows beyond 64 KiB
        try:
            with pytest.raises(UserError, match=r"state\.pt: cannot be written .*; free space"):
                checkpoint.save(2, large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert path.read_bytes() == before and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("keep", [0, 10, 500, -10])
def test_a_damaged_state_is_reported_and_not_used(tmp_path, keep):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    said = []
    with Checkpoint(tmp_path, "k", "mine", said.append) as checkpoint:
        assert checkpoint.state is None and checkpoint.attempts == 1
    assert len(said) == 1 and "cannot be read" in said[0]


def test_a_state_with_code_in_it_is_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "hacked"),))

    path = saved(tmp_path)
    torch.save({"key": "k", "job_id": "x", "attempts": 1, "epoch": 1, "state": {"x": Evil()}}, path)
    with Checkpoint(tmp_path, "k", "mine", nothing) as checkpoint:
        assert checkpoint.state is None
    assert not (tmp_path / "hacked").exists()


def test_success_removes_the_folder_but_nothing_of_others(tmp_path):
    folder = tmp_path / "a"
    saved(folder)
    Checkpoint(folder, "k", "x", nothing).close(remove=True)
    assert not folder.exists()
    saved(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / ".state.pt.abc.tmp").write_text("left by a killed save")
    Checkpoint(folder, "k", "x", nothing).close(remove=True)
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path):
    code = textwrap.dedent(
        f"""
        from attnprior.train.checkpoint import Checkpoint
        Checkpoint({str(tmp_path)!r}, "k", "x", print)
        print("ready", flush=True)
        import time; time.sleep(60)
        """
    )
    holder = processes.start(["-c", code])
    try:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(BusyError, match=rf"process {holder.pid} is training this job"):
            Checkpoint(tmp_path, "k", "mine", nothing)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    Checkpoint(tmp_path, "k", "mine", nothing).close()  # a dead holder blocks nobody


def test_the_environment_sets_how_often_a_state_is_due(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNPRIOR_CHECKPOINT_SECONDS", raising=False)
    with Checkpoint(tmp_path, "k", "x", nothing) as checkpoint:
        assert not checkpoint.due()
    monkeypatch.setenv("ATTNPRIOR_CHECKPOINT_SECONDS", "0")
    with Checkpoint(tmp_path, "k", "x", nothing) as checkpoint:
        assert checkpoint.due() and not checkpoint.due(within=True)  # at the end of every epoch
    monkeypatch.setenv("ATTNPRIOR_CHECKPOINT_SECONDS", "soon")
    with pytest.raises(UserError, match="ATTNPRIOR_CHECKPOINT_SECONDS"):
        Checkpoint(tmp_path, "k", "x", nothing)


def test_saving_takes_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNPRIOR_CHECKPOINT_SECONDS", raising=False)
    now = [100.0]
    monkeypatch.setattr("attnprior.train.checkpoint.time.monotonic", lambda: now[0])

    def slow(*args):  # a save of 3 seconds
        now[0] += 3

    monkeypatch.setattr(torch, "save", slow)
    with Checkpoint(tmp_path, "k", "x", nothing) as checkpoint:
        for passed, due in ((9, False), (2, True)):
            now[0] += passed
            assert checkpoint.due() is due and checkpoint.due(within=True) is due
        checkpoint.save(1, STATE)
        assert checkpoint.slowest_save == 3
        for passed, due in ((59, False), (2, True)):
            now[0] += passed
            assert checkpoint.due() is due and checkpoint.due(within=True) is due


def test_after_the_last_epoch_a_second_of_training_is_saved_unless_a_save_takes_longer(tmp_path, monkeypatch):
    monkeypatch.delenv("ATTNPRIOR_CHECKPOINT_SECONDS", raising=False)
    now = [100.0]
    monkeypatch.setattr("attnprior.train.checkpoint.time.monotonic", lambda: now[0])
    with Checkpoint(tmp_path, "k", "x", nothing) as checkpoint:
        now[0] += 0.5
        assert not checkpoint.due(last=True)
        now[0] += 0.6
        assert checkpoint.due(last=True) and not checkpoint.due()
        monkeypatch.setattr(torch, "save", lambda *_: now.__setitem__(0, now[0] + 3))
        checkpoint.save(1, STATE)
        now[0] += 2
        assert not checkpoint.due(last=True)
        now[0] += 2
        assert checkpoint.due(last=True)


def test_a_state_of_another_key_may_be_of_another_form(tmp_path):
    torch.save(
        {"key": "former", "job_id": "x", "attempts": 1, "epoch": 1, "state": {}}, tmp_path / "state.pt"
    )
    said = []
    with Checkpoint(tmp_path, "k", "x", said.append) as checkpoint:
        assert checkpoint.state is None
    assert len(said) == 1 and "is of other parameters" in said[0]


def test_the_steps_of_an_epoch_not_ended_come_back(tmp_path):
    with Checkpoint(tmp_path, "k", "x", nothing) as checkpoint:
        checkpoint.save(2, STATE, 3)
        assert checkpoint.images(20, 8) == 0
    said = []
    for _ in range(2):
        with Checkpoint(tmp_path, "k", "x", said.append) as checkpoint:
            assert checkpoint.epoch == 2 and checkpoint.images(100, 8) == 2 * 100 + 3 * 8
            assert checkpoint.images(20, 8) == 3 * 20  # the last step has fewer
    assert said[0].startswith("resuming attempt 2 after epoch 2 and 3 steps of ")


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Checkpoint(tmp_path / "file" / "a", "k", "x", nothing)
