"""The stated tolerance between two versions of an artifact."""

import json

import numpy as np
import pytest

from attnprior.files import save_tensors
from attnprior.workflow.closeness import distance, is_drawn, same_page


@pytest.fixture
def tensors(tmp_path):
    def write(name, factor=1.0, labels=(1, 2), header=None):
        content = {"w": np.full((2, 3), 2.0 * factor, np.float32), "labels": np.array(labels, np.int64)}
        save_tensors(tmp_path / name, content, header or {"parameters": 6})
        return tmp_path / name

    return write


def test_tensors_may_differ_by_one_per_cent_of_their_norm(tensors):
    recorded = tensors("a.safetensors")
    assert distance(tensors("b.safetensors", 1.009), recorded) == (True, "w: 0.009 of its norm")
    assert distance(tensors("c.safetensors", 1.011), recorded) == (False, "w: 0.011 of its norm")


def test_whole_numbers_header_and_shapes_must_be_equal(tensors, tmp_path):
    recorded = tensors("a.safetensors")
    assert distance(tensors("b.safetensors", labels=(1, 3)), recorded) == (
        False,
        "labels: other whole numbers",
    )
    assert distance(tensors("c.safetensors", header={"parameters": "6"}), recorded)[0] is False
    save_tensors(tmp_path / "d.safetensors", {"w": np.zeros((3, 2), np.float32)}, {})
    assert distance(tmp_path / "d.safetensors", recorded) == (False, "other tensors or shapes")


def test_a_tensor_that_is_not_finite_is_far_from_any(tensors):
    assert distance(tensors("b.safetensors", np.nan), tensors("a.safetensors"))[0] is False


@pytest.mark.parametrize(
    ("made", "recorded", "close"),
    [
        ({"top1": 0.90}, {"top1": 0.885}, True),  # 1.5 points
        ({"top1": 0.90}, {"top1": 0.87}, False),
        ({"nll": 100.9}, {"nll": 100.0}, True),  # 0.9 %
        ({"nll": 101.1}, {"nll": 100.0}, False),
        ({"test": {"per_class": {"3": 0.90}}}, {"test": {"per_class": {"3": 0.86}}}, True),
        ({"name": "a"}, {"name": "b"}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ({"a": True}, {"a": False}, False),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]}, True),
    ],
)
def test_numbers_of_json(tmp_path, made, recorded, close):
    for name, value in (("a.json", made), ("b.json", recorded)):
        (tmp_path / name).write_text(json.dumps(value))
    assert distance(tmp_path / "a.json", tmp_path / "b.json")[0] is close


def test_csv_names_the_cell_that_is_furthest_outside(tmp_path):
    (tmp_path / "a.csv").write_text("epoch,loss,val_top1\n1,2.0,0.5\n2,1.0,0.6\n")
    (tmp_path / "b.csv").write_text("epoch,loss,val_top1\n1,2.0,0.51\n2,1.5,0.6\n")
    assert distance(tmp_path / "a.csv", tmp_path / "b.csv") == (False, "row 2 loss: 1 instead of 1.5")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"{"])
def test_a_damaged_file_is_different_and_no_error(tmp_path, content):
    for name in ("a.safetensors", "a.json", "a.csv", "a.bin"):
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"other.{name}").write_bytes(b"{}")
        assert distance(tmp_path / name, tmp_path / f"other.{name}")[0] is False


def test_pages_may_differ_in_their_provenance_only(tmp_path):
    page = "<p>{}</p><!-- provenance -->\n<p>{}</p><!-- /provenance --></html>"
    for name, values in (("a", "72 x"), ("b", "72 y"), ("c", "73 x")):
        (tmp_path / name).write_text(page.format(*values.split()))
    assert same_page(tmp_path / "a", tmp_path / "b")
    assert not same_page(tmp_path / "a", tmp_path / "c")


def test_figures_and_printed_tables_are_drawn_from_other_numbers():
    assert is_drawn("results/digits/table.md") and is_drawn("results/digits/figures/val_loss.csv")
    assert not is_drawn("results/digits/table.csv") and not is_drawn("runs/digits/a/seed0/history.csv")
