import numpy as np
import pytest

from attnprior.data import rules
from attnprior.data.sources.common import Request
from attnprior.data.sources.digits import sklearn_digits
from attnprior.errors import UserError
from tests.dataset.archives import DIGITS, official

FOLDER = official("folder", path="x.tar", channels=3, skip_bad=False)
FLOWERS = official("flowers102", resize={"size": 32, "crop": "center"})


def test_entries_with_their_keys_pass():
    for values in (DIGITS, FOLDER, FLOWERS, *(official(s) for s in rules.ARCHIVES if s not in rules.UNLIKE)):
        rules.check_keys(values, "datasets.x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (official("cifar"), "unknown source 'cifar', did you mean 'cifar10'"),
        (DIGITS | {"path": None}, "datasets.x.path is not used by 'sklearn_digits' .only by cifar10"),
        (official("cifar10", skip_bad=True), r"skip_bad is not used by 'cifar10' \(only by folder\)"),
        (official("cifar10", skip_bat=True), "skip_bat is not used by 'cifar10'"),
        ({k: v for k, v in FOLDER.items() if k != "channels"}, "missing key datasets.x.channels"),
        (FOLDER | {"path": None}, "datasets.x.path is null, but a folder is not downloaded"),
        (FLOWERS | {"resize": None}, "images of flowers102 have unlike sizes"),
        (official("cifar10", val=None), "val is null, but cifar10 has no validation part"),
        (DIGITS | {"test": None}, "test is null, but sklearn_digits has no test part"),
    ],
)
def test_a_wrong_entry_names_its_key(values, message):
    with pytest.raises(UserError, match=message) as e:
        rules.check_keys(values, "datasets.x")
    assert str(e.value).startswith("params.yaml: datasets.x") or "missing key datasets.x" in str(e.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (45000, 5000, 10000)),
        ({"test": 1000}, (45000, 5000, 1000)),
        ({"train": 100, "val": 1}, (100, 1, 10000)),
        ({"train": 45000}, (45000, 5000, 10000)),
    ],
)
def test_numbers_of_a_set_with_a_test_part(changes, expected):
    values = official("cifar10", val=5000) | changes
    assert rules.known_numbers(values, "datasets.x") == rules.Numbers(*expected)


def test_numbers_of_other_sets():
    assert rules.known_numbers(DIGITS, "x") == rules.Numbers(1200, 97, 500)
    assert rules.known_numbers(FLOWERS | {"val": None}, "x") == rules.Numbers(1020, 1020, 6149)
    assert rules.known_numbers(FLOWERS | {"val": 40}, "x") == rules.Numbers(2000, 40, 6149)
    assert rules.known_numbers(FOLDER, "x") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": 10001}, "datasets.x.test is 10001; allowed: 1 to 10000, the test part"),
        ({"val": 50000}, "val 50000 and test None .* leave some of the 50000 images .* lower"),
        ({"train": 45001}, "datasets.x.train is 45001; allowed: 1 to 45000"),
        ({"train": 9}, "datasets.x.train is 9; allowed: at least 10 .one per class., or null"),
    ],
)
def test_a_part_that_is_too_large_names_its_key(changes, message):
    with pytest.raises(UserError, match=message):
        rules.known_numbers(official("cifar10", val=5000) | changes, "datasets.x")


@pytest.mark.parametrize(
    ("values", "files"),
    [
        (DIGITS, []),
        (official("svhn"), []),
        (official("svhn", path="a/b/"), ["a/b/train_32x32.mat", "a/b/test_32x32.mat"]),
        (official("cifar10", path="./a/c.tar.gz"), ["a/c.tar.gz"]),
        (official("cifar10", path="a"), ["a/cifar-10-python.tar.gz"]),
        (FOLDER | {"path": "/x/y.tar.xz"}, ["/x/y.tar.xz"]),
        (FOLDER | {"path": "/x/y"}, []),
    ],
)
def test_the_local_files_of_an_entry(values, files):
    assert rules.source_files(values) == files


def test_the_known_size_of_the_digits_is_true(tmp_path):
    found = sklearn_digits(Request(None, "x", print, tmp_path))
    assert np.bincount(found.part, minlength=3).tolist() == list(rules.SOURCES["sklearn_digits"].parts)
