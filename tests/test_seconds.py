import pytest

from attnprior.errors import UserError
from attnprior.seconds import seconds


@pytest.mark.parametrize(
    ("text", "least", "found"), [("3", None, 3.0), ("0.5", 0.2, 0.5), ("0", 0.0, 0.0), ("", None, 7.0)]
)
def test_a_number_in_the_environment_counts_and_nothing_does_not(monkeypatch, text, least, found):
    monkeypatch.setenv("ATTNPRIOR_X", text)
    assert seconds("ATTNPRIOR_X", 7.0, least=least) == found
    monkeypatch.delenv("ATTNPRIOR_X")
    assert seconds("ATTNPRIOR_X", 7.0) == 7.0 and seconds("ATTNPRIOR_X") is None


@pytest.mark.parametrize(
    ("text", "least", "allowed"),
    [
        ("soon", None, "above 0"),
        ("0", None, "above 0"),
        ("nan", 0.0, "from 0"),
        ("inf", None, "above 0"),
        ("-1", 0.0, "from 0"),
        ("0.1", 0.2, "from 0.2"),
    ],
)
def test_anything_else_is_named_with_what_is_allowed(monkeypatch, text, least, allowed):
    monkeypatch.setenv("ATTNPRIOR_X", text)
    with pytest.raises(UserError, match=f"^ATTNPRIOR_X: '{text}' is no number of seconds {allowed}; correct"):
        seconds("ATTNPRIOR_X", 7.0, least=least)
