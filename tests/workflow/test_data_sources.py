"""A local archive is an input of its data set to both engines."""

import pytest

from tests.dataset import archives
from tests.workflow import project as projects

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def packed(seed: int) -> bytes:
    """Return a tar of 400 grey 8x8 images of 10 classes."""
    images = archives.pixels(400, 1, 8, seed)
    return archives.tar({f"c{i % 10}/{i:03d}.png": archives.encoded(x) for i, x in enumerate(images)}, "w")


def settings(params: dict) -> dict:
    entry = {"source": "folder", "path": "../mine.tar", "train": None, "val": 50, "test": 50, "split_seed": 0}
    entry |= {"resize": None, "resident_limit": 64, "channels": 1, "skip_bad": False}
    params["datasets"]["digits"] = entry
    return projects.small(params)


def test_a_changed_archive_is_a_reason_to_both_engines_and_a_missing_one_is_named(tmp_path):
    archive = tmp_path / "mine.tar"
    archive.write_bytes(packed(0))
    made = projects.create(tmp_path / "project", settings)
    made.attnprior("check")
    made.dvc("repro", "-s", "data@digits")
    record = made.record("data/digits.run.json")
    assert record["inputs"]["../mine.tar"]
    assert "data@digits" not in made.dvc_changed()
    assert "fetch_dataset/digits" not in made.planned()
    archive.write_bytes(packed(1))
    assert "data@digits" in made.dvc_changed()
    assert "fetch_dataset/digits" in made.planned()
    assert "fetch_dataset/digits" in made.snakemake_planned()
    archive.unlink()
    done = made.attnprior("run", ok=False)
    assert done.returncode != 0
    told = "error: params.yaml: datasets.digits.path is '../mine.tar', but there is no file ../mine.tar;"
    assert done.stderr.startswith(told) and done.stderr.count("\n") == 1, done.stderr
