import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprior.train.schedule import describe, learning_rate, rate
from tests.train import small

RECIPE = replace(small.RECIPE, epochs=40, batch_size=32, lr=0.002, min_lr=0.0001, warmup_epochs=4)


def test_the_rate_warms_up_linearly_and_ends_at_its_floor():
    assert learning_rate(RECIPE, 0) == 0
    assert learning_rate(RECIPE, 1) == pytest.approx(0.0005)
    assert learning_rate(RECIPE, 4) == pytest.approx(0.002)
    assert learning_rate(RECIPE, 22) == pytest.approx((0.002 + 0.0001) / 2)  # half-way down the cosine
    assert learning_rate(RECIPE, 40) == pytest.approx(0.0001)


@given(st.floats(0, 40))
def test_the_rate_is_the_published_formula(epoch):
    if epoch < 4:
        expected = 0.002 * epoch / 4
    else:
        expected = 0.0001 + (0.002 - 0.0001) / 2 * (1 + math.cos(math.pi * (epoch - 4) / 36))
    assert learning_rate(RECIPE, epoch) == pytest.approx(expected)


def test_the_warm_up_starts_at_its_own_rate():
    recipe = replace(RECIPE, warmup_lr=0.001)
    assert [learning_rate(recipe, e) for e in (0, 2, 4)] == pytest.approx([0.001, 0.0015, 0.002])


@given(st.floats(0, 40))
def test_the_whole_cosine_is_that_of_timm(epoch):
    recipe = replace(RECIPE, schedule="cosine_whole", warmup_lr=0.00001)
    warm = 0.00001 + epoch * (0.002 - 0.00001) / 4
    cosine = 0.0001 + 0.5 * (0.002 - 0.0001) * (1 + math.cos(math.pi * epoch / 40))
    assert learning_rate(recipe, epoch) == pytest.approx(warm if epoch < 4 else cosine)


@given(st.integers(0, 1999))
def test_the_capped_cosine_is_that_of_the_public_cifar_code(epoch):
    recipe = replace(
        RECIPE, schedule="cosine_capped", epochs=2000, warmup_epochs=200, min_lr=None, warmup_lr=None
    )
    factor = min((epoch + 1) / 200, 0.5 * (math.cos(epoch / 2000 * math.pi) + 1))
    assert learning_rate(recipe, epoch) == pytest.approx(0.002 * factor)


@given(st.floats(0, 25))
def test_the_triangle_is_that_of_locuslab(epoch):
    recipe = replace(RECIPE, schedule="triangular", epochs=25)
    expected = np.interp(epoch, [0, 10, 20, 25], [0, 0.002, 0.0001, 0])
    assert learning_rate(recipe, epoch) == pytest.approx(expected, abs=1e-9)
    last = rate(recipe, 24, 6, 7)
    assert last == pytest.approx(0, abs=1e-9) and rate(recipe, 0, 0, 7) > 0  # the rate after the step


def test_a_constant_rate_warms_up_and_stays():
    recipe = replace(RECIPE, schedule="constant")
    assert [learning_rate(recipe, e) for e in (0, 2, 4, 30)] == [0, 0.001, 0.002, 0.002]


def test_a_rate_per_epoch_is_that_of_its_first_step():
    steps = [rate(replace(RECIPE, per="epoch"), 6, s, 5) for s in range(5)]
    assert set(steps) == {learning_rate(RECIPE, 6)}
    assert [rate(RECIPE, 6, s, 5) for s in range(5)] == [learning_rate(RECIPE, 6 + s / 5) for s in range(5)]


def test_the_log_line_names_effective_batch_and_peak_rate():
    line = describe(replace(RECIPE, accumulate=4), 1000)
    assert "effective batch 128 (32 x 4)" in line and "8 steps an epoch, 320 in all" in line
    assert "peak rate 0.002" in line
