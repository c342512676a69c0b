import json

import pytest

from attnprior.analysis.panels import COMPARISON_COLUMNS
from attnprior.report import readme
from attnprior.report.tables import csv_text
from tests.report.test_findings import comparison

TEXT = "# Title\n\n<!-- results:digits -->\nold\n<!-- /results:digits -->\n\nAfter\n"
CLAIMS = "| better? | <!-- claim:digits impulse random --><!-- /claim --> |\n"
PICTURE = "![Accuracy](docs/digits-accuracy.png)\n"


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "results/digits"
    (folder / "figures").mkdir(parents=True)
    (folder / "table.md").write_text("| a |\n|---|\n| 1 |\n")
    (folder / "figures/accuracy.png").write_bytes(b"picture")
    (folder / "run.json").write_text(json.dumps({"params": '{"studies.digits": {"confidence": 0.95}}'}))
    rows = [comparison("impulse"), comparison("mimetic", difference=0.01, low=-0.1, high=0.12, p=0.7)]
    rows += [comparison("impulse", "copy", -0.02, -0.03, -0.01)]
    (folder / "comparisons.csv").write_text(csv_text(rows, COMPARISON_COLUMNS))
    (tmp_path / "README.md").write_text(TEXT)
    return str(tmp_path / "README.md"), str(folder)


def content(path):
    with open(path) as f:
        return f.read()


def test_the_table_replaces_what_stands_between_the_markers(files):
    assert readme.main([*files]) == 0
    text = content(files[0])
    assert text == (
        "# Title\n\n<!-- results:digits -->\n\n| a |\n|---|\n| 1 |\n\n<!-- /results:digits -->\n\nAfter\n"
    )
    assert readme.main([*files]) == 0
    assert content(files[0]) == text


@pytest.mark.parametrize(
    ("arms", "answer"),
    [
        ("impulse random", "**yes**: +10.0 points (+5.0 to +15.0)"),
        ("mimetic random", "not shown: +1.0 points (−10.0 to +12.0)"),
        ("impulse copy", "**no, the reverse**: −2.0 points (−3.0 to −1.0)"),
        ("copy impulse", "**yes**: +2.0 points (+1.0 to +3.0)"),
    ],
)
def test_a_claim_is_answered_from_the_comparison_of_its_arms(files, arms, answer):
    with open(files[0], "w") as f:
        f.write(CLAIMS.replace("impulse random", arms) + CLAIMS.replace("digits", "other"))
    assert readme.main([*files]) == 0
    first, second = content(files[0]).splitlines()
    assert first == f"| better? | <!-- claim:digits {arms} -->{answer}<!-- /claim --> |"
    assert second + "\n" == CLAIMS.replace("digits", "other")


def test_a_figure_is_copied_to_where_the_text_shows_it(files, tmp_path):
    with open(files[0], "w") as f:
        f.write(PICTURE)
    assert readme.main([*files, "--check"]) == 1
    assert readme.main([*files]) == 0
    assert (tmp_path / "docs/digits-accuracy.png").read_bytes() == b"picture"
    assert readme.main([*files, "--check"]) == 0


def test_check_tells_a_stale_text_and_changes_nothing(files, capsys):
    assert readme.main([*files, "--check"]) == 1
    assert "not what the studies show" in capsys.readouterr().err
    assert content(files[0]) == TEXT
    readme.main([*files])
    assert readme.main([*files, "--check"]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no marker", "nothing of study digits stands in the text"),
        (TEXT + TEXT, "stands 2 times"),
        ("<!-- /results:digits --> <!-- results:digits -->", "exchange them"),
        ("<!-- results:other --> <!-- /results:other -->", "nothing of study digits"),
        (CLAIMS.replace("impulse", "nothing"), "does not compare these arms"),
        (PICTURE.replace("accuracy", "nothing"), "cannot be read"),
    ],
)
def test_wrong_markers_are_one_line_errors(files, capsys, text, expected):
    with open(files[0], "w") as f:
        f.write(text)
    assert readme.main([*files]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert expected in err
    assert err.count("\n") == 1
    assert content(files[0]) == text


def test_an_absent_result_is_a_one_line_error(files, capsys):
    with open(files[0], "w") as f:
        f.write(CLAIMS.replace("digits", "absent"))
    assert readme.main([files[0], files[1].replace("digits", "absent")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
