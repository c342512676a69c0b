import numpy as np

from attnprior.config import build_study
from attnprior.report import maps, style
from tests.stages import fake_runs


def drawn(arms: int):
    """Return the confusion matrices of so many arms that get every class right."""
    names = [f"arm_{i}" for i in range(arms)]
    panels = {"one": {"title": "One", "baseline": names[0], "arms": names, "controls": []}}
    study = build_study(fake_runs.study(panels=panels), "studies.digits")
    counts = {("digits", name): np.diag([5, 5, 5]) for name in names}
    with style.look():
        return maps.confusion(study, [], counts, {"digits": ["a", "b", "c"]})


def numbers(figure) -> int:
    return sum(text.get_text() == "100" for axes in figure.axes for text in axes.texts)


def test_matrices_have_numbers_written_in_unless_there_are_very_many():
    few, many = drawn(2), drawn(maps.MATRICES + 1)
    assert numbers(few.figure) == 2 * 3
    assert "written in" in few.caption
    assert numbers(many.figure) == 0
    assert "written in" not in many.caption
    assert len(many.figure.axes) >= maps.MATRICES + 1
