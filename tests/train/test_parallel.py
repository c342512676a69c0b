"""Processes that share a training part from each other, however it ends."""

import socket

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
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = str(s.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    code = ["-c", PARTED.format(step=step)]
    started = [processes.start(code, RANK=str(number), **shared) for number in range(2)]
    for process in started:
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "False\n"), error
