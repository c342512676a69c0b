from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior import files
from attnprior.data import datasets
from attnprior.errors import UserError
from tests.dataset.archives import fetch_digits
from tests.oracle import MODEL

LABELS = st.lists(st.integers(0, 3), min_size=4, max_size=60).map(lambda x: np.array([0, 1, 2, 3, *x]))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "digits.safetensors"
    counts = fetch_digits(path)
    return path, counts


def test_digits_are_sklearns_images_and_labels(digits):
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load(digits[0])
    theirs = sklearn_datasets.load_digits()
    assert data.images.shape == (1797, 1, 8, 8) and data.images.dtype == np.uint8
    np.testing.assert_array_equal(data.labels, theirs.target)
    # the 17 levels come back exactly
    np.testing.assert_array_equal(np.round(data.images[:, 0] * (16 / 255)), theirs.images)
    assert {int(v) for v in np.unique(data.images)} >= {0, 255, 128}
    assert data.classes == [str(c) for c in range(10)]


def test_digits_have_the_asked_split_with_classes_in_proportion(digits):
    path, counts = digits
    data = datasets.load(path)
    assert counts == {"images": 1797, "classes": 10, "train": 1200, "val": 97, "test": 500}
    assert np.bincount(data.split).tolist() == [1200, 97, 500]
    share = np.bincount(data.labels) / 1797
    for part, size in [(0, 1200), (1, 97), (2, 500)]:
        np.testing.assert_array_less(np.abs(np.bincount(data.labels[data.split == part]) - share * size), 2)


def test_mean_and_std_are_those_of_the_training_images(digits):
    data = datasets.load(digits[0])
    train = data.images[data.split == 0] / 255.0
    np.testing.assert_allclose(data.mean, [train.mean()], rtol=1e-12)
    np.testing.assert_allclose(data.std, [train.std()], rtol=1e-12)


def test_the_same_settings_give_the_same_bytes_and_another_seed_another_split(digits, tmp_path):
    again, other = tmp_path / "a", tmp_path / "b"
    fetch_digits(again)
    fetch_digits(other, split_seed=1)
    assert files.sha256(again) == files.sha256(digits[0])
    assert (datasets.load(other).split != datasets.load(again).split).any()


@given(LABELS, st.integers(0, 5), st.data())
@settings(max_examples=60, deadline=None)
def test_subsets_are_nested_balanced_and_hold_every_class(labels, seed, data):
    small, large = sorted(data.draw(st.integers(4, len(labels))) for _ in range(2))
    a = datasets.subset(labels, small, seed, 4, "students.x.labels")
    b = datasets.subset(labels, large, seed, 4, "students.x.labels")
    assert len(set(a)) == small and len(set(b)) == large and set(a) <= set(b)
    counts, available = np.bincount(labels[b], minlength=4), np.bincount(labels, minlength=4)
    assert counts.min() >= 1
    top = counts.max()
    assert all(n >= top - 1 or n == m for n, m in zip(counts, available, strict=True))


def test_another_seed_gives_another_subset():
    labels = np.arange(1200) % 10
    a, b = (datasets.subset(labels, 200, seed, 10, "x") for seed in (0, 1))
    assert set(a) != set(b)


@pytest.mark.parametrize("n", [9, 1201])
def test_too_many_or_too_few_labels_name_the_setting(n):
    with pytest.raises(UserError, match=rf"students.random.labels: {n} labels; allowed: 10 .* to 1200"):
        datasets.subset(np.arange(1200) % 10, n, 0, 10, "students.random.labels")


def test_a_truncated_file_is_a_user_error(digits, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(digits[0].read_bytes()[:50_000])
    with pytest.raises(UserError, match="broken.safetensors: corrupt or truncated"):
        datasets.load(broken)
    with pytest.raises(UserError, match="absent"):
        datasets.load(tmp_path / "absent")


def test_a_flipped_pixel_is_noticed(digits, tmp_path):
    content = bytearray(digits[0].read_bytes())
    data = datasets.load(digits[0])
    at = bytes(content).find(data.images[500].tobytes())
    content[at + 20] ^= 1
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match="differ from the checksum"):
        datasets.load(tmp_path / "x")


def damage(tensors, header, key, value):
    (header if key in header else tensors)[key] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("labels", np.full(1797, 10), "labels 10..10 lie outside the 10 classes"),
        ("labels", np.full(1797, -1), "lie outside"),
        ("labels", np.zeros(1796, dtype=np.int64), "do not agree"),
        ("split", np.full(1797, 3), "split has values"),
        ("split", np.ones(1797, dtype=np.int64), "no training image"),
        ("images", np.zeros((1797, 8, 8), dtype=np.uint8), "not uint8"),
        ("images", np.zeros((1797, 1, 8, 8), dtype=np.float32), "not uint8"),
        ("images", np.zeros((1797, 3, 8, 8), dtype=np.uint8), "do not fit 3 channels"),
        ("std", [0.0], "do not fit"),
    ],
)
def test_an_inconsistent_file_says_what_is_wrong(digits, tmp_path, key, value, message):
    tensors, header = files.load_tensors(digits[0], framework="numpy")
    damage(tensors, header, key, value)
    files.save_tensors(tmp_path / "x.safetensors", tensors, header)
    with pytest.raises(UserError, match=message):
        datasets.load(tmp_path / "x.safetensors")


def test_a_file_without_header_is_a_user_error(digits, tmp_path):
    tensors, _ = files.load_tensors(digits[0], framework="numpy")
    files.save_tensors(tmp_path / "x.safetensors", tensors, {})
    with pytest.raises(UserError, match="no classes, mean, sha256, split_seed, std in it"):
        datasets.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(("key", "value"), [("image_size", 16), ("in_chans", 3), ("num_classes", 5)])
def test_a_model_for_other_images_names_its_key(digits, key, value):
    data = datasets.load(digits[0])
    datasets.check_model(MODEL, data, "models.m")
    with pytest.raises(UserError, match=rf"models.m.{key}: {value}, but the data set has"):
        datasets.check_model(replace(MODEL, **{key: value}), data, "models.m")
