import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprior.errors import UserError
from attnprior.report import tables


def row(**changes):
    made = {"dataset": "digits", "panel": "p", "arm": "impulse", "role": "arm", "seeds": 5, "parameters": 10}
    for key, value in (("top1", 0.859), ("nll", 0.5), ("ece", 0.04)):
        made |= {f"{key}_mean": value, f"{key}_std": 0.007, f"{key}_low": 0.85, f"{key}_high": 0.868}
    made |= {"difference": 0.157, "difference_low": 0.12, "difference_high": 0.194}
    made |= {"difference_p": 0.0001, "difference_p_holm": 0.0004}
    made |= {"gflop_own": 81.25, "gflop_teacher": 1234.5, "gflop_fit": 0.0}
    return {**made, **changes}


def test_cells_in_per_cent_points_and_gflop():
    table = tables.make_table("T", "random", [row(), row(arm="random", difference_p_holm=None)], 0.95)
    assert table.cells[0] == [
        *(
            "impulse",
            "85.9 ± 0.7 (5)",
            "85.0 to 86.8",
            "0.500 ± 0.007",
            "4.0 ± 0.7",
            "+15.7",
            "+12.0 to +19.4",
        ),
        *("< 0.001", "81.2", "1234"),
    ]
    assert table.cells[1][0] == "random (baseline)"
    both = tables.make_table("T", "random", [row(gflop_teacher=700.0, gflop_fit=25.0)], 0.95)
    assert both.header[-1] == "teacher + fit" and both.cells[0][-1] == "725"
    assert len(table.header) == len(table.cells[0])


def test_negative_numbers_have_a_minus_sign_and_zero_has_none():
    assert tables.number(-0.04, 1) == "0.0"
    assert tables.number(-0.04, 1, signed=True) == "0.0"
    assert tables.number(-14.26, 1) == "\N{MINUS SIGN}14.3"
    assert tables.number(0.5, 1, signed=True) == "+0.5"


@given(st.floats(-1e6, 1e6), st.integers(0, 4), st.booleans())
def test_printed_numbers_are_the_rounded_values(value, digits, signed):
    text = tables.number(value, digits, signed)
    assert float(text.replace("\N{MINUS SIGN}", "-")) == pytest.approx(value, abs=0.5 * 10**-digits + 1e-9)


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"])))
def test_latex_has_no_special_character_left(text):
    """Undoing the escapes gives the text again, and nothing special stands unescaped."""
    out = tables.tex(text)
    bare = out
    named = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<"}
    named |= {"textgreater": ">", "textbar": "|"}
    pattern = re.compile(r"\\(" + "|".join(named) + r")\{\}|\\([{}&%$#_])|([^\\{}&%$#_~^<>|])")
    position, back = 0, ""
    while position < len(bare):
        found = pattern.match(bare, position)
        assert found, bare[position:]
        back += named[found[1]] if found[1] else found[2] or found[3]
        position = found.end()
    assert back == text


def test_markdown_cells_cannot_break_the_table():
    table = tables.Table("a|b", ["x|y", "z"], [["1|2", "`*_[<"]])
    text = tables.markdown([table], ["note_"])
    lines = [x for x in text.splitlines() if x.startswith("| ")]
    assert [len(re.findall(r"(?<!\\)\|", x)) for x in lines] == [3, 3]
    assert r"\`\*\_\[\<" in text
    assert "note\\_" in text


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True) | st.sampled_from(["nan", "inf", "infinity"])
values = st.none() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6).map(tables.rounded)


@given(rows=st.lists(st.fixed_dictionaries({"arm": names, "value": values}), min_size=1))
def test_csv_round_trips(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_bytes(tables.csv_text(rows, ["arm", "value"]).encode())
    assert b"\r" not in path.read_bytes()
    assert tables.read_csv(path, ["arm", "value"]) == rows


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cannot be read as a table"),
        ("arm,value\na,1\nb\n", "cannot be read as a table"),
        ("arm,other\na,1\n", "has other columns than arm, value"),
        ("arm,value\na,1\nb,0.12", "the last line is cut off"),
        ("arm,value\na,much\n", "value is no number"),
        ("arm,value\na,1-2\n", "cannot be read as a table"),
    ],
)
def test_what_is_no_whole_table_is_refused_in_a_line(tmp_path, text, complaint):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint) as caught:
        tables.read_csv(path, ["arm", "value"])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_floats_have_ten_significant_digits():
    assert tables.rounded(2 / 3) == 0.6666666667
    assert tables.csv_text([{"a": 2 / 3}], ["a"]) == "a\n0.6666666667\n"
