"""What a study takes in short, and whether it fits this machine; where it cannot be told, nothing is said."""

import os
from dataclasses import dataclass

from attnprior.errors import UserError
from attnprior.workflow import costs
from attnprior.workflow.work import MIB


@dataclass(frozen=True)
class Size:
    """A study in short; operations of training, bytes of memory of the largest job and its key."""

    jobs: int
    flops: float
    memory: float
    largest: str


def size_of(settings: dict, study: str) -> Size | None:
    """Return what a study takes, or None where the estimate does not know its entries."""
    try:
        jobs = costs.jobs_of(settings, study)
    except costs.UNKNOWN:
        return None
    largest = max(jobs, key=lambda j: j.work.memory)
    return Size(len(jobs), sum(j.work.flops for j in jobs), largest.work.memory, largest.key)


def check_fits(settings: dict, studies: list[str]) -> None:
    """Check that no job of the studies needs more memory than this machine has, if they compute on the CPU.

    Raises:
        UserError: names the study, its largest job, and both numbers.
    """
    if settings["compute"]["device"] != "cpu":
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for study in studies:
        size = size_of(settings, study)
        if size is not None and size.memory > memory:
            raise UserError(
                f"study {study!r} does not fit this machine: {size.largest} needs about"
                f" {size.memory / MIB:,.0f} MiB of memory, there are {memory / MIB:,.0f};"
                " lower batch_size (and raise accumulate), or run it at a scale or on a larger machine"
            )
