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

    from attnprior.init import impulse
    from attnprior.models.position import fixed_code
    from attnprior.train.checkpoint import Checkpoint

    with job.resume(Checkpoint) as checkpoint:  # for its lock: one process per job
        code = fixed_code(model)  # N D
        assert code is not None
        position = impulse.query_key_input(code, model.pos_at)
        offsets = layer_offsets(fit, model, job.wildcards["seed"])  # L H 2
        target = impulse.targets(offsets, model.grid, model.grid)  # L H N N
        q, k, rows, flops = solve(job, fit, model, position, target)
        maps = impulse.attention_map(position, q, k, fit.logit_scale)
        layers = [impulse.fit_report(maps[i], target[i]) for i in range(model.depth)]
        metrics: dict = {key: sum(r[key] for r in layers) / len(layers) for key in layers[0]}
        metrics["flops"] = flops
        metrics["uniform_mse"] = (target - 1 / model.num_patches).square().mean().item()
        metrics["layers"] = {key: [r[key] for r in layers] for key in layers[0]}
        header = {
            "fit": asdict(fit),
            "model": asdict(model),
            "logit_scale": fit.logit_scale,
            "flops": {"own": float(flops)},
        }
        save_tensors(job.args.output, {"q": q, "k": k, "offsets": offsets}, header)
        write_history(job.args.history, COLUMNS, rows)
        write_json(job.args.metrics, metrics)
        checkpoint.close(remove=True)
    return {key: value for key, value in metrics.items() if key != "layers"}


def layer_offsets(fit: Fit, model: Model, seed: int):
    """Return the offset (dy, dx) of every layer and head, int64 (L, H, 2).

    "random": each layer draws its own from the stream (seed, "offsets", layer).
    """
    import torch

    from attnprior.init.impulse import offsets_ordered, offsets_random
    from attnprior.randomness import generator

    if fit.offsets == "ordered":
        return offsets_ordered(model.num_heads).expand(model.depth, -1, -1)
    return torch.stack(
        [
            offsets_random(fit.filter_size, model.num_heads, generator(seed, "offsets", layer))
            for layer in range(model.depth)
        ]
    )


def solve(job: Job, fit: Fit, model: Model, position, target):
    """Return Q (L, H, D, R), K (L, H, R, D), the history and the operations that the fit takes.

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
        flops = count_flops(
            lambda: found.extend(fit_svd(position, target, model.head_dim, signal, noise, norm, rng))
        )
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
        position, target, model.head_dim, fit.logit_scale, fit.steps, fit.lr, fit.norm_every, rng, on_step
    )
    weights = torch.stack([q.mT, k])  # 2 L H R D
    flops = fit.steps * count_flops(lambda: gradient(weights, position, target, fit.logit_scale))
    return q, k, rows, flops


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
