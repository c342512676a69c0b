import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior import files
from attnprior.data import datafile
from attnprior.data.datasets import content_hash


@pytest.mark.parametrize("chunk", [1, 100, 10**6])
def test_the_file_is_a_safetensors_file_of_the_chosen_rows(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(datafile, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 3, 4, 4), dtype=np.uint8)
    rows = np.array([0, 3, 4, 9, 19])
    labels, split = np.array([4, 3, 2, 1, 0]), np.array([0, 1, 0, 2, 0])
    header = datafile.write(tmp_path / "x", images, rows, labels, split, {"name": "x", "é": ["ü"]}, 0)
    tensors, read = files.load_tensors(tmp_path / "x", framework="numpy")
    np.testing.assert_array_equal(tensors["images"], images[rows])
    np.testing.assert_array_equal(tensors["labels"], labels)
    np.testing.assert_array_equal(tensors["split"], split)
    assert read == header and read["é"] == ["ü"]
    train = images[[0, 4, 19]] / 255
    np.testing.assert_allclose(read["mean"], train.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(read["std"], train.std((0, 2, 3)), rtol=1e-12)
    assert read["sha256"] == content_hash(images[rows], labels)
    np.testing.assert_array_equal(datafile.mapped_images(tmp_path / "x", (5, 3, 4, 4)), images[rows])


@given(st.lists(st.integers(0, 255), min_size=1, max_size=300))
@settings(max_examples=60, deadline=None)
def test_moments_are_those_of_the_values(values):
    mean, std = datafile.moments(np.bincount(values, minlength=256)[None])
    np.testing.assert_allclose(mean, [np.mean(np.array(values) / 255)], rtol=1e-12)
    np.testing.assert_allclose(std, [np.std(np.array(values) / 255)], rtol=1e-6, atol=1e-9)


def test_many_classes_fit_into_the_header(tmp_path):
    classes = [f"class number {i}" for i in range(5000)]
    images = np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8)
    zero = np.zeros(1, dtype=np.int64)
    datafile.write(tmp_path / "x", images, zero, zero, zero, {"classes": classes}, 0)
    assert files.load_tensors(tmp_path / "x", framework="numpy")[1]["classes"] == classes
