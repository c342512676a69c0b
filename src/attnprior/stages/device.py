"""The device that a stage computes on."""

import os

from attnprior.errors import UserError


def import_torch(threads: int, device: str):
    """Import torch, set its threads and return the `torch.device` named `device`.

    Raises:
        UserError: `device` is not there.
    """
    import gc

    collecting = gc.isenabled()
    gc.disable()  # the import makes many objects and no garbage: 10 % faster
    import torch

    if collecting:
        gc.enable()
    torch.set_num_threads(threads)
    if device == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                "compute.device: cuda, but torch finds no GPU; set it to cpu or use a GPU machine"
            )
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif device != "cpu":
        raise UserError(f"compute.device: {device!r}; allowed: cpu, cuda")
    return torch.device(device)
