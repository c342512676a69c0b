"""The figures of attention maps and reconstructions: what stands where, and what their captions say."""

import numpy as np
import pytest

from attnprior.analysis.saved_maps import read_maps
from attnprior.config import build_study
from attnprior.report import looks, sheet, style
from tests.stages import fake_runs


@pytest.fixture
def made(tmp_path):
    """Return a function: a study and the maps of some of its arms."""

    def make(shown=None, panels=None, datasets=("digits",), seeds=(0, 1), **how):
        whole = fake_runs.study(seeds=seeds, datasets=list(datasets))
        part = fake_runs.study(seeds=seeds, datasets=list(datasets))
        if shown is not None:
            part["panels"] = {"p": {**part["panels"]["model_i"], "arms": shown, "controls": []}}
        path = tmp_path / "maps.safetensors"
        fake_runs.write_maps(path, part, **how)
        return build_study(whole, "studies.digits"), read_maps(str(path), "digits")

    return make


def drawn(draw, *args):
    with style.look():
        return draw(*args)


def texts(figure):
    return [t.get_text() for t in figure.texts]


def test_every_network_has_a_row_below_its_panel_and_teachers_come_last(made):
    study, maps = made()
    found = texts(drawn(looks.attention, study, maps).figure)
    names = ["Model I_1 & 100 %", "random", "mimetic", "impulse", "copy_other"]
    names += ["Standard ViT", "vit_random", "vit_copy", "Teachers", "mae"]
    assert [t for t in found if t in names] == names
    assert "digits: where each layer looks" in found


def test_maps_are_shown_in_times_of_uniform_attention_of_all_tokens(made):
    study, maps = made(shown=["vit_copy"], teachers=())
    (network,) = maps.networks
    assert network.tokens == 17  # 16 patches and a class token
    images = [axes.images[0] for axes in drawn(looks.attention, study, maps).figure.axes if axes.images]
    shown = np.ma.filled(images[1].get_array(), np.nan)
    first = np.unique(shown[: round(0.4 * style.DPI), : round(0.4 * style.DPI)])
    np.testing.assert_allclose(first, np.unique(17 * network.looked[0, 0]))


def test_captions_say_which_images_whose_maps_and_what_is_missing(made):
    arms = ["random", "impulse", "copy_other"]
    study, maps = made(arms, datasets=("digits", "letters"), seeds=(1, 0), split="train", depth=6)
    text = drawn(looks.attention, study, maps).caption
    assert "seed 1 of each arm: 3 training images of digits, 3 training images of letters" in text
    assert "never test images" in text
    assert "copy_other (mae, next image)" in text
    assert "At most 4 layers and heads are shown" in text
    left = ["mimetic", "vit_random", "vit_copy"]
    shown = ", ".join(f"{d}/{arm}" for d in ("digits", "letters") for arm in left)
    assert f"Left out for want of room: {shown}." in text
    assert "Class tokens" not in text
    study, maps = made()
    text = drawn(looks.attention, study, maps).caption
    assert "missing from the maps of vit_random, vit_copy." in text
    assert "Left out" not in text


def test_rebuilt_images_have_the_visible_patches_of_the_input(made):
    study, maps = made()
    (found,) = maps.rebuilt
    (axes,) = drawn(looks.reconstruction, study, maps).figure.axes
    dots = axes.images[0].get_array()
    side, step = round(style.DPI * 1.0), style.DPI * 1.08
    rows = [dots[round(step * k) :, :][:side, :side, 0] for k in range(3)]
    visible = ~found.hidden[0, 0].repeat(18, 0).repeat(18, 1)
    at = np.arange(8) * side // 8 + side // 16  # the middle of each pixel
    middle = np.ix_(at, at)
    original, masked, rebuilt = (r[middle] for r in rows)
    seen = ~found.hidden[0, 0]
    assert visible.any()
    np.testing.assert_allclose(original, maps.images["digits"][0, 0])
    np.testing.assert_allclose(masked[seen], original[seen])
    np.testing.assert_allclose(rebuilt[seen], original[seen])
    np.testing.assert_allclose(rebuilt[~seen], np.clip(found.predicted[0, 0], 0, 1)[~seen])
    assert set(np.unique(masked[~seen])) <= set(looks.STRIPES)


def test_the_caption_of_reconstructions_says_what_is_pasted_and_put_back(made):
    text = drawn(looks.reconstruction, *made()).caption
    assert "hidden patches striped (75 %)" in text
    assert "visible patches are those of the input, pasted in" in text
    assert "the brightness and contrast of a patch are not its own" in text


def test_without_a_masked_autoencoder_the_figure_says_so(made):
    found = drawn(looks.reconstruction, *made(teachers=()))
    assert found.left_out
    assert "no student of this study has a masked autoencoder as its teacher" in found.caption


@pytest.mark.parametrize(
    ("count", "places"), [(1, [0]), (4, [0, 1, 2, 3]), (6, [0, 2, 3, 5]), (12, [0, 4, 7, 11])]
)
def test_of_many_layers_the_first_and_the_last_are_among_those_shown(count, places):
    assert looks.spread(count) == places


def test_pictures_lie_where_they_were_put_and_between_them_is_nothing():
    canvas = sheet.Canvas()
    canvas.put(1.0, 2.0, 0.2, np.array([[1.0, 2.0], [3.0, 4.0]]))
    canvas.put(1.4, 2.0, 0.2, np.full((3, 3), 7.0))
    left, top, dots = canvas.dots()
    assert (left, top) == (150, 300)
    assert dots.shape == (30, 90)
    assert dots[0, 0] == 1 and dots[0, 29] == 2 and dots[29, 0] == 3 and dots[29, 29] == 4
    assert np.isnan(dots[:, 30:60]).all()
    assert (dots[:, 60:] == 7).all()
