"""`artifacts.sha256` and what `attnprior run` says about dvc.lock."""

import json

import pytest

from attnprior.errors import UserError
from attnprior.workflow import manifest
from attnprior.workflow.engines import Job


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that writes the record of one finished job and returns the job."""
    monkeypatch.chdir(tmp_path)

    def write(student: str, **digests: str) -> Job:
        folder = f"runs/digits/{student}/seed0"
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        outputs = {f"{folder}/{name}.csv": digest for name, digest in digests.items()}
        (tmp_path / folder / "run.json").write_text(json.dumps({"outputs": outputs}))
        return Job("train_student", {}, [], [], f"{folder}/run.json", "", {})

    return write


def lock(tmp_path, **md5: str) -> None:
    stages = [
        f"  arm@digits-{s}:\n    outs:\n    - path: runs/digits/{s}\n      md5: {m}\n" for s, m in md5.items()
    ]
    (tmp_path / "dvc.lock").write_text("stages:\n" + "".join(stages))


def test_artifacts_are_listed_as_sha256sum_does_and_compared_with_the_list_before(job, tmp_path):
    outs = ["runs/digits/a", "runs/digits/b"]
    lock(tmp_path, a="1", b="1")
    said = manifest.renew({}, [job("a", x="11", y="12"), job("b", x="21")], outs)
    assert "2 stages recorded anew" in said[0] and "0 identical, 0 different, 3 not listed" in said[0]
    text = "11  runs/digits/a/seed0/x.csv\n12  runs/digits/a/seed0/y.csv\n21  runs/digits/b/seed0/x.csv\n"
    assert (tmp_path / "artifacts.sha256").read_text() == text

    before = manifest.stages()
    lock(tmp_path, a="2", b="1")  # other run.json, same artifacts
    said = manifest.renew(before, [job("a", x="11", y="12"), job("b", x="21")], outs)
    assert "1 stage recorded anew" in said[0] and "2 identical, 0 different, 0 not listed" in said[0]
    assert len(said) == 1
    assert (tmp_path / "artifacts.sha256").read_text() == text

    before = manifest.stages()
    lock(tmp_path, a="3", b="1")
    said = manifest.renew(before, [job("a", x="99", y="12"), job("b", x="21")], outs)
    assert "1 identical, 1 different, 0 not listed" in said[0]
    assert said[1] == "different: runs/digits/a/seed0/x.csv"
    assert manifest.artifacts()["runs/digits/a/seed0/x.csv"] == "99"


def test_what_dvc_has_recorded_by_itself_is_listed_by_the_next_run(job, tmp_path):
    lock(tmp_path, a="1")
    manifest.renew({}, [job("a", x="11")], ["runs/digits/a"])
    said = manifest.renew(manifest.stages(), [job("a", x="12")], ["runs/digits/a"])
    assert "0 stages recorded anew" in said[0] and "0 identical, 1 different" in said[0]
    assert manifest.artifacts() == {"runs/digits/a/seed0/x.csv": "12"}


def test_nothing_is_said_when_nothing_was_recorded(job, tmp_path):
    lock(tmp_path, a="1")
    jobs = [job("a", x="11")]
    manifest.renew({}, jobs, ["runs/digits/a"])
    assert manifest.renew(manifest.stages(), jobs, ["runs/digits/a"]) == []


def test_jobs_that_did_not_finish_keep_their_entries_and_dropped_arms_lose_them(job, tmp_path):
    lock(tmp_path, a="1", b="1")
    manifest.renew({}, [job("a", x="11"), job("b", x="21")], ["runs/digits/a", "runs/digits/b"])
    manifest.renew(manifest.stages(), [], ["runs/digits/b"])
    assert manifest.artifacts() == {"runs/digits/b/seed0/x.csv": "21"}


def test_a_damaged_list_is_one_line(job, tmp_path):
    (tmp_path / "artifacts.sha256").write_text("<<<<<<< HEAD\n")
    with pytest.raises(UserError, match=r"git checkout artifacts\.sha256"):
        manifest.artifacts()
