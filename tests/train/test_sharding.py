"""Each process holds its part of weights, gradients and what the optimizer keeps, and no more."""

import json

from tests import processes

SHARED = """
import copy
import json
import torch
from attnprior.models.vit import build_vit
from attnprior.ranks import leads, rank
from attnprior.train import parallel, sharding
from attnprior.train.ema import Average
from attnprior.train.optim import Optimizer
from tests.train.small import RECIPE, TINY

def held(tensors):
    return sum(parallel.local(t).numel() for t in tensors)

def differentiate(model):
    logits, found = model(images, record=("q", "k"))
    products = sum((q * k).sum() for q, k in zip(found["q"], found["k"], strict=True))
    (logits.square().sum() + products).backward()

with parallel.joined(torch.device("cpu")):
    model = build_vit(TINY, 0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = {"all": held(model.parameters())}
    rng = torch.Generator().manual_seed(rank())
    images = torch.rand(4, TINY.in_chans, TINY.image_size, TINY.image_size, generator=rng)
    plain = copy.deepcopy(model)
    differentiate(plain)
    sums = {name: p.grad for name, p in plain.named_parameters()}
    for gradient in sums.values():
        torch.distributed.all_reduce(gradient)
    with sharding.spread(model):
        optimizer, average = Optimizer(model.named_parameters(), RECIPE), Average(model, 0.9)
        said["weights"] = held(model.parameters())
        differentiate(model)
        said["gradients"] = held(p.grad for p in model.parameters())
        said["far"] = max(
            ((parallel.whole(p.grad) - sums[n]).norm() / (sums[n].norm() + 1e-3)).item()
            for n, p in model.named_parameters()
        )
        optimizer.step(0.01)
        optimizer.zero_grad()
        average.update()
        said["moments"] = held(t for s in optimizer.state_dict().values() for t in s.values() if t.ndim)
        said["average"] = held(average.state_dict().values())
        with sharding.together(model):
            if leads():
                with torch.inference_mode():
                    inside = model(images)[0]
        said["again"] = held(model.parameters())
        own = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        saved = sharding.gathered(own)
        moments = [t for state in optimizer.state_dict().values() for t in state.values()]
        with torch.no_grad():
            for tensor in [*model.parameters(), *moments]:
                parallel.local(tensor).zero_()
        sharding.restore(own, saved if leads() else None)
        said["restored"] = sum(int(parallel.local(t).count_nonzero()) for t in moments)
    if leads():
        said["kind"] = type(model).__name__
        said["close"] = torch.equal(model(images)[0], inside)
        said["moved"] = any(not torch.equal(before[n], t) for n, t in model.state_dict().items())
print(json.dumps(said))
"""


def test_each_process_holds_its_part_of_the_sums_and_the_first_has_all_in_the_end():
    said = []
    for status, out, error in processes.shared(SHARED, seconds=120):
        assert status == 0, error
        said.append(json.loads(out))
    first, second = said
    for what, times in {"weights": 1, "gradients": 1, "moments": 2, "average": 1, "again": 1}.items():
        assert first[what] + second[what] == times * first["all"], what  # nothing is held twice
        assert max(first[what], second[what]) < 0.6 * times * first["all"], what
    assert max(first["far"], second["far"]) < 1e-5
    assert first["restored"] > first["moments"] / 2
    assert first["kind"] == "ViT" and first["close"] and first["moved"]
