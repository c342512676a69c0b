"""Stage `extract_maps`: attention maps, ranks and reconstructions of networks, for the figures of a study."""

import re
import sys
from pathlib import Path
from typing import Any

from attnprior.config import Model, Teacher, build_model
from attnprior.data import datasets
from attnprior.errors import UserError, one_line
from attnprior.files import load_tensors, read_header, save_tensors
from attnprior.stages.job import Job, Stage, run_stage

# `weights` are those of students (runs/...) and teachers (teachers/...), shown in the order given.
STAGE = Stage("extract_maps", wildcards=("study",), inputs=("data*", "weights*"), outputs=("output",))
IDENTITY = re.compile(r"(?:^|/)(runs|teachers)/([a-z][a-z0-9_]*)/([a-z][a-z0-9_]*)/seed(\d+)/[^/]+$")
KINDS = {"runs": "student", "teachers": "teacher"}


def network_of(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return who the network of a weights file is (kind, dataset, name, seed), and the file's header.

    Raises:
        UserError: the path names no network, or the file is unreadable or holds something else.
    """
    match = IDENTITY.search(Path(path).as_posix())
    if not match:
        raise UserError(
            f"{path}: no student's or teacher's weights; expected runs/… or teachers/…/seedN/FILE"
        )
    who = {"kind": KINDS[match[1]], "dataset": match[2], "name": match[3], "seed": int(match[4])}
    header = read_header(path)
    if not isinstance(header, dict) or header.get("kind") != who["kind"] or "model" not in header:
        raise UserError(f"{path}: not the weights of a {who['kind']}; delete it and run again")
    return who, header


def work(job: Job) -> dict:
    """Write maps.safetensors; it has no metrics."""
    files = {Path(path).stem: path for path in job.args.data}
    found = [(path, *network_of(path)) for path in job.args.weights]
    teachers = {(w["dataset"], w["name"]): path for path, w, _ in found if w["kind"] == "teacher"}
    for path, who, _ in found:
        if who["dataset"] not in files:
            raise UserError(f"--data: {path} needs data/{who['dataset']}.safetensors; give it, too")
    loaded = {name: datasets.load(path) for name, path in files.items()}
    device = job.start_torch()

    from attnprior.analysis.looks import (
        HEADS_LAYER,
        RANKED,
        attention,
        choose_images,
        entering,
        reconstruction,
    )
    from attnprior.data.loader import normalise
    from attnprior.models.mae import load_teacher_encoder
    from attnprior.train.students import load_network

    tensors: dict[str, Any] = {}
    about: dict[str, Any] = {"kind": "maps", "study": job.wildcards["study"], "heads_layer": HEADS_LAYER}
    about |= {"images": {}, "networks": [], "reconstructions": [], "without_attention": []}
    about |= {"ranked_images": {}, "entering": []}
    chosen, shown, ranked = {}, {}, {}
    for name, data in loaded.items():
        images, about["images"][name] = choose_images(data)
        tensors[f"images/{name}"] = images
        chosen[name] = images.to(device)
        shown[name] = normalise(chosen[name], data.mean, data.std)
        more, about["ranked_images"][name] = choose_images(data, RANKED)
        ranked[name] = normalise(more.to(device), data.mean, data.std)
    for path, who, header in found:
        dataset = who["dataset"]
        model = build_model(header["model"], f"{path}: model")
        datasets.check_model(model, loaded[dataset], f"{path}: model")
        transfer = header.get("transfer", {})
        if who["kind"] == "teacher":
            network: Any = load_teacher_encoder(*load_tensors(path)).to(device)
        else:
            source = source_of(teachers, dataset, transfer.get("teacher"))
            if transfer.get("method") == "copy" and source is None:
                raise UserError(
                    f"--weights: {path} copies teacher {transfer['teacher']}; give its weights, too"
                )
            network = load_network(path, source).to(device)
        key = f"{who['kind']}/{dataset}/{who['name']}"
        tensors |= {f"{key}/{k}": t for k, t in entering(network, ranked[dataset]).items()}
        about["entering"].append({**who, "channels": model.embed_dim, "tokens": model.num_patches})
        if not isinstance(model, Model):
            about["without_attention"].append([dataset, who["name"]])
            continue
        tensors |= {f"{key}/{k}": t for k, t in attention(network, shown[dataset]).items()}
        about["networks"].append({**who, "transfer": transfer, "cls_token": model.cls_token})
        settings = job.params.get(f"teachers.{who['name']}", {})
        if who["kind"] == "teacher" and settings.get("source") == "mae":
            mae = load_mae(path, model, job.settings(Teacher, "teachers", who["name"])).to(device)
            made = reconstruction(mae, chosen[dataset], loaded[dataset], who["seed"])
            tensors |= {f"reconstruction/{dataset}/{who['name']}/{k}": t for k, t in made.items()}
            details = {"patch_size": model.patch_size, "norm_pix_loss": mae.norm_pix_loss}
            about["reconstructions"].append({**who, **details})
    save_tensors(job.args.output, tensors, about)
    return {}


def source_of(teachers: dict[tuple[str, str], str], dataset: str, name: str | None) -> str | None:
    """Return the weights of a teacher of a student on `dataset`; it may be made on another data set."""
    made = [path for (_, teacher), path in teachers.items() if teacher == name]
    return teachers.get((dataset, name or "")) or (made[0] if len(made) == 1 else None)


def load_mae(path: str, model: Model, teacher: Teacher):
    """Return the masked autoencoder of a teacher file, decoder included, in evaluation mode.

    Raises:
        UserError: the file was made with other settings.
    """
    from attnprior.models.mae import build_mae

    assert teacher.decoder is not None and teacher.masking is not None
    assert teacher.mask_ratio is not None and teacher.norm_pix_loss is not None
    mae = build_mae(model, teacher.decoder, teacher.mask_ratio, teacher.norm_pix_loss, 0, teacher.masking)
    try:
        mae.load_state_dict(load_tensors(path)[0])
    except RuntimeError as e:
        raise UserError(
            f"{path}: made with another decoder ({one_line(e)[:200]}); run the teacher again"
        ) from e
    return mae.eval()


def main(argv: list[str] | None = None) -> int:
    """Run the stage and return its exit status."""
    return run_stage(STAGE, work, argv)


if __name__ == "__main__":
    sys.exit(main())
