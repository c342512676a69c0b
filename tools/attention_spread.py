"""How broad the attention of a finished study's networks is, how much it follows the image, where it falls.

Run `python tools/attention_spread.py STUDY SEED` in its checkout. A line per network, a value per layer:
tokens seen (exponential of the entropy of a row), in brackets how far a map is from the mean map over images
(total variation); for an impulse arm also, at its first and last weights, the share on the fit's targets.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from attnprior.analysis.looks import choose_images
from attnprior.config import Model, Recipe, Student, build, build_model
from attnprior.data import datasets
from attnprior.data.loader import normalise
from attnprior.files import load_tensors
from attnprior.init.impulse import fit_report, targets
from attnprior.models.mae import load_teacher_encoder
from attnprior.train.students import build_network, load_network
from attnprior.workflow import graph, params

IMAGES = 32


@torch.inference_mode()
def maps_of(vit, images: Tensor) -> list[Tensor]:
    """Return the attention of each layer to the patches, (n, H, N, N)."""
    _, recorded = vit.eval()(images, record=("logits",), copied=None)
    p = vit.prefix
    return [logits.float().softmax(-1)[:, :, p:, p:] for logits in recorded["logits"]]


def spread(maps: list[Tensor]) -> str:
    seen = [-(m * m.clamp_min(1e-12).log()).sum(-1) for m in maps]
    apart = [(m - m.mean(0)).abs().sum(-1).mean() / 2 for m in maps]
    pairs = zip(seen, apart, strict=True)
    return ", ".join(f"{s.exp().mean():.1f} tokens ({d:.2f})" for s, d in pairs)


def on_target(maps: list[Tensor], fit: str, grid: int) -> str:
    wanted = targets(load_tensors(fit)[0]["offsets"], grid, grid)  # L H N N
    reports = [fit_report(m, t.expand_as(m)) for m, t in zip(maps, wanted, strict=True)]
    return ", ".join(f"{r['target_mass']:.2f}" for r in reports)


def main(study: str, seed: int) -> None:
    settings = params.load(".", [study])
    arms = graph.study_arms(settings, study)
    for dataset in settings["studies"][study]["datasets"]:
        data = datasets.load(f"data/{dataset}.safetensors")
        images = normalise(choose_images(data, IMAGES)[0], data.mean, data.std)
        names = [arm.student for arm in arms if arm.dataset == dataset]
        for path in sorted({f for n in names for f in graph.teacher_weights(settings, dataset, n, seed)}):
            spread_of = spread(maps_of(load_teacher_encoder(*load_tensors(path)), images))
            print(f"teacher {Path(path).parts[2]}: {spread_of}")
        for name in names:
            student = build(Student, settings["students"][name], f"students.{name}")
            model = build_model(settings["models"][student.model], f"models.{student.model}")
            if not isinstance(model, Model) or student.transfer.method == "copy":
                continue
            weights = f"runs/{dataset}/{name}/seed{seed}/weights.safetensors"
            last = maps_of(load_network(weights, None).student, images)
            print(f"{name}: {spread(last)}")
            for fit in graph.fit_file(settings, dataset, name, seed):
                recipe = build(Recipe, settings["recipes"][student.recipe], f"recipes.{student.recipe}")
                (teacher,) = graph.teacher_file(settings, dataset, name, seed, "transfer") or [None]
                network = build_network(student, model, recipe, seed, None, teacher, fit, name)
                first = maps_of(network.student, images)
                print(f"  on target, first: {on_target(first, fit, model.grid)}")
                print(f"  on target, last:  {on_target(last, fit, model.grid)}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
