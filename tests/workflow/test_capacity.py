"""A study that cannot fit this machine is refused before it starts; one that cannot be judged is not."""

import copy

import pytest

from attnprior.errors import UserError
from attnprior.workflow import capacity
from attnprior.workflow.params import read_yaml
from tests.workflow.project import ROOT


@pytest.fixture
def settings():
    return copy.deepcopy(read_yaml(ROOT / "params.yaml"))


def test_the_shipped_study_fits_and_has_a_size(settings):
    capacity.check_fits(settings, ["digits"])
    size = capacity.size_of(settings, "digits")
    assert size.jobs == 165
    assert size.flops > 1e12


def test_a_study_that_needs_more_memory_than_there_is_is_refused_in_one_line(settings):
    settings["models"]["model_i"] |= {"embed_dim": 2**20, "num_heads": 4}
    with pytest.raises(UserError, match="study 'digits' does not fit this machine: .* needs about") as caught:
        capacity.check_fits(settings, ["digits"])
    assert "\n" not in str(caught.value)


def test_where_the_estimate_does_not_know_an_entry_nothing_is_refused(settings):
    settings["models"]["model_i"]["kind"] = "of another world"
    assert capacity.size_of(settings, "digits") is None
    capacity.check_fits(settings, ["digits"])
