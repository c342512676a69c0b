"""What kills and bad disks leave of the engines' files and of checkpoints."""

import os
import random
import sqlite3
import subprocess
import sys

import pytest

from attnprior.errors import UserError
from attnprior.workflow import mlflow_open, orphans, repair

LOCK = """schema: '2.0'
stages:
  one:
    cmd: x
    outs:
    - path: a
      hash: md5
      md5: 0cc175b9c0f1b6a831c399e269772661
      size: 1
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").mkdir()
    (tmp_path / "dvc.lock").write_text(LOCK)
    return tmp_path


def killed_while_writing(content: bytes) -> None:
    """Leave what a kill leaves that comes while DVC writes dvc.lock in place."""
    code = (
        "import os, sys\nfrom attnprior.workflow import repair\nwith repair.lock_kept():\n"
        "    open('dvc.lock', 'wb').write(sys.stdin.buffer.read())\n    os.kill(os.getpid(), 9)\n"
    )
    source = os.path.dirname(os.path.dirname(os.path.dirname(repair.__file__)))
    env = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], input=content, env=env, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("length", [0, 1, 20, 60, 120, len(LOCK) - 30])
def test_a_cut_dvc_lock_is_put_back(checkout, length, capsys):
    killed_while_writing(LOCK.replace("'2.0'", "'2.0' ").encode()[:length])
    try:
        repair.restore_lock()
    except UserError as e:
        pytest.fail(str(e))
    found = (checkout / "dvc.lock").read_text()
    assert found in (LOCK, LOCK.replace("'2.0'", "'2.0' ")[:length])
    repair.restore_lock()  # whatever is there can be read
    assert not repair.KEPT.exists()


def test_a_first_dvc_lock_that_was_cut_is_removed(checkout):
    (checkout / "dvc.lock").unlink()
    killed_while_writing(b"schema: '2.0'\nstages:\n  one: [")
    repair.restore_lock()
    assert not (checkout / "dvc.lock").exists()


def test_a_written_dvc_lock_is_kept_although_a_copy_is_there(checkout):
    killed_while_writing(LOCK.replace("one", "two").encode())
    repair.restore_lock()
    assert "two" in (checkout / "dvc.lock").read_text()


def test_an_error_while_writing_puts_dvc_lock_back(checkout):
    def write():
        (checkout / "dvc.lock").write_text("")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), repair.lock_kept():
        write()
    assert (checkout / "dvc.lock").read_text() == LOCK


@pytest.mark.parametrize(
    "content",
    [
        LOCK[:25],
        LOCK.replace("schema", "schemb"),
        LOCK.replace("'2.0'", "'3.0'"),
        LOCK.replace("stages", "stager"),
        LOCK.replace("hash: md5", "hash: md4"),
        LOCK.replace("- path", "- pbth"),
        LOCK.replace("size: 1", "size: 1;1"),
        LOCK.replace("size: 1", "size: 1\n      nfiles: 1;1"),
        LOCK.replace("size: 1", "size: 1\n      isexec: trte"),
        LOCK.replace("    outs", "    params: 1\n    outs"),
        LOCK.replace("    outs", "    nuts"),
        LOCK.replace("cmd: ", "cme: "),
        "\x00",
        "- a\n",
        "<<<<<<< HEAD\n" + LOCK,
    ],
)
def test_a_damaged_dvc_lock_is_named_with_what_to_do(checkout, content):
    (checkout / "dvc.lock").write_text(content)
    with pytest.raises(UserError, match=r"dvc\.lock: damaged .*git checkout dvc\.lock.*delete") as caught:
        repair.restore_lock()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff{}", b"[]", b"null", b'{"a": 1'])
def test_unreadable_records_of_snakemake_are_deleted_and_others_stay(checkout, content):
    for folder in ("metadata/@long", "incomplete"):
        (checkout / ".snakemake" / folder).mkdir(parents=True)
        (checkout / ".snakemake" / folder / "good").write_text('{"rule": "a"}')
        (checkout / ".snakemake" / folder / "bad").write_bytes(content)
    assert repair.remove_unreadable_records("metadata", "incomplete") == 2
    assert sorted(p.name for p in (checkout / ".snakemake").rglob("*") if p.is_file()) == ["good", "good"]


@pytest.mark.parametrize(("content", "stays"), [("", False), ("{", False), ('{"read": {}}', True)])
def test_a_cut_list_of_busy_files_is_deleted(checkout, content, stays):
    (checkout / ".dvc/tmp").mkdir(parents=True)
    (checkout / ".dvc/tmp/rwlock").write_text(content)
    repair.remove_cut_rwlock()
    assert (checkout / ".dvc/tmp/rwlock").exists() is stays


def test_every_flipped_bit_of_a_checkpoint_is_found_or_changes_nothing(checkout):
    """PyTorch's reader alone gives other numbers for most of these flips, without a word."""
    import torch

    path = checkout / "checkpoints/train/x/state.pt"
    path.parent.mkdir(parents=True)
    weights = torch.arange(500.0)
    torch.save({"epoch": 3, "state": {"w": weights, "rows": [{"loss": 0.5}]}}, path)
    whole = path.read_bytes()
    assert repair.remove_damaged_checkpoints() == []
    rng, found = random.Random(5), 0
    for _ in range(60):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        if repair.remove_damaged_checkpoints():
            found += 1
            assert not path.exists()
            continue
        try:
            loaded = torch.load(path, weights_only=True)
        except Exception:  # the training says so and starts afresh
            continue
        assert loaded["epoch"] == 3 and loaded["state"]["rows"] == [{"loss": 0.5}]
        assert torch.equal(loaded["state"]["w"], weights)
    assert found > 30


def test_a_training_that_outlived_its_snakemake_is_waited_for(checkout, capfd):
    folder = checkout / "checkpoints/train_student/digits/copy/seed0"
    folder.mkdir(parents=True)
    code = (
        "import fcntl, os, time\nf = open('lock', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "f.write(f'{os.getpid()}\\n')\nf.flush()\nprint('ready', flush=True)\ntime.sleep(1.5)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE)
    child.stdout.readline()
    orphans.wait()
    assert child.wait(0.5 + 60) == 0
    said = capfd.readouterr().err
    assert f"waiting for train_student/digits/copy/seed0, which process {child.pid} " in said
    assert said.count("\n") == 1
    orphans.wait()
    assert capfd.readouterr().err == ""


def test_a_job_that_outlived_its_snakemake_is_waited_for_before_it_locks_anything(checkout, capfd):
    code = "import time; print('ready', flush=True); time.sleep(1.5)"
    command = [sys.executable, "-c", code, "attnprior.stages.train_student"]
    elsewhere = checkout / "elsewhere"
    elsewhere.mkdir()
    with subprocess.Popen(command, cwd=elsewhere, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        orphans.wait()
        assert capfd.readouterr().err == "" and other.poll() is None
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        orphans.wait()
        assert child.wait(60) == 0
    said = capfd.readouterr().err
    assert f"waiting for process {child.pid} of a killed run" in said and said.count("\n") == 1


def test_a_store_whose_writer_was_killed_in_a_transaction_is_read_as_before_it(checkout):
    with sqlite3.connect("mlflow.db") as db:
        db.execute("create table tags (key, value)")
        db.executemany("insert into tags values ('attnprior.project', ?)", [("x" * 200,)] * 3000)
    db.close()
    code = (
        "import os, sqlite3\ndb = sqlite3.connect('mlflow.db', isolation_level=None)\n"
        "db.execute('pragma cache_size=5')\ndb.execute('begin')\n"
        "db.execute(\"update tags set key = 'other', value = randomblob(200)\")\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (checkout / "mlflow.db-journal").stat().st_size
    uri = f"sqlite:///{checkout}/mlflow.db"
    assert mlflow_open.count_runs(uri) == 3000


def test_what_a_killed_job_left_of_its_outputs_goes_and_nothing_else(tmp_path):
    output = tmp_path / "a[1].safetensors"
    names = (
        output.name,
        ".a[1].safetensors.x1y2.tmp",
        ".a1.safetensors.x1y2.tmp",
        ".other.x1y2.tmp",
        "x.tmp",
    )
    for name in names:
        (tmp_path / name).touch()
    repair.remove_left_over([str(output), str(tmp_path / "nowhere/b.json")])
    assert {p.name for p in tmp_path.iterdir()} == {*names} - {".a[1].safetensors.x1y2.tmp"}
