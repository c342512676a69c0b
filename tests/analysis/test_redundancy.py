import numpy as np
import pytest

from attnprior.analysis.redundancy import COLUMNS, Entering, holds, redundant, table
from tests.stages.fake_runs import spectrum


def entering(ranks, channels=64, tokens=16):
    values = spectrum(ranks, min(channels, tokens))
    return Entering("student", "digits", "arm", 0, channels, tokens, values)


def test_redundancy_needs_as_many_channels_as_aggregated_filter_entries():
    assert redundant(512, 20, 5) and not redundant(512, 21, 5)
    assert redundant(9, 1, 3) and not redundant(8, 1, 3)


@pytest.mark.parametrize(("channels", "tokens"), [(64, 16), (16, 64), (512, 256)])
def test_the_strict_rank_is_that_of_numpys_own_rule(channels, tokens):
    rng = np.random.default_rng(0)
    made = rng.normal(size=(3, tokens, 7)) @ rng.normal(size=(3, 7, channels))
    x = (made + 1e-5 * rng.normal(size=made.shape)).astype(np.float32)
    values = np.linalg.svd(x, compute_uv=False)
    found = Entering("student", "d", "a", 0, channels, tokens, (values / values[:, :1])[None])
    assert found.ranks("strict")[0].tolist() == np.linalg.matrix_rank(x).tolist()
    assert found.ranks("loose").tolist() == [[7, 7, 7]]


def test_the_condition_has_to_hold_for_every_image():
    network = entering([[(7, 7), (7, 3)], [(8, 7), (7, 7)], [(16, 8), (8, 7)]])
    assert holds(network, "loose", 3).tolist() == [True, True, False]  # 64 / 9 is 7.1
    assert holds(network, "strict", 3).tolist() == [True, False, False]
    assert not holds(network, "loose", 5).any()


def test_rows_name_layers_from_one_and_every_filter_size():
    rows = list(table([entering([[(7, 2), (7, 3)]])], [3, 5]))
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert [(r["filter_size"], r["holds"]) for r in rows] == [(3, 1), (5, 0), (3, 1), (5, 0)]
    assert [r["tolerance"] for r in rows[::2]] == [0.01, 2**-23 * 64]
    assert [(r["rank_mean"], r["rank_min"], r["rank_max"]) for r in rows[::2]] == [(2.5, 2, 3), (7.0, 7, 7)]
    assert {r["layer"] for r in rows} == {1}
