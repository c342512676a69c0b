"""DVC's cache as dvc.lock names it: damaged copies, other sizes, records that were altered."""

import hashlib
import json
import os

import pytest

from attnprior.workflow import cache


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def put(content: bytes, suffix="") -> str:
    name = md5(content) + suffix
    path = cache.folder() / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return name


def record(started="2026-01-01T00:00:00+00:00", total=1.5, commit="c" * 40) -> bytes:
    return json.dumps({"started": started, "seconds": {"total": total}, "commit": commit}).encode()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with two files and a file, recorded and cached."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").mkdir()
    (tmp_path / "runs").mkdir()
    listing = []
    for name, content in (("weights", b"weights"), ("run.json", record())):
        (tmp_path / "runs" / name).write_bytes(content)
        listing.append({"md5": put(content), "relpath": name})
    (tmp_path / "table").write_bytes(b"table")
    size = len(record()) + 7
    folder = put(json.dumps(listing).encode(), ".dir")
    (tmp_path / "dvc.lock").write_text(
        f"schema: '2.0'\nstages:\n  arm:\n    cmd: x\n    outs:\n    - path: runs\n      hash: md5\n"
        f"      md5: {folder}\n      size: {size}\n      nfiles: 2\n"
        f"  study:\n    cmd: x\n    deps:\n    - path: runs\n      hash: md5\n      md5: {folder}\n"
        f"      size: {size}\n      nfiles: 2\n    outs:\n    - path: table\n      hash: md5\n"
        f"      md5: {put(b'table')}\n      size: 5\n"
    )
    return tmp_path


def copy_of(content: bytes):
    name = md5(content)
    return cache.folder() / name[:2] / name[2:]


def test_whole_copies_are_read_once(checkout, monkeypatch):
    assert cache.damaged_copies() == {}
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert cache.damaged_copies() == {}


def test_a_damaged_copy_of_equal_size_is_found_deleted_and_its_stages_are_named(checkout, capsys):
    assert cache.damaged_copies() == {}
    path = copy_of(b"weights")
    path.write_bytes(b"weighty")
    assert cache.remove_damaged_copies() == {"arm"}
    assert not path.exists()
    assert capsys.readouterr().err.count("\n") == 1
    assert cache.damaged_copies() == {}  # missing ones are DVC's affair


def test_a_damaged_list_of_a_folder_is_found(checkout):
    path = next(p for p in cache.folder().rglob("*.dir"))
    path.write_bytes(path.read_bytes()[:-1] + b" ]")
    assert cache.damaged_copies() == {path: {"arm"}}


def test_sizes_in_dvc_lock_are_compared(checkout):
    assert cache.wrong_sizes() == set()
    lock = checkout / "dvc.lock"
    lock.write_text(lock.read_text().replace("size: 5", "size: 4"))
    os.utime(lock, ns=(1, 1))
    assert cache.wrong_sizes() == {"study"}
    lock.write_text(lock.read_text().replace("nfiles: 2", "nfiles: 3"))
    assert cache.wrong_sizes() == {"arm", "study"}


def test_a_record_that_was_altered_is_told_from_one_that_was_made_again(checkout):
    path = checkout / "runs/run.json"
    assert cache.altered_records() == set()
    path.write_bytes(record(commit="d" * 40))
    assert cache.altered_records() == {"runs/run.json"}
    path.write_bytes(record(started="2026-01-01T00:00:01+00:00"))
    assert cache.altered_records() == {"runs/run.json"}
    path.write_bytes(record(started="2026-01-02T00:00:00+00:00", total=1.6))
    assert cache.altered_records() == set()


@pytest.mark.parametrize("content", ["", "{", "schema: 1\n", "stages: 5\n", "stages: {a: 5}\n", "- x\n"])
def test_a_damaged_dvc_lock_is_left_to_others(checkout, content):
    (checkout / "dvc.lock").write_text(content)
    assert list(cache.recorded()) == []
    assert cache.damaged_copies() == {} and cache.altered_records() == set()


def test_the_cache_may_lie_elsewhere(checkout):
    (checkout / ".dvc/config").write_text("[cache]\n    dir = ../shared\n")
    assert cache.folder().resolve() == checkout / "shared/files/md5"
