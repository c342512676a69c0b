"""One training shared by several processes, each on some of the batches of every step.

The batches of a step (`accumulate` of a recipe) are dealt out in turn. Gradients and values are summed over
the processes before the optimizer moves, so that all keep the same weights; a batch is drawn as by one
process, so that only the order of sums differs. Process 0 alone evaluates, saves and writes.
`attnprior.stages.launch` starts them. Each has the weights, or a part of them: `attnprior.train.sharding`.
"""

import contextlib
import ctypes
import signal
from collections.abc import Callable, Iterator, Sequence
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
    with others():
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

    One for which there are fewer repeats the first, which does not count, so that all do the same.
    """
    missing = -len(batches) % size()
    all_ = [(number, batch, True) for number, batch in enumerate(batches)]
    return [*all_, *[(0, batches[0], False)] * missing][rank() :: size()]


def summed(
    parameters: Sequence[nn.Parameter], seen: Tensor, reason: str | None, due: bool
) -> tuple[Tensor, str | None, bool]:
    """Sum gradients over the processes, in place, and return the summed `seen`, the first reason and `due`.

    seen: (n,) float32, values of the batches of this process. reason: why it wants to stop, or None.
    due: whether it wants the state saved; one is enough. Gradients of spread weights are summed already.
    """
    if size() == 1:
        return seen, reason, due
    gradients = [p.grad for p in parameters if p.grad is not None and not is_spread(p.grad)]
    asks = seen.new_tensor([float(due), *(float(reason == each) for each in REASONS)])
    flat = torch.cat([*(g.reshape(-1) for g in gradients), seen, asks])  # one message a step
    with others():
        torch.distributed.all_reduce(flat)
    parts = flat.split([*(g.numel() for g in gradients), len(seen), len(asks)])
    for gradient, part in zip(gradients, parts, strict=False):
        gradient.copy_(part.view_as(gradient))
    saves, *asked = (count > 0 for count in parts[-1].tolist())
    reasons = [each for each, wanted in zip(REASONS, asked, strict=True) if wanted]
    return parts[-2].clone(), reasons[0] if reasons else None, saves


def joint_norm(norm: Tensor) -> Tensor:
    """Return the Euclidean norm of what the processes hold together, from that of each one's own part."""
    square = norm.square()
    with others():
        torch.distributed.all_reduce(square)
    return square.sqrt()


def is_spread(tensor: Tensor) -> bool:
    """Return whether other processes hold parts of a tensor; PyTorch's module for that is not imported."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of it, unless it is spread."""
    return tensor.to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor; where it is spread, all processes call this at the same time."""
    return tensor.full_tensor() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def told(value: T) -> T:
    """Return what process 0 has as `value`: plain numbers, texts, lists and dicts."""
    if size() == 1:
        return value
    box: list[Any] = [value]
    with others():
        torch.distributed.broadcast_object_list(box)
    return box[0]


def copied(tensors: Sequence[Tensor]) -> None:
    """Give the tensors (on the training's device) the values that they have in process 0."""
    if size() == 1:
        return
    with torch.no_grad(), others():
        for tensor in tensors:
            torch.distributed.broadcast(tensor, 0)


@contextlib.contextmanager
def others(known: Callable[[Exception], bool] = lambda e: True) -> Iterator[None]:
    """Turn the ends that a broken connection makes, errors `known` to be such, into one line."""
    try:
        yield
    except RuntimeError as e:  # torch.distributed.DistError, too
        if not known(e):
            raise
        said = one_line(e)[:200]
        raise UserError(
            f"process {rank()} of {size()}: the others cannot be reached, so one of them ended ({said});"
            " the log has what it said; run again to continue"
        ) from e
