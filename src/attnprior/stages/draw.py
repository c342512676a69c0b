"""Stage `draw`: the figures of a study and the numbers that DVC plots."""

import sys
from pathlib import Path

import numpy as np

from attnprior.analysis import attention, redundancy
from attnprior.analysis.families import study_families
from attnprior.analysis.history import CURVES, course, read_history
from attnprior.analysis.panels import Key, Row, expected_runs
from attnprior.analysis.predictions import of_split, read_predictions
from attnprior.analysis.saved_maps import Maps, read_maps
from attnprior.config import Model, Study, build, build_study
from attnprior.errors import UserError
from attnprior.files import load_tensors, sha256, write_json, write_text
from attnprior.report import curves as learning
from attnprior.report import figures, labels, looks, maps, style
from attnprior.report import redundancy as ranks
from attnprior.report.inputs import read_results, read_table
from attnprior.report.names import TITLES, column
from attnprior.report.tables import csv_text
from attnprior.report.words import scale
from attnprior.stages.compare import identity, match_runs
from attnprior.stages.job import Job, Stage, run_stage

STAGE = Stage(
    "draw",
    wildcards=("study",),
    inputs=("predictions*", "fit?", "weights?", "maps"),
    outputs=(),
    options=("tables_dir", "out_dir"),
)
TABLES = ("results.csv", "table.csv")
NO_IMPULSE = "no student of this study starts from an impulse fit"


def confusion_counts(
    study: Study, predictions: dict[Key, Path]
) -> tuple[dict[tuple[str, str], np.ndarray], dict[str, list[str]], list[dict]]:
    """Return counts (C, C) by (data set, arm), class names by data set, and the rows of confusion.csv.

    Counts have true classes in rows and are summed over seeds. A row of the file is a test image with the
    class that each arm gave it, with the study's first seed: DVC draws a matrix from single images, and puts
    the whole file into every plot.

    Raises:
        UserError: a file is unreadable, or the runs of a data set saw different test images.
    """
    counts: dict[tuple[str, str], np.ndarray] = {}
    names: dict[str, list[str]] = {}
    rows: dict[tuple[str, int], dict] = {}
    for key, path in predictions.items():
        dataset, arm, seed = key
        tensors, about = read_predictions(path)
        logits, labels, index = of_split(tensors, "test")
        size = logits.shape[1]
        classes = names.setdefault(dataset, about.get("classes") or [str(c) for c in range(size)])
        if len(classes) != size:
            raise UserError(f"{path}: {size} classes, other runs have {len(classes)}; train again")
        given = logits.argmax(1)
        total = counts.setdefault((dataset, arm), np.zeros((size, size), np.int64))
        np.add.at(total, (labels, given), 1)
        if seed != study.seeds[0]:
            continue
        for image, label, guess in zip(index.tolist(), labels.tolist(), given.tolist(), strict=True):
            head = {"actual": column(study.datasets, dataset, classes[label])}
            row = rows.setdefault((dataset, image), head)
            row[column(study.datasets, dataset, arm)] = column(study.datasets, dataset, classes[guess])
    return counts, names, [rows[k] for k in sorted(rows)]


def curve_rows(study: Study, histories: dict[Key, dict[str, np.ndarray]], name: str) -> tuple[list, list]:
    """Return rows and columns of a table of mean curves: an epoch a row, an arm a column."""
    rows: dict[int, dict] = {}
    columns = []
    for dataset, arm in dict.fromkeys(k[:2] for k in histories):
        own = [histories[dataset, arm, k] for k in study.seeds]
        found = course(own, name)
        if found is not None:
            columns.append(column(study.datasets, dataset, arm))
            for epoch, value in zip(own[0]["epoch"].astype(int).tolist(), found.mean.tolist(), strict=True):
                rows.setdefault(epoch, {"epoch": epoch})[columns[-1]] = value
    return [rows[e] for e in sorted(rows)], ["epoch", *columns]


def impulse_figure(fit_path: str, weights_path: str) -> figures.Drawn:
    """Draw layer 1 of an impulse student: targets, fitted maps and the same heads after training.

    Raises:
        UserError: a file is unreadable, or fit and student do not belong together.
    """
    fit, about = load_tensors(fit_path, "numpy")
    weights, header = load_tensors(weights_path, "numpy")
    if header.get("kind") != "student" or "logit_scale" not in header:
        raise UserError(f"{weights_path}: not the weights of a student; delete it and train again")
    model = build(Model, header["model"], f"{weights_path}: model")
    free = model.attention == "free"
    size = (model.depth, model.num_heads, model.num_patches if free else model.embed_dim, model.head_dim)
    if not {"q", "k", "offsets"} <= fit.keys() or fit["q"].shape != size or "logit_scale" not in about:
        raise UserError(f"{fit_path}: no fit for {weights_path}; delete it and run again")
    before, after, trained = _impulse_inputs(model, fit, weights)
    if before is None or after is None or trained is None:
        raise UserError(f"{weights_path}: no student of the fit {fit_path}; train it again")
    # The student sees alpha x + (1 - alpha) P, of which the part that depends on P alone is shown.
    share = (1 - model.alpha) ** 2 if model.pos_at == "qk" else 1.0
    offsets, q, k = fit["offsets"][0], fit["q"][0], fit["k"][0]
    target = attention.target_maps(offsets, model.grid)
    shown = {
        "target": target,
        "fitted": attention.position_maps(before, q, k, about["logit_scale"]),
        "trained": attention.position_maps(after, trained[0], trained[1], header["logit_scale"] * share),
    }
    dataset, student, seed = identity(weights_path)
    caption = (
        f"Layer 1 of {student} on {dataset}, seed {seed}, a column per head with its offset (dy, dx): queries"
        f" in rows, keys in columns, {model.num_patches} tokens in row-major order. Target: the map that the"
        " impulse filter asks for (empty rows leave the image). "
        + _impulse_text(model, header["logit_scale"])
        + " On target: mean attention on the target, over the queries that have one."
    )
    mass = {n: attention.mass_on(shown[n], target) for n in ("fitted", "trained")}
    return maps.impulse(shown, offsets, mass, caption)


def _impulse_inputs(model: Model, fit: dict, weights: dict) -> tuple:
    """Return the positions (N, D) that the maps of layer 1 have at the start and after training, and (Q, K).

    Any of them is None where the files do not have it.
    """
    if model.attention == "free":
        code = attention.position_code(model)
        q, k = (weights.get(f"blocks.0.attn.{name}") for name in "qk")
        return code, code, None if q is None or k is None else (q, k.astype(np.float64))
    if model.pos_embed == "learned":
        prefix = int(model.cls_token)
        codes = [t["pos_embed"][0, prefix:] if "pos_embed" in t else None for t in (fit, weights)]
    else:
        codes = [attention.position_code(model)] * 2
    linear = weights.get("blocks.0.attn.qkv.weight", weights.get("blocks.0.attn.qk.weight"))
    before, after = (None if c is None else attention.query_key_input(c, model) for c in codes)
    return before, after, None if linear is None else attention.heads_of(linear, model.num_heads)


def _impulse_text(model: Model, scale: float) -> str:
    """Return what the caption says of fitted and trained maps."""
    if model.attention == "free":
        return (
            "Fitted: softmax(gamma Q K) of the fit. Trained: that of the student after its last epoch"
            f" (gamma {scale:g})."
        )
    if model.pos_at == "input":
        return (
            "Fitted: softmax(gamma P Q K P^T) of the fit, P the position code with each row normalised as by"
            " a layer. Trained: the same of the student after its last epoch, the part of its logits that"
            f" depends on position alone, without biases (gamma {scale:g})."
        )
    return (
        "Fitted: softmax(gamma P Q K P^T) of the fit."
        " Trained: softmax(gamma (1 - alpha)^2 P W_q W_k^T P^T) of the student after its last epoch, the part"
        f" of its logits that depends on position alone, without biases (alpha {model.alpha:g}, gamma"
        f" {scale:g}); by (1 - alpha)^2 it is flatter than the fit before any training."
    )


def draw(
    study: Study,
    students: dict[str, dict],
    tidy: list[Row],
    table: list[Row],
    predictions: dict[Key, Path],
    fit: str | None,
    weights: str | None,
    shown: Maps,
    sizes: list[int],
    out: Path,
) -> list[Path]:
    """Write figures, captions.json and the tables behind DVC's plots to `out`, and return their paths.

    `students` has the settings of the study's students by name, `sizes` are those of its filters.
    """
    families = study_families(study, students)
    histories = {k: read_history(p.with_name("history.csv")) for k, p in predictions.items()}
    counts, names, guesses = confusion_counts(study, predictions)
    with style.look():
        drawn = {
            "accuracy": figures.accuracy(study, table, tidy),
            "labels": labels.budgets(study, families, table, tidy),
            "curves": learning.curves(study, histories),
            "impulse": impulse_figure(fit, weights) if fit and weights else figures.blank(NO_IMPULSE),
            "attention": looks.attention(study, shown),
            "reconstruction": looks.reconstruction(study, shown),
            "redundancy": ranks.redundancy(study, shown, sizes),
            "confusion": maps.confusion(study, tidy, counts, names),
        }
    written = []
    for name, made in drawn.items():
        style.save(made.figure, out / name)
        written += [out / f"{name}.svg", out / f"{name}.png"]
    said = f" {scale(study.scaled)}" if study.scaled else ""
    about = {
        "captions": {name: d.caption + said for name, d in drawn.items()},  # first: see workflow/report/*.rst
        "left_out": [name for name, d in drawn.items() if d.left_out],
        "titles": TITLES,
    }
    write_json(out / "captions.json", about)
    columns = ["actual", *(column(study.datasets, d, a) for d, a in counts)]
    content = {f"{name}.csv": csv_text(*curve_rows(study, histories, name)) for name in CURVES}
    content["labels.csv"] = csv_text(*labels.table(study, families, table))
    content["confusion.csv"] = csv_text(guesses, columns)
    rows = list(redundancy.table(shown.entering, sizes or [redundancy.DEFAULT_SIZE]))
    content["redundancy.csv"] = csv_text(rows, redundancy.COLUMNS)
    for name, text in content.items():
        write_text(out / name, text)
    return [*written, out / "captions.json", *(out / name for name in content)]


def filter_sizes(job: Job, students: dict[str, dict]) -> list[int]:
    """Return the filter sizes of impulse fits and ConvMixers among `students` (settings by name), rising."""
    found = set()
    for values in students.values():
        if fit := values["init"].get("fit"):
            found.add(job.section(f"fits.{fit}")["filter_size"])
        if values["init"]["source"] == "filters":
            found.add(job.section(f"models.{values['model']}")["kernel_size"])
    return sorted(found)


def work(job: Job) -> dict:
    """Draw the figures; they have no metrics of their own."""
    name, args = job.wildcards["study"], job.args
    study = build_study(job.section(f"studies.{name}"), f"studies.{name}")
    given = match_runs(study, args.predictions, "--predictions")
    predictions = {k: given[k] for k in expected_runs(study)}
    read = [*(f"{args.tables_dir}/{t}" for t in TABLES)]
    read += [p.with_name("history.csv").as_posix() for p in predictions.values()]
    job.inputs |= {path: sha256(path) for path in read}
    students = {k[1]: job.section(f"students.{k[1]}") for k in predictions}
    tidy = read_results(f"{args.tables_dir}/{TABLES[0]}", name, study)
    table = read_table(f"{args.tables_dir}/{TABLES[1]}", name, study)
    shown, out = read_maps(args.maps, name), Path(args.out_dir)
    sizes = filter_sizes(job, students)
    written = draw(study, students, tidy, table, predictions, args.fit, args.weights, shown, sizes, out)
    job.outputs += [p.as_posix() for p in written]
    return {}


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
