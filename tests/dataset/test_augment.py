import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as oracle

from attnprior.config import Augment, ColorJitter, Erasing, RandAugment, build
from attnprior.data import randaugment, windows
from attnprior.data.augment import Augmented, Shifted, augment, erase, jitter, training_images
from attnprior.data.loader import normalise
from attnprior.randomness import generator
from attnprior.workflow.params import read_yaml
from tests.train.small import AUGMENT
from tests.workflow.project import ROOT

MEAN, STD = [0.3, 0.6], [0.2, 0.4]


def images(count=12, size=5):
    return torch.from_numpy(np.random.default_rng(0).integers(1, 256, (count, 2, size, size), dtype=np.uint8))


def moved(image, dy, dx):
    """The image moved by (dy, dx), black where nothing comes in, in plain loops."""
    out = np.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                out[:, y, x] = image[:, y + dy, x + dx]
    return out


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_a_batch_holds_the_zero_filled_moved_images(shift, seed, epoch, step):
    data = images()
    index = torch.tensor([3, 0, 7, 7])
    batch = Shifted(data, MEAN, STD, shift).batch(index, seed, epoch, step)
    draws = torch.randint(2 * shift + 1, (2, 4), generator=generator(seed, "augment", epoch, step)) - shift
    expected = np.stack(
        [moved(data[i].numpy(), dy, dx) for i, dy, dx in zip(index, *draws.tolist(), strict=True)]
    )
    torch.testing.assert_close(batch, normalise(torch.from_numpy(expected), MEAN, STD), rtol=0, atol=0)


def test_without_shift_and_as_plain_the_images_are_only_normalised():
    data = images()
    expected = normalise(data, MEAN, STD)
    assert torch.equal(Shifted(data, MEAN, STD, 0).batch(torch.arange(12), 0, 0, 0), expected)
    assert torch.equal(Shifted(data, MEAN, STD, 2).plain(), expected)


def test_each_image_and_step_has_its_own_move():
    data = images(1).expand(200, -1, -1, -1)
    shifted = Shifted(data, MEAN, STD, 1)
    batch = shifted.batch(torch.arange(200), 0, 0, 0)
    kinds, counts = torch.unique(batch.flatten(1), dim=0, return_counts=True)
    assert len(kinds) == 9
    assert counts.min() > 8  # 22 expected of each
    assert not torch.equal(batch, shifted.batch(torch.arange(200), 0, 0, 1))
    assert torch.equal(batch, shifted.batch(torch.arange(200), 0, 0, 0))


@pytest.mark.parametrize("shift", [0, 1])
def test_the_source_images_are_left_alone(shift):
    data = images()
    before = data.clone()
    Shifted(data, MEAN, STD, shift).batch(torch.arange(5), 0, 0, 0)
    assert torch.equal(data, before)


@given(st.integers(1, 3), st.integers(0, 100), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_the_gather_and_the_general_way_give_the_same_bytes(shift, seed, epoch, step):
    data, index = images(), torch.tensor([3, 0, 7, 7])
    fast = Shifted(data, MEAN, STD, shift).batch(index, seed, epoch, step)
    general = Augmented(data, MEAN, STD, replace(AUGMENT, padding=shift)).batch(index, seed, epoch, step)
    assert torch.equal(fast, general)


def test_only_a_padded_crop_alone_of_few_images_is_gathered(monkeypatch):
    padded = replace(AUGMENT, padding=2)
    assert isinstance(training_images(images(), MEAN, STD, padded), Shifted)
    assert isinstance(training_images(images(), MEAN, STD, replace(padded, flip=0.5)), Augmented)
    monkeypatch.setattr("attnprior.data.augment.WINDOWS", 12 * 2 * 9 * 9 - 1)
    assert isinstance(training_images(images(), MEAN, STD, padded), Augmented)


RANDAUGMENT = RandAugment("torchvision", 2, 14, before_crop=True)
TIMM = RandAugment("timm", 2, 9.0, False, 0.5, True, "bicubic")
NONE = replace(AUGMENT, crop="none", padding=None)
RESIZED = replace(NONE, crop="resized", scale=(0.08, 1.0), ratio=(0.75, 4 / 3), interpolation="bilinear")
ALL = replace(
    RESIZED,
    flip=0.5,
    randaugment=TIMM,
    color_jitter=ColorJitter(0.4, 0.4, 0.4, 0.1),
    erasing=Erasing(0.25, (0.02, 1 / 3), (0.3, 10 / 3), "noise"),
)
# What alone is done to 80 equal images, and how many unlike ones come out at least.
ALONE = {
    "padded crop": (replace(AUGMENT, padding=4), 40),
    "resized crop": (RESIZED, 60),
    "flip": (replace(NONE, flip=0.5), 2),
    "RandAugment of torchvision": (replace(NONE, randaugment=RANDAUGMENT), 60),
    "RandAugment of timm": (replace(NONE, randaugment=TIMM), 50),
    "brightness": (replace(NONE, color_jitter=ColorJitter(0.4, 0, 0, 0)), 60),
    "contrast": (replace(NONE, color_jitter=ColorJitter(0, 0.4, 0, 0)), 60),
    "saturation": (replace(NONE, color_jitter=ColorJitter(0, 0, 0.4, 0)), 60),
    "hue": (replace(NONE, color_jitter=ColorJitter(0, 0, 0, 0.3)), 60),
    "erasing": (replace(NONE, erasing=Erasing(1.0, (0.02, 0.3), (0.3, 3.3), "zero")), 60),
    "noise": (replace(NONE, erasing=Erasing(1.0, (0.5, 0.5), (1.0, 1.0), "noise")), 79),
}


def rgb(count=8, size=16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), generator=rng, dtype=torch.uint8)


@pytest.mark.parametrize("name", ALONE)
def test_equal_images_of_a_batch_are_changed_unlike(name):
    chosen, kinds = ALONE[name]
    data = rgb(1).repeat(80, 1, 1, 1)
    batch = augment(data, chosen, [0.5] * 3, [0.25] * 3, generator(0, "augment", 0, 0))
    assert len(torch.unique(batch.flatten(1), dim=0)) >= kinds


@pytest.mark.parametrize("random", [RANDAUGMENT, TIMM])
def test_operations_signs_and_strengths_are_drawn_per_image(random):
    names, which, values = randaugment._drawn(300, (32, 32), random, generator(0, "augment", 0, 0))
    for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"):
        distinct = len(values[name].unique())
        assert distinct == 2 if random is RANDAUGMENT else distinct > 250, name
    if random is TIMM:
        assert all(len(values[n].unique()) > 5 for n in ("Solarize", "SolarizeAdd"))
        assert len(values["Posterize"].unique()) > 1
    counts = torch.bincount(which[which >= 0], minlength=len(names))
    made = 600 if random is RANDAUGMENT else 300
    assert counts.sum().item() == pytest.approx(made, abs=60)
    assert counts.min() > made / len(names) * 0.4 and counts.max() < made / len(names) * 1.8


class Streamed:
    """Gives batches of images as they are asked for."""

    def __init__(self, data):
        self._data, self.shape = data, data.shape

    def __len__(self):
        return len(self._data)

    def __getitem__(self, rows):
        return self._data[rows].clone()


def test_batches_depend_on_seed_epoch_and_step_alone():
    data, index = rgb(), torch.tensor([1, 5, 5, 0])
    resident, streamed = (training_images(d, [0.5] * 3, [0.25] * 3, ALL) for d in (data, Streamed(data)))
    first = resident.batch(index, 3, 4, 5)
    resident.batch(index, 3, 4, 6)
    torch.rand(3)
    assert torch.equal(resident.batch(index, 3, 4, 5), first)
    assert torch.equal(streamed.batch(index, 3, 4, 5), first)
    for other in ((2, 4, 5), (3, 3, 5), (3, 4, 6)):
        assert not torch.equal(resident.batch(index, *other), first)
    assert torch.equal(data, rgb())


@given(
    st.integers(0, 1000),
    st.sampled_from([ALL, replace(ALL, randaugment=RANDAUGMENT), replace(ALL, flip=0.0)]),
)
@settings(max_examples=15, deadline=None)
def test_any_batch_keeps_shape_and_finite_values(seed, chosen):
    found = augment(rgb(5, seed=seed), chosen, [0.5] * 3, [0.25] * 3, generator(seed, "augment", 0, 0))
    assert found.shape == (5, 3, 16, 16) and found.dtype == torch.float32 and found.isfinite().all()


@pytest.mark.parametrize("before", [True, False])
def test_randaugment_comes_before_or_after_the_crop(before):
    random = replace(RANDAUGMENT, before_crop=before)
    levels = ([0.0] * 3, [1 / 255] * 3)  # normalised images are the values themselves
    rng = generator(1, "augment", 0, 0)
    found = augment(rgb(40), replace(AUGMENT, padding=4, randaugment=random), *levels, rng)
    rng = generator(1, "augment", 0, 0)
    expected = rgb(40)
    for part in ("random", "crop") if before else ("crop", "random"):
        if part == "crop":
            expected = augment(expected, replace(AUGMENT, padding=4), *levels, rng).round().byte()
        else:
            expected = randaugment.rand_augment(expected, random, levels[0], rng)
    assert (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize("magnitude", [0, 9, 14, 30])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", randaugment.TORCHVISION)
def test_each_operation_of_randaugment_is_torchvisions(name, sign, magnitude):
    magnitudes, signed = transforms.RandAugment(2, magnitude)._augmentation_space(31, (16, 16))[name]
    value = magnitudes[magnitude].item() if magnitudes.ndim else 0.0
    value = value * sign if signed else value / 255 if name == "Solarize" else value  # v2: of 1
    signs = torch.full((4,), sign, dtype=torch.float64)
    ours = randaugment.torchvision_value(name, magnitude, signs, (16, 16))
    found = randaugment.apply(name, rgb(4), ours, RANDAUGMENT, [0.5] * 3)
    theirs = v2.RandAugment(2, magnitude)
    for image, mine in zip(rgb(4), found, strict=True):
        assert torch.equal(
            mine,
            theirs._apply_image_or_video_transform(image, name, value, theirs.interpolation, theirs._fill),
        )


def test_randaugment_has_torchvisions_operations():
    assert set(randaugment.TORCHVISION) == set(transforms.RandAugment()._augmentation_space(31, (8, 8)))


def test_timms_strengths_are_those_of_its_formulas():
    level, sign = torch.tensor([0.0, 9.0, 10.0]).double(), torch.tensor([1.0, -1.0, 1.0]).double()
    stronger = {
        "ShearX": [0, -0.27, 0.3],
        "TranslateX": [0, -0.405 * 40, 0.45 * 40],
        "TranslateY": [0, -0.405 * 20, 0.45 * 20],
        "Rotate": [0, -27, 30],
        "Brightness": [1, 1 - 0.81, 1.9],
        "Posterize": [4, 1, 0],
        "Solarize": [256, 256 - 230, 0],
        "SolarizeAdd": [0, 99, 110],
    }
    for name, values in stronger.items():
        assert randaugment.timm_value(name, level, sign, (20, 40), True).tolist() == pytest.approx(values), (
            name
        )
    others = {"Posterize": [0, 3, 4], "Solarize": [0, 230, 256], "Color": [0.1, 1.72, 1.9]}
    for name, values in others.items():
        assert randaugment.timm_value(name, level, sign, (20, 40), False).tolist() == pytest.approx(values), (
            name
        )


def test_flips_and_erasing_come_as_often_as_asked():
    data, rng = rgb(1).repeat(2000, 1, 1, 1), generator(0, "augment", 0, 0)
    flipped = augment(data, replace(NONE, flip=0.3), [0.0] * 3, [1 / 255] * 3, rng)
    share = (flipped[:, 0, 0, 0] - data[0, 0, 0, 0]).abs().gt(0.5).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.04)
    erased = erase(torch.ones(2000, 3, 16, 16), Erasing(0.25, (0.1, 0.2), (0.5, 2.0), "zero"), rng)
    assert (erased == 0).flatten(1).any(1).float().mean().item() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("kind", ["crop", "erase"])
def test_windows_have_the_sizes_and_places_of_torchvisions(kind):
    scale, ratio, count = (0.08, 0.9), (0.5, 3.0), 4000
    image, rng = torch.zeros(3, 12, 12), generator(0, "augment", 0, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "crop":
            mine = torch.stack(windows.crop_windows(count, (12, 12), scale, ratio, rng), 1)
            theirs = [transforms.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(count)]
        else:
            mine = torch.stack(windows.erasing_windows(count, (12, 12), scale, ratio, rng), 1)
            mine = mine[mine[:, 2] > 0]
            theirs = [
                transforms.RandomErasing.get_params(image, scale, ratio, [0.0])[:4] for _ in range(count)
            ]
            theirs = [t for t in theirs if t[2] < 12]  # where nothing fits it hands on the image
    assert abs(len(mine) - len(theirs)) < 0.01 * count
    for column in range(4):
        found = [torch.bincount(v[:, column], minlength=13) / len(v) for v in (mine, torch.tensor(theirs))]
        assert (found[0] - found[1]).abs().max() < 0.035, column


pair = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted)


@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), pair, pair, st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_windows_lie_in_the_image(size, scale, ratio, seed):
    for draw in (windows.crop_windows, windows.erasing_windows):
        top, left, height, width = draw(20, size, scale, ratio, generator(seed, "augment", 0, 0))
        assert (top >= 0).all() and (left >= 0).all()
        assert (top + height <= size[0]).all() and (left + width <= size[1]).all()
        if draw is windows.crop_windows:
            assert (height > 0).all() and (width > 0).all()


def test_jitter_changes_as_torchvision_in_each_images_own_order():
    data, strength = rgb(60), ColorJitter(0.4, 0.3, 0.5, 0.2)
    found = jitter(data, strength, generator(2, "augment", 0, 0))
    rng = generator(2, "augment", 0, 0)
    u = torch.rand(4, 60, generator=rng, dtype=torch.float64)
    order = torch.rand(60, 4, generator=rng).argsort(1)
    low, high = (0.6, 0.7, 0.5, -0.2), (1.4, 1.3, 1.5, 0.2)
    changes = (oracle.adjust_brightness, oracle.adjust_contrast, oracle.adjust_saturation, oracle.adjust_hue)
    for i, image in enumerate(data):
        for k in order[i].tolist():
            image = changes[k](image, low[k] + (high[k] - low[k]) * u[k, i].item())
        assert torch.equal(image, found[i])
    assert len({tuple(o) for o in order.tolist()}) > 15
    assert torch.equal(jitter(data, ColorJitter(0, 0, 0, 0), rng), data)


def test_noise_is_standard_normal():
    chosen = Erasing(1.0, (0.5, 0.5), (1.0, 1.0), "noise")
    found = erase(torch.full((200, 3, 16, 16), 9.0), chosen, generator(0, "augment", 0, 0))
    noise = found[found != 9]
    assert len(noise) == 200 * 3 * round(math.sqrt(128)) ** 2
    assert noise.mean().abs() < 0.02 and noise.std().item() == pytest.approx(1, abs=0.02)


def test_the_recipes_for_svhn_mirror_no_image():
    recipes = read_yaml(ROOT / "params.yaml")["recipes"]
    found = [name for name in recipes if "svhn" in name]
    assert len(found) >= 2
    data = rgb(64)
    for name in found:
        chosen = build(Augment, {**recipes[name]["augment"], "randaugment": None}, name)
        batch = augment(data, chosen, [0.5] * 3, [0.25] * 3, generator(0, "augment", 0, 0))
        assert torch.equal(batch, normalise(data, [0.5] * 3, [0.25] * 3)), name
