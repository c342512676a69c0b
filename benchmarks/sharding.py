"""Memory of a process that shares a training, with whole and with sharded weights, and seconds of a step.

Run `python benchmarks/sharding.py [model] [processes]`, a ViT of `params.yaml`; on the CPU, one thread each.
Images are few and random. Process 0 has all weights for a moment when it evaluates and saves, so the last
process is measured.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

STEPS = 3
RECIPE = {
    **{"optimizer": "adamw", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.05, "decay": "matrices"},
    **{"lr": 1e-4, "schedule": "constant", "warmup_epochs": 0.0, "epochs": STEPS, "batch_size": 2},
    **{"layer_decay": 1.0, "ema": 0.0, "grad_clip": 1.0, "label_smoothing": 0.0, "drop_path": 0.0},
    "augment": {
        **{"crop": "none", "flip": 0.0, "randaugment": None, "color_jitter": None, "erasing": None},
        **{"mixup": 0.0, "cutmix": 0.0},
    },
}


def train(name: str, sharded: bool) -> None:
    """Train one of the processes; the last prints what it needed, as JSON."""
    import torch
    import torch.distributed.fsdp  # takes memory itself

    from attnprior.config import Model, Recipe, Transfer, build
    from attnprior.data.augment import training_images
    from attnprior.models.vit import build_vit
    from attnprior.ranks import rank, size
    from attnprior.train import engine, parallel
    from attnprior.train.checkpoint import Follower
    from attnprior.train.supervised import Network, Supervised
    from attnprior.workflow.params import read_yaml

    torch.set_num_threads(1)
    model = build(Model, read_yaml(ROOT / "params.yaml")["models"][name], name)
    shared = {"accumulate": size(), "processes": size(), "sharded": sharded}
    recipe = build(Recipe, RECIPE | shared, "recipe")
    count = recipe.batch_size * recipe.accumulate
    pixels = torch.randint(0, 256, (count, model.in_chans, model.image_size, model.image_size))
    images = training_images(pixels.to(torch.uint8), [0.5] * 3, [0.25] * 3, recipe.augment)
    labels = torch.arange(count) % model.num_classes
    with parallel.joined(torch.device("cpu")):
        network = Network(build_vit(model, 0), build(Transfer, {"method": "none"}, "transfer"))
        own = sum(p.numel() for p in network.student.parameters())
        begin = peak()
        epochs: list[float] = [time.perf_counter()]
        engine.train(
            *(network.student, Supervised(network, recipe, 0), images, labels),
            *(recipe, 0, Follower("nowhere")),  # type: ignore[arg-type]
            on_row=lambda _: epochs.append(time.perf_counter()),
        )
    if rank() == size() - 1:
        print(json.dumps({"bytes": peak() - begin, "parameters": own, "step": epochs[-1] - epochs[-2]}))


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(name: str, processes: int, sharded: bool) -> dict:
    """Return what a training in so many processes printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launcher, __file__, "worker", name, str(int(sharded))]
    # glibc keeps freed memory below a threshold that grows, unless it is set.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        errors.seek(0)
        assert done.returncode == 0, errors.read()
    return json.loads(done.stdout)


def main() -> int:
    """Print the measurements; return 0 if sharding leaves less of the state in a process."""
    name, processes = (sys.argv[1:] + ["vit_b16", "2"][len(sys.argv) - 1 :])[:2]
    found = {sharded: measured(name, int(processes), sharded) for sharded in (False, True)}
    for sharded, one in found.items():
        each = one["bytes"] / one["parameters"]
        print(
            f"{name}, {processes} processes, {'sharded' if sharded else 'whole'}: {one['step']:.1f} s a step,"
            f" {one['bytes'] / 2**30:.2f} GiB beside the first weights ({each:.1f} bytes a parameter)"
        )
    return 0 if found[True]["bytes"] < found[False]["bytes"] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        train(sys.argv[2], bool(int(sys.argv[3])))
        sys.exit()
    sys.exit(main())
