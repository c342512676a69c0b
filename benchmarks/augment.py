"""Augmentation of a batch against torchvision image by image: seconds of each and their ratio, in one run.

Run `python benchmarks/augment.py [batch] [size]`; one thread.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402
from torchvision import transforms  # noqa: E402

from attnprior.config import Augment, Erasing, RandAugment  # noqa: E402
from attnprior.data.augment import augment  # noqa: E402
from attnprior.randomness import generator  # noqa: E402

NONE = Augment("none", 0.0, None, None, None, 0.0, 0.0)
REPEATS = 3


def cases(size: int) -> dict[str, tuple[Augment, list]]:
    """Return our settings and torchvision's transforms of the same, by name."""
    t = transforms
    padded = replace(NONE, crop="padded", padding=4, flip=0.5)
    resized = replace(NONE, crop="resized", scale=(0.08, 1.0), ratio=(0.75, 4 / 3), interpolation="bilinear")
    random = RandAugment("torchvision", 2, 14, before_crop=True)
    return {
        "padded crop, flip": (padded, [t.RandomCrop(size, padding=4), t.RandomHorizontalFlip()]),
        "resized crop": (resized, [t.RandomResizedCrop(size, antialias=True)]),
        "RandAugment, padded crop, flip": (
            replace(padded, randaugment=random),
            [t.RandAugment(2, 14), t.RandomCrop(size, padding=4), t.RandomHorizontalFlip()],
        ),
        "erasing": (
            replace(NONE, erasing=Erasing(0.25, (0.02, 0.33), (0.3, 3.3), "noise")),
            [t.RandomErasing(0.25, value="random")],
        ),
    }


def best(work: Callable[[], object]) -> float:
    """Return the least seconds of some repeats."""
    took = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return min(took)


def main() -> None:
    """Print a line per case."""
    torch.set_num_threads(1)
    count, size = (int(v) for v in (sys.argv[1:] + ["256", "32"][len(sys.argv) - 1 :]))
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, size, size), generator=rng, dtype=torch.uint8)
    mean, std = [0.5] * 3, [0.25] * 3
    normalise = transforms.Normalize(mean, std)
    print(f"{count} images of {size} x {size}, one thread, best of {REPEATS}")
    for name, (settings, theirs) in cases(size).items():
        late = [f for f in theirs if isinstance(f, transforms.RandomErasing)]
        early = transforms.Compose([f for f in theirs if f not in late])
        after = transforms.Compose([normalise, *late])

        def one_by_one(early=early, after=after) -> list:
            return [after(early(image).float() / 255) for image in images]

        ours = best(
            lambda settings=settings: augment(images, settings, mean, std, generator(0, "augment", 0, 0))
        )
        others = best(one_by_one)
        print(f"{name}: {ours:.4f} s, torchvision per image {others:.4f} s, ratio {others / ours:.1f}")


if __name__ == "__main__":
    main()
