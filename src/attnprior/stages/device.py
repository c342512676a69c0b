"""The device that a stage computes on."""

import os

from attnprior.errors import UserError


def import_torch(threads: int, device: str):
    """Import torch, set its threads and return the `torch.device` named `device`.

    Of several processes on one machine each gets a GPU of its own.

    Raises:
        UserError: `device` is not there, or there are fewer GPUs than processes.
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
        number = int(os.environ.get("LOCAL_RANK", "0"))
        if number >= torch.cuda.device_count():
            raise UserError(
                f"process {number} of this machine finds {torch.cuda.device_count()} GPUs; ask for as many as"
                " the recipe has processes, or lower processes"
            )
        torch.cuda.set_device(number)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif device != "cpu":
        raise UserError(f"compute.device: {device!r}; allowed: cpu, cuda")
    return torch.device(device)
