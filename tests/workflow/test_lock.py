"""Locks that are held, and locks that the dead, others and other machines have left."""

import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from attnprior.errors import UserError
from attnprior.workflow import lock


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    return tmp_path


def left(checkout, **facts):
    """Leave the lock file of a run, and Snakemake's lock."""
    note = {"pid": 1, "host": socket.gethostname(), "time": 1.0, "running": True, **facts}
    (checkout / lock.LOCK).write_text(json.dumps(note).ljust(lock.NOTE))
    (checkout / ".snakemake/locks/0.output.lock").write_text("runs/x\n")


def a_dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    "pid", [a_dead_pid(), os.getpid(), os.getppid(), 1], ids=["ended", "own", "parent", "first"]
)
def test_a_lock_left_by_a_dead_run_is_removed_whoever_has_its_number_now(checkout, pid, capsys):
    left(checkout, pid=pid, snakemake=pid)
    with lock.run_lock():
        assert not list((checkout / ".snakemake/locks").glob("*.lock"))
    assert "removing the lock of a run that was killed" in capsys.readouterr().err


def test_a_lock_of_another_machine_is_not_removed(checkout):
    left(checkout, host="elsewhere", pid=12)
    with pytest.raises(UserError, match=r"process 12\) on elsewhere; .*snakemake --unlock"), lock.run_lock():
        pass
    assert list((checkout / ".snakemake/locks").glob("*.lock"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"pid": "x"}'])
def test_a_damaged_note_is_no_traceback(checkout, content):
    (checkout / lock.LOCK).write_bytes(content)
    with lock.run_lock():
        pass
    with open(checkout / lock.LOCK, "r+b") as held:
        held.write(content)
        held.truncate(len(content))
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another `attnprior run` \(process "), lock.run_lock():
            pass


def test_a_held_lock_names_the_snakemake_that_a_killed_run_left(checkout):
    code = "import sys, time; print('ready', flush=True); time.sleep(60)  # attnprior"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        with open(checkout / lock.LOCK, "w+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            json.dump({"pid": a_dead_pid(), "snakemake": child.pid, "running": True}, held)
            held.flush()
            with pytest.raises(UserError, match=rf"Snakemake \(process {child.pid}\)"), lock.run_lock():
                pass
    finally:
        child.kill()
        child.wait()


def test_a_lock_that_snakemake_left_when_killed_is_removed_by_the_next_run(checkout, capsys):
    with lock.run_lock() as held:
        held.note(running=True, snakemake=1)
        (checkout / ".snakemake/locks/0.output.lock").touch()
    with lock.run_lock():
        assert not list((checkout / ".snakemake/locks").glob("*.lock"))
    assert "removing the lock" in capsys.readouterr().err
