import pytest

from attnprior.analysis.families import study_families
from attnprior.config import build_study
from attnprior.report.budgets import APART, budget_findings
from tests.report.test_findings import comparison
from tests.stages import fake_runs

BUDGETS = {50: "_50", 200: "", 1400: "_1400"}


def told(copy, vit, seeds=(0, 1, 2), **changes):
    """Return the sentences where `copy` and `vit` say what is shown at 50, 200 and 1400 labels: + - 0."""
    made = {**fake_runs.labels_study(seeds), **changes}
    settings = {s: fake_runs.settings(s) for s in fake_runs.students(made)}
    study, rows = build_study(made, "studies.x"), []
    for dataset in study.datasets:
        for family, signs in (("copy", copy), ("vit_copy", vit)):
            for (n, end), sign in zip(BUDGETS.items(), signs, strict=True):
                size = {"+": 1, "-": -1, "0": 1}[sign]
                limits = {"low": -0.1, "high": 0.2} if sign == "0" else {"low": 0.05, "high": 0.15}
                if sign == "-":
                    limits = {"low": -0.15, "high": -0.05}
                row = comparison(family + end, "random" + end, 0.1 * size, **limits)
                rows.append({**row, "dataset": dataset, "panel": f"labels_{n}"})
    return budget_findings(study, study_families(study, settings), rows)


@pytest.mark.parametrize(
    ("signs", "sentence"),
    [
        ("++0", "copy beats random with 50 and 200 labels; from 1,400 labels on no difference is shown."),
        ("+00", "copy beats random with 50 labels; from 200 labels on no difference is shown."),
        ("000", "copy: no difference to random is shown at any number of labels (50, 200 and 1,400)."),
        ("+++", "copy beats random with 50, 200 and 1,400 labels, at every number of labels."),
        ("0+0", "copy beats random with 200 labels; no difference is shown with 50 and 1,400 labels."),
        (
            "+0-",
            "copy beats random with 50 labels and falls behind random with 1,400 labels;"
            " no difference is shown with 200 labels.",
        ),
    ],
)
def test_a_sentence_per_family_says_where_a_difference_is_shown(signs, sentence):
    assert told(signs, "000")[1] == sentence


def test_the_summary_names_the_last_number_of_labels_with_a_shown_difference():
    first, *_, last = told("++0", "000")
    assert first == (
        "Largest number of labels at which a difference to random is shown: copy 200, vit_copy none."
    )
    assert last == APART


def test_one_seed_shows_nothing():
    assert told("+++", "+++", seeds=(0,)) == [
        "One seed: no interval, no test; no difference is shown at any number of labels."
    ]


def test_each_data_set_has_its_own_sentences():
    found = told("+00", "000", datasets=["digits", "letters"])
    assert found[1].startswith("copy on digits beats random with 50 labels")
    assert found[3].startswith("copy on letters beats random")


def test_a_panel_that_mixes_numbers_of_labels_compares_no_families():
    panel = {"title": "All", "baseline": "random", "arms": ["random", "copy_50", "copy_1400"], "controls": []}
    made = fake_runs.study(panels={"all": {**panel, "arms": [*panel["arms"], "random_50"]}})
    settings = {s: fake_runs.settings(s) for s in fake_runs.students(made)}
    study = build_study(made, "studies.x")
    found = study_families(study, settings)
    assert [f.name for f in found] == ["random", "copy"]
    assert budget_findings(study, found, []) == []
