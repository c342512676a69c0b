import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprior.selection import head_numbers, layer_pairs, weight_at


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_layers_are_counted_from_the_start_or_from_the_end_of_both_networks(student, teacher, data):
    n = data.draw(st.integers(1, min(student, teacher)))
    assert layer_pairs({"first": n}, student, teacher) == [(i, i) for i in range(n)]
    last = layer_pairs({"last": n}, student, teacher)
    assert [(s - student, t - teacher) for s, t in last] == [(i, i) for i in range(-n, 0)]
    assert layer_pairs({"list": list(range(n))}, student, teacher) == layer_pairs(
        {"first": n}, student, teacher
    )


@given(st.integers(1, 16), st.data())
def test_heads_are_all_the_first_or_those_listed(count, data):
    n = data.draw(st.integers(1, count))
    some = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    assert head_numbers("all", count) == tuple(range(count)) == head_numbers({"first": count}, count)
    assert head_numbers({"first": n}, count) == tuple(range(n))
    assert head_numbers({"list": some}, count) == tuple(some)


@given(st.floats(0, 10), st.floats(0, 10), st.integers(2, 50))
def test_a_weight_moves_from_its_first_to_its_last_value(first, last, epochs):
    for schedule in ("linear", "cosine"):
        weight = {"schedule": schedule, "from": first, "to": last}
        values = [weight_at(weight, e, epochs) for e in range(epochs)]
        assert values[0] == pytest.approx(first) and values[-1] == pytest.approx(last)
        assert sorted(values, reverse=first > last) == pytest.approx(values)
        assert weight_at(weight, 0, 1) == first
    assert weight_at(first, 3, epochs) == first


def test_a_weight_follows_a_line_or_half_a_cosine():
    line, cosine = ({"schedule": s, "from": 4.0, "to": 0.0} for s in ("linear", "cosine"))
    assert [weight_at(line, e, 5) for e in range(5)] == [4, 3, 2, 1, 0]
    expected = [2 * (1 + math.cos(math.pi * e / 4)) for e in range(5)]
    assert [weight_at(cosine, e, 5) for e in range(5)] == pytest.approx(expected)
