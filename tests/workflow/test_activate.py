import difflib
import shutil

import yaml

from attnprior.workflow.run import activate
from tests.workflow.project import ROOT


def test_a_study_is_added_to_the_active_ones_and_no_other_line_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = (tmp_path / "params.yaml").read_text()
    activate(["digits_labels"])
    after = (tmp_path / "params.yaml").read_text()
    changed = [d for d in difflib.ndiff(before.splitlines(), after.splitlines()) if d[0] in "+-"]
    assert len(changed) == 2
    assert changed[1].startswith("+ active: [digits, digits_labels] # studies that")
    assert yaml.safe_load(after) == yaml.safe_load(before) | {"active": ["digits", "digits_labels"]}
    assert "added digits_labels to `active`" in capsys.readouterr().out
