"""Every official source from its archive, served on loopback, to the data file; pixels known beforehand."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from attnprior.data import download, rules
from attnprior.data.sources import SOURCES, common
from attnprior.data.sources.cifar import unpickle
from attnprior.errors import UserError
from tests.dataset import archives
from tests.dataset.server import served


@pytest.fixture
def online(tmp_path, monkeypatch):
    """Serve files under the official names in place of the official addresses."""
    monkeypatch.setenv(download.FOLDER, str(tmp_path / "downloads"))
    monkeypatch.delenv(download.MIRRORS, raising=False)
    with served({}) as server:

        def serve(files: dict[str, bytes]):
            server.files = files
            for name, content in files.items():
                known = replace(common.OFFICIAL[name], md5=archives.md5(content), urls=(server.url + name,))
                monkeypatch.setitem(common.OFFICIAL, name, known)
            return server

        yield serve


def check(data, images, labels, test: int, classes: list[str]) -> None:
    """The last `test` images are the test part; pixels, labels and classes are as given."""
    np.testing.assert_array_equal(data.images, images)
    np.testing.assert_array_equal(data.labels, labels)
    np.testing.assert_array_equal(data.split == 2, np.arange(len(images)) >= len(images) - test)
    assert (data.split == 1).sum() == 2
    assert data.classes == classes


@pytest.mark.parametrize(
    ("source", "write"), [("cifar10", archives.cifar10), ("cifar100", archives.cifar100)]
)
def test_cifar(online, tmp_path, source, write):
    images, labels = archives.pixels(14, 3, 32), [0, 1, 2] * 4 + [1, 2]
    names = [b"apple", b"bee", b"cat"]
    online({rules.ARCHIVES[source][0]: write(images, labels, names, 4)})
    data = archives.made(archives.official(source), tmp_path)
    check(data, images, labels, 4, ["apple", "bee", "cat"])


def test_svhn_has_zeros_under_the_label_ten(online, tmp_path):
    images = archives.pixels(24, 3, 32)
    digits = [*range(10), 0, 0, *range(10), 5, 0]
    train, test = archives.svhn(images[:20], digits[:20]), archives.svhn(images[20:], digits[20:])
    online({"train_32x32.mat": train, "test_32x32.mat": test})
    data = archives.made(archives.official("svhn"), tmp_path)
    check(data, images, digits, 4, [str(d) for d in range(10)])


def test_stl10_is_stored_column_by_column(online, tmp_path):
    images, labels = archives.pixels(10, 3, 96), [0, 1] * 5
    names = [b"airplane", b"bird"]
    online({"stl10_binary.tar.gz": archives.stl10(images, labels, names, 4)})
    data = archives.made(archives.official("stl10"), tmp_path)
    check(data, images, labels, 4, ["airplane", "bird"])


def test_tiny_imagenet_takes_val_for_the_test_and_sorts_by_wordnet_id(online, tmp_path):
    root = "tiny-imagenet-200"
    images = archives.pixels(8, 3, 64)
    where = [
        "n02/images/n02_0",
        "n02/images/n02_1",
        "n01/images/n01_0",
        "n01/images/n01_1",
        "n01/images/n01_2",
    ]
    files = {
        f"{root}/wnids.txt": b"n02\nn01\n",
        f"{root}/words.txt": b"n01\tcrane, bird\nn02\tcrane\nn03\tx\n",
    }
    # PNG content under the names of JPEGs keeps the pixels exact.
    for name, image in zip(where, images, strict=False):
        files[f"{root}/train/{name}.JPEG"] = archives.encoded(image)
    files[f"{root}/train/n01/n01_boxes.txt"] = b"n01_0.JPEG\t0\t0\t63\t63\n"
    for i, image in enumerate(images[5:]):
        files[f"{root}/val/images/val_{i}.JPEG"] = archives.encoded(image)
        files[f"{root}/test/images/test_{i}.JPEG"] = archives.encoded(image)
    rows = [("val_0", "n02"), ("val_1", "n01"), ("val_2", "n02")]
    table = "".join(f"{name}.JPEG\t{wnid}\t0\t0\t63\t63\n" for name, wnid in rows)
    files[f"{root}/val/val_annotations.txt"] = table.encode()
    online({"tiny-imagenet-200.zip": archives.zipped(files)})
    data = archives.made(archives.official("tiny_imagenet"), tmp_path)
    order = [2, 3, 4, 0, 1, 5, 6, 7]  # n01 before n02
    check(data, images[order], [0, 0, 0, 1, 1, 1, 0, 1], 3, ["crane (n01)", "crane (n02)"])


def test_flowers_have_their_own_three_parts_and_one_size(online, tmp_path):
    shapes = [(40, 60), (60, 40), (50, 50), (40, 80), (44, 44), (90, 45), (48, 64)]
    images = [archives.smooth(i, *shape) for i, shape in enumerate(shapes)]
    files = {f"jpg/image_{i:05d}.jpg": archives.encoded(x, "JPEG") for i, x in enumerate(images, start=1)}
    labels = archives.matlab({"labels": np.array([[2, 1, 1, 2, 1, 2, 1]], dtype=np.uint8)})
    parts = {"trnid": [[6, 3, 1]], "valid": [[2, 4]], "tstid": [[7, 5]]}
    sets = archives.matlab({k: np.array(v, dtype=np.uint16) for k, v in parts.items()})
    online({"102flowers.tgz": archives.tar(files), "imagelabels.mat": labels, "setid.mat": sets})
    resize = {"size": 20, "crop": "center"}
    data = archives.made(archives.official("flowers102", val=None, resize=resize), tmp_path)
    assert data.split.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert data.labels.tolist() == [1, 0, 1, 0, 1, 0, 0]  # of images 1, 3, 6, 2, 4, 5, 7
    assert data.classes == ["1", "2"]
    for row, number in enumerate([1, 3, 6, 2, 4, 5, 7]):
        image = images[number - 1].astype(float)
        short, (_, height, width) = min(image.shape[1:]), image.shape
        top, left = (height - short) // 2, (width - short) // 2
        middle = image[:, top : top + short, left : left + short].mean((1, 2))
        np.testing.assert_allclose(data.images[row].mean((1, 2)), middle, atol=3)
        across = image[0, 0, left + short - 1] - image[0, 0, left]
        assert abs(int(data.images[row, 0, 10, -1]) - int(data.images[row, 0, 10, 0]) - across) < 5


def test_flowers_join_train_and_validation_where_a_number_is_cut(online, tmp_path):
    files = {f"jpg/image_{i:05d}.jpg": archives.encoded(archives.smooth(i, 9, 9)) for i in range(1, 9)}
    labels = archives.matlab({"labels": np.array([[1, 2] * 4], dtype=np.uint8)})
    parts = {"trnid": [[1, 2, 3]], "valid": [[4, 5, 6]], "tstid": [[7, 8]]}
    sets = archives.matlab({k: np.array(v, dtype=np.uint16) for k, v in parts.items()})
    online({"102flowers.tgz": archives.tar(files), "imagelabels.mat": labels, "setid.mat": sets})
    values = archives.official("flowers102", val=2, resize={"size": 9, "crop": "center"})
    data = archives.made(values, tmp_path)
    assert np.bincount(data.split).tolist() == [4, 2, 2] and data.split[-2:].tolist() == [2, 2]


def test_pets_take_their_classes_from_the_annotations(online, tmp_path):
    names = ["Abyssinian_10", "yorkshire_terrier_2", "Abyssinian_2", "yorkshire_terrier_1", "Abyssinian_3"]
    images = archives.pixels(5, 3, 12)
    files = {f"images/{n}.jpg": archives.encoded(x) for n, x in zip(names, images, strict=True)}
    files["images/Abyssinian_10.mat"] = b"no picture"
    trainval = "".join(f"{n} {1 + n.startswith('y')} 1 1\n" for n in names[:4])
    lists = {"annotations/trainval.txt": trainval.encode(), "annotations/test.txt": b"Abyssinian_3 1 1 1\n"}
    lists |= {"annotations/README": b"x", "annotations/list.txt": b"#Image CLASS-ID SPECIES BREED ID\n"}
    online({"images.tar.gz": archives.tar(files), "annotations.tar.gz": archives.tar(lists)})
    data = archives.made(archives.official("pets", resize={"size": 12, "crop": "none"}), tmp_path)
    check(data, images, [0, 1, 0, 1, 0], 1, ["Abyssinian", "yorkshire terrier"])


def test_every_source_is_known_to_the_rules():
    assert set(SOURCES) == set(rules.OPTIONS)
    assert {n for names in rules.ARCHIVES.values() for n in names} == set(common.OFFICIAL)
    for name, archive in common.OFFICIAL.items():
        assert len(archive.md5) == 32 and all(url.endswith("/" + name) for url in archive.urls)


@pytest.fixture
def cifar(online):
    images = archives.pixels(14, 3, 32)
    return archives.cifar10(images, [0, 1] * 7, [b"a", b"b"], 4), images


def test_a_local_archive_or_its_folder_needs_no_network(online, cifar, tmp_path):
    server = online({"cifar-10-python.tar.gz": cifar[0]})
    (tmp_path / "mine.tar.gz").write_bytes(cifar[0])
    (tmp_path / "here").mkdir()
    (tmp_path / "here/cifar-10-python.tar.gz").write_bytes(cifar[0])
    for path in ("mine.tar.gz", "here"):
        data = archives.made(archives.official("cifar10", path=str(tmp_path / path)), tmp_path)
        np.testing.assert_array_equal(data.images, cifar[1])
    assert not server.asked


def test_a_local_archive_with_another_sum_is_not_opened(cifar, tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(cifar[0])
    with pytest.raises(UserError, match="has MD5 .* the official cifar-10-python.tar.gz has c58f30108f"):
        archives.made(archives.official("cifar10", path=str(path)), tmp_path)


def test_a_missing_local_archive_names_the_key_and_the_address(tmp_path):
    values = archives.official("svhn", path=str(tmp_path))
    with pytest.raises(
        UserError, match=r"datasets.x.path: .*train_32x32.mat cannot be read .*ufldl.stanford"
    ):
        archives.made(values, tmp_path)


def test_resizing_of_arrays_is_that_of_their_pictures(online, cifar, tmp_path):
    online({"cifar-10-python.tar.gz": cifar[0]})
    values = archives.official("cifar10", resize={"size": 16, "crop": "center"})
    data = archives.made(values, tmp_path)
    picture = Image.fromarray(cifar[1][3].transpose(1, 2, 0)).resize((16, 16), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(data.images[3], np.asarray(picture).transpose(2, 0, 1))


class Harmful:
    def __reduce__(self):
        return print, ("ran",)


def test_a_pickle_that_wants_more_than_arrays_is_refused(capsys):
    with pytest.raises(UserError, match="it asks for (builtins|__builtin__).print"):
        unpickle(pickle.dumps({1: Harmful()}, protocol=2), "datasets.x")
    with pytest.raises(UserError, match="no dictionary"):
        unpickle(pickle.dumps([1], protocol=2), "datasets.x")
    with pytest.raises(UserError, match="cannot be read"):
        unpickle(b"no pickle", "datasets.x")
    assert capsys.readouterr().out == ""


def test_an_archive_that_lacks_a_file_is_named(online, tmp_path):
    online({"cifar-10-python.tar.gz": archives.tar({"cifar-10-batches-py/data_batch_1": b""})})
    with pytest.raises(UserError, match="has no cifar-10-batches-py/data_batch_2 in it"):
        archives.made(archives.official("cifar10"), tmp_path)
