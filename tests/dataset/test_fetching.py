from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior import files
from attnprior.config import Dataset, build
from attnprior.data import fetching
from attnprior.data.sources.common import Found
from attnprior.errors import UserError
from tests.dataset.archives import DIGITS, fetch_digits
from tests.dataset.test_datasets import LABELS

PARTS = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=40, max_size=90).map(np.array)


def parts_of(part, val, test, train, seed=0):
    """Return the split of every image of a source, -1 where it is left out."""
    values = {**DIGITS, "source": "folder", "val": val, "test": test, "train": train, "split_seed": seed}
    labels = np.arange(len(part)) * 7 % 3
    found = Found(None, labels, part, ["a", "b", "c"])
    rows, split = fetching.split_parts(found, values, build(Dataset, values, "datasets.x"), "datasets.x")
    whole = np.full(len(part), -1)
    whole[rows] = split
    return whole, labels


@given(PARTS, st.integers(0, 5), st.integers(3, 12), st.integers(3, 12))
@settings(max_examples=60, deadline=None)
def test_smaller_training_parts_lie_in_larger_ones_and_val_and_test_stay(part, seed, one, two):
    has_test = bool((part == 2).any())
    test = None if has_test else 5
    small, large = sorted((one, two))
    a, labels = parts_of(part, 4, test, small, seed)
    b, _ = parts_of(part, 4, test, large, seed)
    everything, _ = parts_of(part, 4, test, None, seed)
    assert (a == 0).sum() == small and (b == 0).sum() == large
    assert set(np.flatnonzero(a == 0)) <= set(np.flatnonzero(b == 0)) <= set(np.flatnonzero(everything == 0))
    for value in (1, 2):
        np.testing.assert_array_equal(a == value, everything == value)
        np.testing.assert_array_equal(b == value, everything == value)
    for whole, size in ((a, small), (b, large)):
        counts, available = (np.bincount(labels[w == 0], minlength=3) for w in (whole, everything))
        assert all(n >= size // 3 - 1 or n == m for n, m in zip(counts, available, strict=True))


@given(PARTS, st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_own_parts_stay_apart(part, seed):
    if not (part == 2).any() or not (part == 1).any():
        return
    whole, _ = parts_of(part, None, None, None, seed)
    np.testing.assert_array_equal(whole, part)  # nothing is cut
    whole, _ = parts_of(part, 3, 1, None, seed)
    assert (part[whole == 2] == 2).all() and (whole == 2).sum() == 1
    assert (part[(whole == 0) | (whole == 1)] < 2).all()
    assert (whole[part == 2] != 0).all() and (whole[part < 2] >= 0).all() and (whole == 1).sum() == 3


def test_the_order_of_nesting_is_one_hundred_five_hundred_a_thousand(tmp_path):
    sets = []
    for train in (100, 500, 1000):
        fetch_digits(tmp_path / "x", train=train)
        tensors, _ = files.load_tensors(tmp_path / "x", framework="numpy")
        chosen = tensors["images"][tensors["split"] == 0]
        assert len(chosen) == train and len(tensors["images"]) == train + 597
        assert set(np.bincount(tensors["labels"][tensors["split"] == 0])) <= {train // 10}
        sets.append({image.tobytes() for image in chosen})
    assert sets[0] <= sets[1] <= sets[2]


def test_the_same_settings_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        fetch_digits(tmp_path / name, train=300)
    assert files.sha256(tmp_path / "a") == files.sha256(tmp_path / "b")


def test_the_log_has_the_size_of_every_class(tmp_path):
    lines: list[str] = []
    fetching.fetch("d", DIGITS, build(Dataset, DIGITS, "d"), Path(tmp_path / "x"), lines.append)
    assert len(lines) == 11 and lines[0].startswith("class 0 0: ")
    assert lines[-1] == "1797 images, 10 classes, 1200 train, 97 val, 500 test"


@given(LABELS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_any_split_has_exact_sizes_and_fair_classes(labels, val, test, seed):
    if val + test >= len(labels):
        with pytest.raises(UserError, match="datasets.x"):
            fetching.stratified_split(labels, val, test, seed, "datasets.x")
        return
    split = fetching.stratified_split(labels, val, test, seed, "datasets.x")
    assert np.bincount(split, minlength=3).tolist() == [len(labels) - val - test, val, test]
    for c in range(4):
        of_class = labels == c
        expected = of_class.mean() * test
        assert abs((of_class & (split == 2)).sum() - expected) <= 2


@pytest.mark.parametrize(("val", "test"), [(97, 1700), (-1, 500), (0, 1797)])
def test_a_split_without_training_images_names_its_keys(val, test, tmp_path):
    with pytest.raises(UserError, match=r"lower datasets.x.val or datasets.x.test"):
        fetch_digits(tmp_path / "x", val=val, test=test)


def test_an_unknown_source_names_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean 'sklearn_digits'"):
        fetch_digits(tmp_path / "x", source="sklearn_digit")
