"""Processes that share a training part from each other, however it ends."""

import pytest

from tests import processes

PARTED = """
import torch
from attnprior.train import parallel
try:
    with parallel.joined(torch.device("cpu")):
        assert torch.distributed.is_initialized()
        parallel.told(None)  # one that left before the others had met would fail them
        {step}
except ValueError:
    pass
print(torch.distributed.is_initialized())
"""


@pytest.mark.parametrize("step", ["pass", "parallel.leave()", "raise ValueError"])
def test_a_training_leaves_its_group_when_it_ends_or_fails(step):
    for status, out, error in processes.shared(PARTED.format(step=step), seconds=60):
        assert (status, out) == (0, "False\n"), error
