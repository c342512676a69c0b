"""Published values: well-formed, honest about what is missing, and shown beside ours."""

import pytest

from attnprior import published
from attnprior.config import Paper, build_study
from attnprior.errors import UserError
from attnprior.report.against import COLUMNS, against_notes, against_rows, against_table, read_against
from attnprior.report.tables import csv_text
from tests.workflow.project import ROOT

RECOVERED, MISSING = "2401.12511/t1/simple_vit/random/input_sincos", "2401.12511/t1/model_ii/random"


@pytest.fixture(scope="module")
def values():
    return published.read(ROOT / f for f in published.files())


def test_every_entry_is_whole_and_keys_are_unique(values):
    assert set(values) == published.keys()
    assert len(values) > 500
    assert {v["paper"] for v in values.values()} >= {
        "arXiv:2401.12511",
        "arXiv:2411.09702",
        "arXiv:2111.06377",
    }
    assert values[RECOVERED]["value"] == 71.91
    assert values["2411.09702/t1_figure_1/attention_copy"]["value"] == 85.1
    assert all((v["value"] is None) == (v["status"] == "not_recovered") for v in values.values())


def study(scaled=None, differs=None, keys=None, stated=()):
    panel = {"title": "P", "baseline": "a", "arms": ["a", "b"], "controls": []}
    paper = {"table": "T", "differs": differs, "values": {"d": keys or {}}, "stated": list(stated)}
    made = {"title": "S", "datasets": ["d"], "seeds": [0, 1], "teacher_seed": None, "confidence": 0.95}
    made |= {"panels": {"p": panel}, "paper": paper}
    return build_study({**made, **({"scaled": scaled} if scaled else {})}, "studies.s")


def row(arm, mean, low, high):
    numbers = {"top1_mean": mean, "top1_low": low, "top1_high": high, "seeds": 2}
    return {"dataset": "d", "panel": "p", "arm": arm, **numbers}


def rows_of(made, table, values):
    assert isinstance(made.paper, Paper)
    return against_rows(made, made.paper, table, values)


@pytest.mark.parametrize(
    ("low", "high", "inside"), [(0.7, 0.75, "yes"), (0.72, 0.8, "no"), (None, None, None)]
)
def test_a_published_value_is_inside_our_interval_or_not(values, low, high, inside):
    (found,) = rows_of(study(keys={"a": RECOVERED}), [row("a", 0.73, low, high), row("b", 0.1, 0, 1)], values)
    assert found["published"] == 71.91
    assert found["difference"] == pytest.approx(1.09)
    assert found.get("inside") == inside


def test_what_is_not_recovered_stays_so(values):
    made = study(keys={"a": MISSING}, stated=["2401.12511/t3/random/best_alpha"])
    found = rows_of(made, [row("a", 0.5, 0.4, 0.6)], values)
    shown = against_table(made, made.paper, found)
    assert shown.cells[0][2:] == ["not recovered", "not recovered", "50.0 (2)", "40.0 to 60.0", "–", "–"]
    assert shown.cells[1][0] == "–" and shown.cells[1][4:] == ["–", "–", "–", "–"]


def test_only_the_same_setting_at_full_scale_may_be_called_a_reproduction():
    scaled = {"of": "x", "images": 9, "epochs": "2 of 200", "steps": 5, "seeds": "1 of 3"}
    for made in (study(scaled=scaled), study(differs="other data")):
        assert any("no reproduction" in note for note in against_notes(made, made.paper))
    made = study()
    assert not any("reproduction" in note for note in against_notes(made, made.paper))


def test_rows_come_back_from_the_file(values, tmp_path):
    made = study(keys={"a": RECOVERED, "b": MISSING})
    found = rows_of(made, [row("a", 0.73, 0.7, 0.75), row("b", 0.5, 0.4, 0.6)], values)
    path = tmp_path / "paper.csv"
    path.write_text(csv_text(found, COLUMNS))
    back = read_against(str(path))
    assert against_table(made, made.paper, back) == against_table(made, made.paper, found)


def test_a_value_that_is_no_accuracy_stands_beside_no_arm(values):
    with pytest.raises(UserError, match="only top1 can stand beside an arm"):
        rows_of(study(keys={"a": "2401.12511/t3/random/best_alpha"}), [row("a", 0.5, 0.4, 0.6)], values)
