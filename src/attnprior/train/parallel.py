"""One training shared by several processes, each with the weights, on some of the batches of every step.

The batches of a step (`accumulate` of a recipe) are dealt out in turn. Gradients and values are summed over
the processes before the optimizer moves, so that all keep the same weights; a batch is drawn as by one
process, so that only the order of sums differs. Process 0 alone evaluates, saves and writes.
`attnprior.stages.launch` starts them.
"""

import contextlib
import ctypes
import signal
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnprior.errors import UserError, one_line
from attnprior.ranks import rank, size

T = TypeVar("T")
PATIENCE = timedelta(hours=1)  # process 0 evaluates between two epochs, and the others wait for it
REASONS = ("SIGTERM", "SIGUSR1", "SIGINT", "time limit")  # to stop, as `stopping.Watch.wanted` says them
PR_SET_PDEATHSIG = 1  # of prctl(2), Linux


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Meet the other processes of this training, if there are any; part from them when the block ends.

    Raises:
        UserError: they do not come.
    """
    if size() == 1:
        yield
        return
    with contextlib.suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # save and end if the launcher is killed
    with _others():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield
    except BaseException:
        if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
            leave()  # its threads would abort a process that ends; NCCL would wait for the others
        raise
    leave()


def leave() -> None:
    """Part from the other processes: the training is over."""
    if size() > 1 and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def dealt(batches: Sequence[T]) -> list[tuple[int, T, bool]]:
    """Return (number, batch, whether it counts) for the batches of a step that this process takes.

    One for which there is none repeats the first, which does not count, so that all have the same gradients.
    """
    own = [(number, batch, True) for number, batch in enumerate(batches)][rank() :: size()]
    return own or [(0, batches[0], False)]


def summed(parameters: Sequence[nn.Parameter], seen: Tensor, reason: str | None) -> tuple[Tensor, str | None]:
    """Sum gradients over the processes, in place, and return the summed `seen` and the first reason to stop.

    seen: (n,) float32, values of the batches of this process. reason: why it wants to stop, or None.
    """
    if size() == 1:
        return seen, reason
    gradients = [p.grad for p in parameters if p.grad is not None]
    asks = seen.new_tensor([float(reason == each) for each in REASONS])
    flat = torch.cat([*(g.reshape(-1) for g in gradients), seen, asks])  # one message a step
    with _others():
        torch.distributed.all_reduce(flat)
    parts = flat.split([*(g.numel() for g in gradients), len(seen), len(asks)])
    for gradient, part in zip(gradients, parts, strict=False):
        gradient.copy_(part.view_as(gradient))
    asked = [each for each, count in zip(REASONS, parts[-1].tolist(), strict=True) if count > 0]
    return parts[-2].clone(), asked[0] if asked else None


def told(value: T) -> T:
    """Return what process 0 has as `value`: plain numbers, texts, lists and dicts."""
    if size() == 1:
        return value
    box: list[Any] = [value]
    with _others():
        torch.distributed.broadcast_object_list(box)
    return box[0]


def copied(tensors: Sequence[Tensor]) -> None:
    """Give the tensors (on the training's device) the values that they have in process 0."""
    if size() == 1:
        return
    with torch.no_grad(), _others():
        for tensor in tensors:
            torch.distributed.broadcast(tensor, 0)


@contextlib.contextmanager
def _others() -> Iterator[None]:
    """Turn the ends that a broken connection makes into one line."""
    try:
        yield
    except (torch.distributed.DistError, RuntimeError) as e:
        said = one_line(e)[:200]
        raise UserError(
            f"process {rank()} of {size()}: the others cannot be reached, so one of them ended ({said});"
            " the log has what it said; run again to continue"
        ) from e
