"""Weights spread over the processes of a training, for a network that does not fit into one GPU.

PyTorch's `fully_shard` (FSDP2): each process keeps a part of every parameter, of its gradient and of what the
optimizer holds for it. Those of a block are whole while it computes, and gradients are summed when a batch of
every process has passed it. Only the order of sums differs from a training that every process has whole.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from attnprior.models.vit import Block
from attnprior.ranks import leads, size
from attnprior.train import parallel
from attnprior.train.parallel import is_spread, local, whole

State = dict[str, Any]  # tensors by name, at any depth


@contextlib.contextmanager
def spread(model: nn.Module) -> Iterator[None]:
    """Spread the parameters of `model` for the time of the block; then process 0 has it as a plain one again.

    The others are left without. When the block fails, nothing is put together: the others may be gone.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    parameters = dict(model.named_parameters())
    plain = [(m, type(m), {k: _shallow(v) for k, v in vars(m).items()}) for m in model.modules()]
    device = next(iter(parameters.values())).device
    mesh = init_device_mesh(device.type, (size(),))
    for part in [m for m in model.modules() if isinstance(m, Block)] + [model]:
        sharded = fully_shard(part, mesh=mesh)
        sharded.set_force_sum_reduction_for_comms(True)  # batches are weighted already: sums, not means
        sharded.set_gradient_divide_factor(1.0)
    for parameter in parameters.values():
        parameter.data = parameter.new_empty(0)
    with warnings.catch_warnings():
        # Of views that a network returns; nothing is changed in place here.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
        with parallel.others(lambda e: "gloo" in str(e) or "NCCL" in str(e)):
            yield
    state = gathered(model.state_dict())
    for module, kind, held in plain:
        module.__class__ = kind
        vars(module).clear()
        vars(module).update(held)
    if leads():
        for name, parameter in parameters.items():
            parameter.data = state[name].to(device)


@contextlib.contextmanager
def together(model: nn.Module) -> Iterator[None]:
    """Let each process have all weights for the time of the block, in which it may compute alone."""
    parts: list[Any] = [m for m in model.modules() if hasattr(m, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    yield
    for part in parts:
        part.reshard()
        part.set_reshard_after_forward(part is not model, recurse=False)


def gathered(state: State) -> State:
    """Return a state whose spread tensors are whole, on the CPU, in process 0, and missing in the others.

    All processes call this at the same time.
    """
    found: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found[name] = gathered(value)
        elif not is_spread(value):
            found[name] = value
        else:
            complete = whole(value)
            if leads():
                found[name] = complete.cpu()
    return found


def restore(own: State, saved: State | None) -> None:
    """Copy a state that process 0 has read (None: there is none, or this is another) into that of all."""
    if not parallel.told(saved is not None):
        return
    with torch.no_grad():
        _restore(own, saved)


def _restore(own: State, saved: State | None) -> None:
    for name, tensor in own.items():
        value = None if saved is None else saved[name]
        if isinstance(tensor, dict):
            _restore(tensor, value)
        elif is_spread(tensor):
            from torch.distributed.tensor import distribute_tensor

            complete = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            if value is not None:
                complete.copy_(value)
            parallel.copied([complete])
            parts = distribute_tensor(complete, tensor.device_mesh, tensor.placements, src_data_rank=None)
            local(tensor).copy_(local(parts))
        else:
            if value is not None:
                tensor.copy_(value)
            parallel.copied([tensor])


def _shallow(value: Any) -> Any:
    return value.copy() if isinstance(value, dict) else value  # submodules, parameters, hooks of a module
