import difflib
import shutil

import pytest
import yaml

from attnprior.workflow.activate import activate
from tests.workflow.project import ROOT


def test_a_study_is_added_to_the_active_ones_and_no_other_line_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = (tmp_path / "params.yaml").read_text()
    activate(["digits_labels"])
    after = (tmp_path / "params.yaml").read_text()
    changed = [d for d in difflib.ndiff(before.splitlines(), after.splitlines()) if d[0] in "+-"]
    assert len(changed) == 2
    assert changed[1].startswith("+ active: [digits, digits_labels]  # studies that")
    assert yaml.safe_load(after) == yaml.safe_load(before) | {"active": ["digits", "digits_labels"]}
    assert "added digits_labels to `active`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("active:\n  - a  # first\n\nb: 1\n", "active:\n  - a  # first\n  - x\n  - y\n\nb: 1\n"),
        ("b: 1\nactive:\n- a", "b: 1\nactive:\n- a\n- x\n- y"),
        ("active: [\n  a,\n  x,\n]\nb: 1\n", "active: [\n  a,\n  x, y,\n]\nb: 1\n"),
        ("active: [a, x, y]\n", "active: [a, x, y]\n"),
    ],
)
def test_lists_keep_their_style_and_comments(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(text)
    activate(["x", "y"])
    assert (tmp_path / "params.yaml").read_text() == expected
