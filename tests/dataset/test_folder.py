import os
import resource

import numpy as np
import pytest

from attnprior.data import decode
from attnprior.errors import UserError
from tests.dataset import archives

VALUES = {
    "source": "folder",
    "path": "",
    "train": None,
    "val": 2,
    "test": 2,
    "split_seed": 0,
    "resize": None,
    "resident_limit": 64,
    "channels": 3,
    "skip_bad": False,
}
IMAGES = archives.pixels(12, 3, 6)


def tree(*names: str) -> dict[str, bytes]:
    """Return a file for each name; image i of IMAGES is in file i."""
    return {name: archives.encoded(IMAGES[i]) for i, name in enumerate(names)}


FLAT = tree(*(f"{c}/{i}.png" for c in ("ant", "bee") for i in range(6)))
PARTS = tree(
    *(f"train/{c}/{i}.png" for c in ("ant", "bee") for i in range(3)),
    *(f"test/{c}/{i}.png" for c in ("ant", "bee") for i in range(3)),
)


def put(files: dict[str, bytes], folder, kind: str = "folder"):
    """Write a tree as a folder or packed, and return its path."""
    if kind == "folder":
        for name, content in files.items():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes(content)
        return folder / "tree"
    path = folder / f"tree.{kind}"
    modes = {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.xz": "w:xz", "tar.bz2": "w:bz2"}
    path.write_bytes(archives.zipped(files) if kind == "zip" else archives.tar(files, modes[kind]))
    return path


def made(files, folder, lines=None, kind="folder", **changes):
    values = VALUES | {"path": str(put(files, folder, kind))} | changes
    return archives.made(values, folder, lines)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz", "tgz", "tar.xz", "tar.bz2"])
def test_a_tree_gives_the_same_file_however_it_is_packed(tmp_path, kind):
    wrapped = {f"mine/{k}": v for k, v in reversed(FLAT.items())}
    data = made(wrapped, tmp_path, kind=kind)
    np.testing.assert_array_equal(data.images, IMAGES)
    assert data.labels.tolist() == [0] * 6 + [1] * 6 and data.classes == ["ant", "bee"]
    assert np.bincount(data.split).tolist() == [8, 2, 2]


def test_train_and_test_folders_are_the_parts(tmp_path):
    data = made(PARTS, tmp_path, test=None)
    np.testing.assert_array_equal(data.images, IMAGES)
    assert (data.split[6:] == 2).all() and np.bincount(data.split).tolist() == [4, 2, 6]
    data = made({}, tmp_path, test=2)
    assert np.bincount(data.split).tolist() == [4, 2, 2] and len(data.images) == 8


@pytest.mark.parametrize(("train", "test"), [("Train", "Test"), ("TRAIN", "test")])
def test_parts_may_be_written_in_capitals(tmp_path, train, test):
    files = {n.replace("train", train).replace("test", test): c for n, c in PARTS.items()}
    val = {f"VAL/{c}/0.png": archives.encoded(IMAGES[0]) for c in ("ant", "bee")}
    data = made({f"mine/{n}": c for n, c in (files | val).items()}, tmp_path, test=None, val=None)
    assert data.split.tolist() == [0] * 6 + [1] * 2 + [2] * 6 and data.classes == ["ant", "bee"]


def test_a_class_called_train_stays_one(tmp_path):
    data = made(tree(*(f"{c}/{i}.png" for c in ("Bus", "Train") for i in range(6))), tmp_path)
    assert data.classes == ["Bus", "Train"] and len(data.images) == 12


@pytest.mark.parametrize("numbers", [{}, {"train": 4}, {"train": 3, "val": 1, "test": 1}])
@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz"])
def test_only_what_is_kept_is_decoded_and_the_file_has_the_same_bytes(tmp_path, monkeypatch, kind, numbers):
    decoded = []
    own = decode.decode
    monkeypatch.setattr(decode, "decode", lambda *args: decoded.append(args) or own(*args))
    found = {}
    for skip_bad in (True, False):  # what is bad is known only after all were decoded
        decoded.clear()
        folder = tmp_path / str(skip_bad)
        folder.mkdir()
        data = made(FLAT, folder, kind=kind, skip_bad=skip_bad, **numbers)
        assert len(decoded) == (12 if skip_bad else len(data.images))
        (path,) = folder.glob("*.safetensors")
        found[skip_bad] = path.read_bytes()
    assert found[True] == found[False]


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_folder_is_used_or_joins_training(tmp_path, name):
    more = {f"{name}/{c}/0.png": archives.encoded(IMAGES[0]) for c in ("ant", "bee")}
    data = made(PARTS | more, tmp_path, test=None, val=None)
    assert data.split.tolist() == [0] * 6 + [1] * 2 + [2] * 6
    data = made({}, tmp_path, test=None, val=3)
    assert np.bincount(data.split).tolist() == [5, 3, 6]


def test_deeper_folders_belong_to_their_class_and_litter_is_ignored(tmp_path):
    files = {f"{k.split('/')[0]}/images/{k.split('/')[1]}": v for k, v in FLAT.items()}
    litter = {"ant/.DS_Store": b"x", "__MACOSX/ant/._0.png": b"x", "bee/Thumbs.db": b"x", ".git/config": b"x"}
    lines: list[str] = []
    data = made({**files, **litter, "README.md": b"about"}, tmp_path, lines)
    np.testing.assert_array_equal(data.images, IMAGES)
    assert any("1 files in no class folder are not used, as README.md" in line for line in lines)
    assert any(line.startswith("class 1 bee: 4 train, 1 val, 1 test") for line in lines)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"a text with the name of an image", "no image"),
        (archives.encoded(archives.pixels(1, 3, 40)[0])[:-300], "truncated"),
        (archives.encoded(archives.pixels(1, 3, 40)[0], "JPEG")[:-300], "truncated"),
    ],
    ids=["empty", "text", "png", "jpeg"],
)
def test_bad_files_are_an_error_with_names_or_are_left_out(tmp_path, content, reason):
    files = FLAT | {f"bee/bad{i}.png": content for i in range(5)}
    with pytest.raises(UserError) as e:
        made(files, tmp_path)
    text = str(e.value)
    assert text.startswith("datasets.x.path: 5 of 17 files are no readable images: bee/bad0.png (")
    assert reason in text and "bee/bad2.png" in text and "and 2 more" in text and "skip_bad: true" in text
    assert "\n" not in text and not (tmp_path / "x.safetensors").exists()
    lines: list[str] = []
    data = made({}, tmp_path, lines, skip_bad=True)
    np.testing.assert_array_equal(data.images, IMAGES)
    assert sum(line.startswith("skipped bee/bad") for line in lines) == 5
    assert any("5 skipped" in line for line in lines)


def test_a_bad_file_in_the_middle_leaves_the_others_in_order(tmp_path):
    data = made(FLAT | {"ant/2.png": b"", "bee/0.png": b""}, tmp_path, skip_bad=True)
    np.testing.assert_array_equal(data.images, np.delete(IMAGES, [2, 6], axis=0))
    assert data.labels.tolist() == [0] * 5 + [1] * 5


def test_a_name_says_nothing_about_the_kind_of_an_image(tmp_path):
    files = {k.replace(".png", ".jpg" if "ant" in k else ""): v for k, v in FLAT.items()}
    np.testing.assert_array_equal(made(files, tmp_path).images, IMAGES)


def test_one_class_only_is_an_error(tmp_path):
    with pytest.raises(UserError, match="has one class only, 'ant'"):
        made(tree("ant/1.png", "ant/2.png"), tmp_path)


def test_a_tree_without_class_folders_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no class folders"):
        made(tree("1.png", "2.png"), tmp_path)


@pytest.mark.parametrize(("name", "word"), [("train", "train"), ("test", "test")])
def test_a_class_that_a_part_lacks_is_named(tmp_path, name, word):
    files = {k: v for k, v in PARTS.items() if not k.startswith(f"{name}/bee")}
    with pytest.raises(UserError, match=f"{word} has no images of class 'bee'"):
        made(files, tmp_path, test=None)


def test_a_class_whose_images_are_all_bad_is_named(tmp_path):
    files = PARTS | {f"test/bee/{i}.png": b"" for i in range(3)}
    with pytest.raises(UserError, match="test has no images of class 'bee'"):
        made(files, tmp_path, test=None, skip_bad=True)


def test_unlike_sizes_need_a_rule(tmp_path):
    files = FLAT | {"bee/1.png": archives.encoded(archives.pixels(1, 3, 8)[0])}
    with pytest.raises(
        UserError, match=r"resize is null, but images have unlike sizes: .* 6x6, bee/1.png 8x8"
    ):
        made(files, tmp_path)
    assert made({}, tmp_path, resize={"size": 4, "crop": "center"}).images.shape == (12, 3, 4, 4)


def test_images_that_are_not_square_need_a_rule(tmp_path):
    files = {k: archives.encoded(archives.smooth(i, 4, 6)) for i, k in enumerate(FLAT)}
    with pytest.raises(UserError, match=r"resize is null, but ant/0.png is 6x4, not square"):
        made(files, tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_damaged_archive_is_named(tmp_path, kind):
    path = put(FLAT, tmp_path, kind)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(UserError, match=r"tree\.\w+.* cannot be read .*pack it again"):
        archives.made(VALUES | {"path": str(path)}, tmp_path)


def test_a_missing_path_and_a_file_of_another_kind_are_named(tmp_path):
    with pytest.raises(UserError, match="datasets.x.path: .*absent.zip does not exist"):
        archives.made(VALUES | {"path": str(tmp_path / "absent.zip")}, tmp_path)
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(UserError, match="a.rar is no folder, tar or zip"):
        archives.made(VALUES | {"path": str(tmp_path / "a.rar")}, tmp_path)


def test_no_test_part_needs_a_number(tmp_path):
    with pytest.raises(UserError, match="datasets.x.test is null, but there is no test part"):
        made(FLAT, tmp_path, test=None)


def test_images_of_one_colour_are_an_error_and_leave_no_file(tmp_path):
    files = {k: archives.encoded(np.zeros((3, 6, 6), np.uint8)) for k in FLAT}
    with pytest.raises(UserError, match="channel 0 is the same in all training images"):
        made(files, tmp_path)
    assert os.listdir(tmp_path) == ["tree"]


def test_grey_images_can_be_kept_grey(tmp_path):
    grey = archives.pixels(12, 1, 6)
    files = {k: archives.encoded(grey[i]) for i, k in enumerate(FLAT)}
    np.testing.assert_array_equal(made(files, tmp_path, channels=1).images, grey)
    np.testing.assert_array_equal(made(files, tmp_path).images, np.repeat(grey, 3, axis=1))


def test_nothing_but_the_data_file_is_left(tmp_path):
    made(FLAT, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["tree", "x.safetensors"]


def test_a_full_disk_is_one_line(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = str(put(FLAT, tmp_path, "tar"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UserError, match=r"datasets.x: no room for 1 MiB of images in .*; free space"):
            archives.made(VALUES | {"path": path}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
