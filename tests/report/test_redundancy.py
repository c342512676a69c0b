"""The figure of the redundancy condition: marks, lines at C / f^2, and what its caption claims."""

from dataclasses import replace

import numpy as np
import pytest

from attnprior.analysis.saved_maps import read_maps
from attnprior.config import build_study
from attnprior.report import redundancy, style
from tests.stages import fake_runs

LOW = [[(5, 4)] * 5, [(7, 6)] * 5]
HIGH = [[(16, 12)] * 5, [(16, 14)] * 5]


@pytest.fixture
def made(tmp_path):
    """Return a function: a study, and what was looked at of it."""

    def make(datasets=("digits",), panels=None, **how):
        whole = fake_runs.study(
            seeds=(1, 0), datasets=list(datasets), **({"panels": panels} if panels else {})
        )
        path = tmp_path / "maps.safetensors"
        fake_runs.write_maps(path, whole, **how)
        return build_study(whole, "studies.digits"), read_maps(str(path), "digits")

    return make


def drawn(*args):
    with style.look():
        return redundancy.redundancy(*args)


def labels(axes):
    return [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]


def test_every_arm_has_its_mean_ranks_and_a_line_stands_at_channels_over_filter_entries(made):
    figure = drawn(*made(), [3, 5]).figure
    assert len(figure.axes) == 4  # two panels, two tolerances
    for place, means in enumerate([[5, 9], [5, 13]]):
        axes = figure.axes[place]
        assert labels(axes)[:4] == ["random", "mimetic", "impulse", "copy_other"]
        for line in axes.lines[:4]:
            assert line.get_ydata().tolist() == means
            assert np.round(line.get_xdata()).tolist() == [1, 2]
        bars = axes.collections[0].get_segments()
        low, high = ((8, 10), (12, 16))[place]
        assert [sorted(bar[:, 1]) for bar in bars] == [[5, 5], [low, high]]
        levels = [
            line.get_ydata()[0]
            for line in axes.lines
            if line.get_linewidth() == 1.3 and len(line.get_ydata())
        ]
        assert levels == pytest.approx([64 / 9, 64 / 25])
        assert axes.get_ylim()[1] >= 16


def test_where_it_holds_the_caption_says_so(made):
    text = drawn(*made(ranks=LOW), [3]).caption
    assert "f = 3: the condition holds on these activations, in all 12 layers of these arms." in text
    assert "does not hold" not in text and "where it fails" not in text


def test_where_it_does_not_hold_the_caption_says_so_and_by_how_much(made):
    text = drawn(*made(ranks=HIGH), [3]).caption
    assert "f = 3: the condition does not hold on these activations: in 0 of 12 layers (loose)" in text
    assert "and in 0 of 12 layers (strict)" in text
    assert f"k f^2 / C is {13 * 9 / 64:.3g} on average and up to {14 * 9 / 64:.3g}" in text


def test_where_it_holds_in_part_the_caption_counts_layers_for_each_tolerance_and_size(made):
    text = drawn(*made(ranks=[LOW[0], [(8, 7)] * 4 + [(5, 5)]]), [3, 7]).caption
    assert (
        "f = 3: the condition holds for every image in 12 of 12 layers (loose; layer 1, 2 of an arm)"
        " and in 6 of 12 layers (strict; layer 1 of an arm), in the others it does not."
    ) in text
    assert "f = 7: the condition does not hold" in text


def test_the_caption_says_images_tolerances_seed_and_what_is_not_looked_at(made):
    study, maps = made(datasets=("digits", "letters"), split="train")
    maps = replace(maps, entering=[e for e in maps.entering if e.name != "mimetic"])
    text = drawn(study, maps, []).caption
    assert "seed 1 of each: 5 training images of digits, 5 training images of letters" in text
    assert "never test images" in text
    assert "0.01 at the left" in text and "7.6e-06" in text
    assert "No arm of this study has filters: f = 3 is an example" in text
    assert "Arms not looked at, since there are too many: digits/mimetic, letters/mimetic." in text
    assert "Teachers stand in redundancy.csv alone" in text
    assert text.isascii() and '"' not in text


def test_networks_of_other_widths_have_lines_of_their_own(made):
    study, maps = made(teachers=())
    first, *rest = maps.entering
    wide = replace(first, channels=128)
    found = drawn(study, replace(maps, entering=[wide, *rest]), [3])
    assert [t for t in labels(found.figure.axes[0]) if t.startswith("C / f")] == [
        "C / f\N{SUPERSCRIPT TWO} = 7.11 (C = 64, f = 3)",
        "C / f\N{SUPERSCRIPT TWO} = 14.2 (C = 128, f = 3)",
    ]


def test_panels_of_which_no_arm_was_looked_at_have_no_axes(made):
    study, maps = made()
    figure = drawn(study, replace(maps, entering=[e for e in maps.entering if "vit" in e.name]), [3]).figure
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Standard ViT", ""]


def test_where_nothing_was_looked_at_the_figure_says_so(made):
    study, maps = made()
    found = drawn(study, replace(maps, entering=[e for e in maps.entering if e.kind == "teacher"]), [3])
    assert found.left_out
    assert redundancy.NOTHING in found.caption
