"""Each move equals torchvision's or PIL's on single images."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as classic
from torchvision.transforms.v2 import functional as oracle

from attnprior.data import geometry
from attnprior.data.randaugment import centred_matrix, corner_matrix

MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def noise(count=6, channels=3, height=12, width=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, height, width), generator=rng, dtype=torch.uint8)


@given(st.integers(0, 4), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_padded_crop_is_torchvisions(padding, seed):
    images = noise(seed=seed)
    top, left = torch.randint(2 * padding + 1, (2, 6), generator=torch.Generator().manual_seed(seed))
    found = geometry.shifted(images, top, left, padding)
    for image, ours, y, x in zip(images, found, top.tolist(), left.tolist(), strict=True):
        assert torch.equal(ours, oracle.crop(oracle.pad(image, [padding]), y, x, 12, 12))


def test_a_flip_is_torchvisions_and_only_of_the_chosen_images():
    images, mask = noise(), torch.tensor([True, False, True, True, False, False])
    for image, ours, flip in zip(images, geometry.flipped(images, mask), mask, strict=True):
        assert torch.equal(ours, oracle.horizontal_flip(image) if flip else image)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_resized_crop_is_torchvisions(interpolation, data):
    height, width = data.draw(st.tuples(st.integers(2, 14), st.integers(2, 14)))
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    y, x = data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w))
    images = noise(2, height=height, width=width, seed=data.draw(st.integers(0, 99)))
    window = [torch.tensor([v, o]) for v, o in ((y, 0), (x, 0), (h, height), (w, width))]
    found = geometry.resized(images, window, interpolation)
    mode = MODES[interpolation]
    exact = oracle.crop(images[0].double(), y, x, h, w)
    for size in ([h, width], [height, width]):  # rounded after rows and after columns, as bytes are
        exact = oracle.resize(exact, size, mode, antialias=True).round().clamp(0, 255)
    assert (found[0] - exact).abs().max() <= 2  # halves, rounded either way, twice
    whole = oracle.resized_crop(images[0], y, x, h, w, [height, width], mode, antialias=True)
    assert (found[0].int() - whole.int()).abs().max() <= 2  # that of bytes has integers as weights
    assert torch.equal(found[1], images[1])


MOVES = {
    "ShearX": lambda i, v: oracle.affine(
        i, 0.0, [0, 0], 1.0, [math.degrees(math.atan(v)), 0.0], center=[0, 0]
    ),
    "ShearY": lambda i, v: oracle.affine(
        i, 0.0, [0, 0], 1.0, [0.0, math.degrees(math.atan(v))], center=[0, 0]
    ),
    "TranslateX": lambda i, v: oracle.affine(i, 0.0, [int(v), 0], 1.0, [0.0, 0.0]),
    "TranslateY": lambda i, v: oracle.affine(i, 0.0, [0, int(v)], 1.0, [0.0, 0.0]),
    "Rotate": oracle.rotate,
}


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (17, 30)])
@pytest.mark.parametrize("name", MOVES)
def test_a_move_to_nearest_neighbours_is_torchvisions(name, size):
    images = noise(9, height=size[0], width=size[1])
    most = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(name, 8.9)
    values = torch.linspace(-most, most, 9, dtype=torch.float64)
    if name.startswith("Translate"):
        values = values.trunc()
    found = geometry.affine_nearest(images, centred_matrix(name, values, size))
    for image, ours, value in zip(images, found, values.tolist(), strict=True):
        assert torch.equal(ours, MOVES[name](image, value)), value


def pil(image, name, value, resample, fill):
    picture = classic.to_pil_image(image)
    matrix = {
        "ShearX": (1, value, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, value, 1, 0),
        "TranslateX": (1, 0, value, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, value),
    }
    if name == "Rotate":
        moved = picture.rotate(value, resample=resample, fillcolor=fill)
    else:
        moved = picture.transform(picture.size, Image.AFFINE, matrix[name], resample, fillcolor=fill)
    return classic.pil_to_tensor(moved)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(32, 32), (17, 30)])
@pytest.mark.parametrize("name", MOVES)
def test_a_smooth_move_is_pils(name, size, interpolation):
    images, fill = noise(9, height=size[0], width=size[1]), (120, 3, 255)
    most = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3}.get(name, 8.9)
    values = torch.linspace(-most, most, 9, dtype=torch.float64) + 0.011
    found = geometry.affine_smooth(
        images, corner_matrix(name, values, size), interpolation, torch.tensor([120.0, 3.0, 255.0])
    )
    resample = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}[interpolation]
    for image, ours, value in zip(images, found, values.tolist(), strict=True):
        expected = pil(image, name, value, resample, fill)
        assert (ours.int() - expected.int()).abs().max() <= 1
        assert (ours != expected).float().mean() < 0.001
