import pytest

from attnprior.report import readme

TEXT = "# Title\n\n<!-- results:digits -->\nold\n<!-- /results:digits -->\n\nAfter\n"


@pytest.fixture
def files(tmp_path):
    table = tmp_path / "results/digits/table.md"
    table.parent.mkdir(parents=True)
    table.write_text("| a |\n|---|\n| 1 |\n")
    (tmp_path / "README.md").write_text(TEXT)
    return str(tmp_path / "README.md"), str(table)


def test_the_table_replaces_what_stands_between_the_markers(files):
    assert readme.main([*files]) == 0
    with open(files[0]) as f:
        text = f.read()
    assert text == (
        "# Title\n\n<!-- results:digits -->\n\n| a |\n|---|\n| 1 |\n\n<!-- /results:digits -->\n\nAfter\n"
    )
    assert readme.main([*files]) == 0
    with open(files[0]) as f:
        assert f.read() == text


def test_check_tells_a_stale_table_and_changes_nothing(files, capsys):
    assert readme.main([*files, "--check"]) == 1
    assert "not the table of" in capsys.readouterr().err
    with open(files[0]) as f:
        assert f.read() == TEXT
    readme.main([*files])
    assert readme.main([*files, "--check"]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no marker", "stands 0 times"),
        (TEXT + TEXT, "stands 2 times"),
        ("<!-- /results:digits --> <!-- results:digits -->", "exchange them"),
        ("<!-- results:other --> <!-- /results:other -->", "stands 0 times"),
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
    with open(files[0]) as f:
        assert f.read() == text


def test_an_absent_table_is_a_one_line_error(files, capsys):
    assert readme.main([files[0], files[1] + "x"]) == 1
    assert "cannot be read" in capsys.readouterr().err
