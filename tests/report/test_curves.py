"""The figure of learning curves: how many lines stand in one axes, and on which scale."""

import numpy as np
import pytest

from attnprior.config import build_study
from attnprior.report import curves, style


def study(panels, datasets=("digits",)):
    """`panels` are numbers of arms, the baseline included."""
    made = {
        "title": "t",
        "datasets": list(datasets),
        "seeds": [0, 1],
        "teacher_seed": None,
        "confidence": 0.95,
        "panels": {
            f"p{i}": {
                "title": f"P{i}",
                "baseline": f"p{i}a1",
                "arms": [f"p{i}a{j}" for j in range(arms)],
                "controls": [],
            }
            for i, arms in enumerate(panels)
        },
    }
    return build_study(made, "studies.s")


def histories(study):
    epochs = np.arange(1, 6.0)
    found = {}
    for d, dataset in enumerate(study.datasets):
        for panel in study.panels.values():
            for j, arm in enumerate(panel.arms):
                for k in study.seeds:
                    top1 = (0.1 + 0.01 * j) * epochs / (1 + d)
                    found[dataset, arm, k] = {"epoch": epochs, "val_top1": top1, "val_loss": 1 + d - top1}
    return found


def axes_of(made):
    with style.look():
        return curves.curves(made, histories(made))


@pytest.mark.parametrize("panels", [[36], [6] * 6, [2], [9], [10]])
def test_every_arm_is_drawn_and_no_axes_has_more_than_nine_lines(panels):
    made = study(panels)
    drawn = axes_of(made)
    names = [[line.get_label() for line in axes.lines] for axes in drawn.figure.axes]
    assert max(map(len, names)) <= 9
    for panel in made.panels.values():
        assert {n for own in names for n in own} >= set(panel.arms)
        own = [n for n in names if set(n) <= set(panel.arms)]
        assert own and all(n[0] == panel.baseline for n in own)
    assert ("shown in parts" in drawn.caption) == (max(panels) > 9)


def test_all_axes_of_a_data_set_share_their_scale():
    figure = axes_of(study([12, 3], ("digits", "letters"))).figure
    scales = {}
    for i, axes in enumerate(figure.axes):
        dataset = axes.figure.axes[i - i % 2].get_title(loc="left").split(", ")[1].split()[0]
        scales.setdefault((dataset, i % 2), set()).add(axes.get_ylim())
    assert len(scales) == 4
    assert all(len(found) == 1 for found in scales.values())
    assert scales["digits", 0] != scales["letters", 0]
