"""Stage `fit_impulse`: queries and keys of every layer whose maps imitate random impulse filters."""

import sys
from dataclasses import asdict

from attnprior.config import Fit, Model
from attnprior.errors import UserError
from attnprior.files import save_tensors, write_json
from attnprior.models.checks import validate_fit, validate_model
from attnprior.stages.job import Job, Stage, run_stage
from attnprior.train.history import write_history

STAGE = Stage(
    "fit_impulse",
    wildcards=("fit", "seed"),
    inputs=(),
    outputs=("output", "metrics", "history"),
    checkpoint=True,
)
COLUMNS = ["step", "loss"]
EVERY = 100  # steps between two rows of the history


def work(job: Job) -> dict:
    """Fit all layers side by side and write the fit. It takes seconds, so a killed fit starts afresh."""
    name = job.wildcards["fit"]
    fit = job.settings(Fit, "fits", name)
    model = job.settings(Model, "models", fit.model)
    validate_model(model, f"models.{fit.model}")
    validate_fit(fit, model, f"fits.{name}")
    job.total = fit.steps
    job.start_torch()

    import torch

    from attnprior.init import impulse
    from attnprior.init.inputs import fit_inputs, fits_of_layers, starting_code
    from attnprior.train.checkpoint import Checkpoint

    with job.resume(Checkpoint) as checkpoint:  # for its lock: one process per job
        seed, scale = job.wildcards["seed"], fit.logit_scale or model.scale
        code = starting_code(fit, model, seed)  # 1 T D, where it is learned
        position = fit_inputs(fit, model, code, seed)  # N D | F 1 N D
        own = fits_of_layers(fit, model.depth)
        offsets = fit_offsets(fit, model, seed, max(own) + 1)  # F H 2
        target = impulse.targets(offsets, model.grid, model.grid)  # F H N N
        q, k, rows, flops = solve(job, fit, model, position, target, scale)
        maps = impulse.attention_map(position, q, k, scale)
        layers = [impulse.fit_report(maps[i], target[i]) for i in own]
        metrics: dict = {key: sum(r[key] for r in layers) / len(layers) for key in layers[0]}
        metrics["flops"] = flops
        metrics["uniform_mse"] = (target[own] - 1 / model.num_patches).square().mean().item()
        metrics["layers"] = {key: [r[key] for r in layers] for key in layers[0]}
        tensors = {"q": q[own], "k": k[own], "offsets": offsets[own]}  # L ...
        if code is not None:
            tensors["pos_embed"] = code
        if fit.value_norm:
            pairs = mimetic_values(model, seed)
            tensors["v"], tensors["proj"] = (
                fit.value_norm * torch.stack(p) for p in zip(*pairs, strict=True)
            )
        header = {
            "fit": asdict(fit),
            "model": asdict(model),
            "logit_scale": scale,
            "flops": {"own": float(flops)},
        }
        save_tensors(job.args.output, tensors, header)
        write_history(job.args.history, COLUMNS, rows)
        write_json(job.args.metrics, metrics)
        checkpoint.close(remove=True)
    return {key: value for key, value in metrics.items() if key != "layers"}


def mimetic_values(model: Model, seed: int):
    """Return weights (D, D) of values and output map for every layer l, from (seed, "fit_value", l)."""
    from attnprior.init.mimetic import mimetic_vo
    from attnprior.randomness import generator

    return [mimetic_vo(model.embed_dim, generator(seed, "fit_value", i)) for i in range(model.depth)]


def fit_offsets(fit: Fit, model: Model, seed: int, count: int):
    """Return the offset (dy, dx) of every head of `count` fits, int64 (count, H, 2).

    "random": each fit draws its own from the stream (seed, "offsets", number of the fit).
    """
    import torch

    from attnprior.init.impulse import offsets_ordered, offsets_random
    from attnprior.randomness import generator

    if fit.offsets == "ordered":
        return offsets_ordered(model.num_heads).expand(count, -1, -1)
    return torch.stack(
        [
            offsets_random(fit.filter_size, model.num_heads, generator(seed, "offsets", index))
            for index in range(count)
        ]
    )


def solve(job: Job, fit: Fit, model: Model, position, target, scale: float):
    """Return Q (F, H, D, R), K (F, H, R, D) of the fits, the history and the operations that they take.

    Draws are of the stream (seed, "fit_init"). Counted are matrix products, as in trainings; the closed
    form's decompositions, one per head, are not.
    """
    import torch

    from attnprior.init.impulse import fit_adam, fit_svd, gradient
    from attnprior.randomness import generator
    from attnprior.train.flops import count_flops

    rng = generator(job.wildcards["seed"], "fit_init")
    where = f"params.yaml: fits.{job.wildcards['fit']}"
    if fit.solver == "svd":
        if fit.signal is None or fit.noise is None or fit.norm is None:
            raise UserError(f"{where}: solver svd needs signal, noise and norm")
        signal, noise, norm = fit.signal, fit.noise, fit.norm
        found: list = []

        def closed() -> None:
            if position.ndim == 2:
                found.extend(fit_svd(position, target, model.head_dim, signal, noise, norm, rng))
                return
            each = [
                fit_svd(p[0], t, model.head_dim, signal, noise, norm, rng)
                for p, t in zip(position, target, strict=True)
            ]
            found.extend(torch.stack(parts) for parts in zip(*each, strict=True))

        flops = count_flops(closed)
        return *found, [], flops
    if fit.solver != "adam":
        raise UserError(f"{where}.solver: {fit.solver!r}; allowed: adam, svd")
    if fit.steps is None or fit.lr is None or fit.norm_every is None:
        raise UserError(f"{where}: solver adam needs steps, lr and norm_every")
    rows: list[dict] = []

    def on_step(step: int, loss) -> None:
        if step % EVERY == 0:
            rows.append({"step": step, "loss": loss.mean().item()})
            if step % (10 * EVERY) == 0:
                job.row(rows[-1])

    q, k, _ = fit_adam(
        position, target, model.head_dim, scale, fit.steps, fit.lr, fit.norm_every, rng, on_step
    )
    weights = torch.stack([q.mT, k])  # 2 F H R D
    flops = fit.steps * count_flops(lambda: gradient(weights, position, target, scale))
    return q, k, rows, flops


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
