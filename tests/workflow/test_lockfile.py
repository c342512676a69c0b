"""Stages recorded in dvc.lock: the bytes are those that DVC writes."""

import json
import shutil

import pytest
from dvc.repo import Repo
from hypothesis import given
from hypothesis import strategies as st

from attnprior.workflow import lockfile

LONG = "attnprior make train_student evaluate -- " + " ".join(
    f"runs/digits/a_b/seed{i}/x.json" for i in range(9)
)
VALUES = {
    "small": 1e-08,
    "whole": 3,
    "text": "1e-3",
    "date": "2024-05-01",
    "yes": "yes",
    "nothing": None,
    "list": [1, 2.5, [True, "a: b"]],
    "deep": {"x": {"y": []}, "ü": "é # no comment", "long": "word " * 40},
}


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """Yield a DVC repository of three stages whose settings are awkward to write."""
    monkeypatch.chdir(tmp_path)
    stage = {"cmd": LONG, "deps": ["source.txt"], "params": ["values"], "outs": ["${item}.txt"]}
    arms = {f"digits-{n}": n for n in ("a", "b_2", "c")}
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"arm": {"foreach": arms, "do": stage}}}))
    (tmp_path / "params.yaml").write_text(json.dumps({"values": VALUES}))
    for name in ("source", "a", "b_2", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    with Repo.init(no_scm=True) as made:
        yield made


def saved(repo, names):
    """Return stages with the present state of their files."""
    repo._reset()
    stages = {s.addressing: s for s in repo.index.stages}
    for name in names:
        stages[name].save()
    return [stages[name] for name in names]


def test_stages_are_written_as_dvc_writes_them(repo, tmp_path):
    lock, ours = tmp_path / "dvc.lock", tmp_path / "ours"
    first, second, third = (f"arm@digits-{n}" for n in ("a", "b_2", "c"))
    for names, change in (([first], "1"), ([second, third], "2"), ([second], "3"), ([third, first], "4")):
        (tmp_path / "source.txt").write_text(change)
        (tmp_path / "params.yaml").write_text(json.dumps({"values": {**VALUES, "change": float(change) / 7}}))
        stages = saved(repo, names)
        before = lock.read_bytes() if lock.exists() else None
        lockfile.write(stages)
        shutil.copy(lock, ours)
        if before is None:
            lock.unlink()
        else:
            lock.write_bytes(before)
        stages[0].dvcfile.dump_stages(stages, update_pipeline=False)
        assert ours.read_bytes() == lock.read_bytes(), names
    assert lock.read_text().count("arm@digits") == 3


def test_a_file_of_another_form_is_left_to_dvc(repo, tmp_path):
    lock = tmp_path / "dvc.lock"
    lockfile.write(saved(repo, ["arm@digits-a"]))
    lock.write_text(lock.read_text().replace("stages:\n", "# kept\nstages:\n"))
    lockfile.write(saved(repo, ["arm@digits-c"]))
    assert "# kept" in lock.read_text() and "arm@digits-c" in lock.read_text()


def test_nothing_is_written_where_nothing_changed(repo, tmp_path):
    lockfile.write(saved(repo, ["arm@digits-a"]))
    before = (tmp_path / "dvc.lock").stat()
    lockfile.write(saved(repo, ["arm@digits-a"]))
    after = (tmp_path / "dvc.lock").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "text",
    [
        "schema: '2.0'\nstages: {}\n",
        "schema: '2.0'\ndatasets: []\nstages:\n",
        f"{lockfile.HEAD}  a:\n    cmd: x",  # cut
        f"{lockfile.HEAD}<<<<<<< HEAD\n  a:\n    cmd: x\n",
        f"{lockfile.HEAD}  a:\n    cmd: x\n  a:\n    cmd: y\n",
        f"{lockfile.HEAD}    cmd: x\n",
        f"{lockfile.HEAD}  'a':\n    cmd: x\n",
        f"{lockfile.HEAD}  a: {{cmd: x}}\n",
        f"{lockfile.HEAD}  a:\n    cmd: x\ndatasets: []\n",
    ],
)
def test_other_texts_are_not_taken_apart(text):
    assert lockfile.replaced(text, {"b": "  b:\n    cmd: z\n"}) is None


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}(@[a-z0-9_-]{1,8})?", fullmatch=True)
BLOCKS = st.dictionaries(NAMES, st.lists(st.from_regex(r"    [ a-z:-]{0,9}", fullmatch=True), max_size=4))


@given(BLOCKS, BLOCKS)
def test_named_stages_change_and_the_others_stay_as_they_are(old, new):
    def texts(blocks):
        return {n: f"  {n}:\n" + "".join(f"{line}\n" for line in lines) for n, lines in blocks.items()}

    before = lockfile.HEAD + "".join(texts(old).values())
    after = lockfile.HEAD + "".join((texts(old) | texts(new)).values())
    assert lockfile.replaced(before, texts(new)) == after
