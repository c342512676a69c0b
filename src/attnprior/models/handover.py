"""Teachers made of weights that exist: those of a trained student, or a local file."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnprior.config import Model
from attnprior.errors import UserError, one_line
from attnprior.files import load_tensors
from attnprior.models.mae import encoder_config, load_pretrained
from attnprior.models.vit import ViT

PICKLES = (".pth", ".pt", ".bin")
UNUSED = ("head.", "decoder", "mask_token", "pred.")  # of masked autoencoders and classifiers
TOLERANCE = 1e-4  # between a position code in a file and the model's own


def read_weights(path: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (tensors, header) of a weights file; `kind` is "attnprior", or "timm" without a header.

    A torch pickle is read with weights_only, so that no code in it runs; its tensors may lie under
    "model" or "state_dict".

    Raises:
        UserError: the file is unreadable, of another kind or holds something else.
    """
    if Path(path).suffix not in PICKLES:
        tensors, header = load_tensors(path)
    elif kind == "attnprior":
        raise UserError(f"{path}: files of this project are safetensors; set format to timm")
    else:
        tensors, header = _unpickled(path), {}
    if kind == "attnprior" and (not isinstance(header, dict) or "logit_scale" not in header):
        raise UserError(f"{path}: no weights of this project (no header); set format to timm")
    return tensors, header


def _unpickled(path: str) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # torch names no common class
        raise UserError(f"{path}: cannot be read as tensors alone ({one_line(e)[:200]})") from e
    for key in ("model", "state_dict"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise UserError(f"{path}: holds no state dict; give one that maps names to tensors")
    return found


def encoder_of(
    tensors: dict[str, Tensor], model: Model, logit_scale: float | None, where: str
) -> tuple[ViT, list[str]]:
    """Return the encoder (without head) that has the given weights, and the names that it did not use.

    Names are timm's, with or without "encoder." before them. Without a `norm` the encoder takes `fc_norm`, or
    else weights 1 and biases 0: attention does not depend on it. A fixed position code must be the model's.

    Raises:
        UserError: a tensor is missing, left over or of another shape, or the position code is another one.
    """
    names = {k: k.removeprefix("encoder.") for k in tensors}
    unused = [k for k, name in names.items() if name.startswith(UNUSED)]
    given = {name: tensors[k].float() for k, name in names.items() if k not in unused}
    encoder = ViT(encoder_config(model), logit_scale=logit_scale)
    for part in ("weight", "bias"):
        after = given.pop(f"fc_norm.{part}", None)
        if f"norm.{part}" not in given:
            given[f"norm.{part}"] = encoder.state_dict()[f"norm.{part}"] if after is None else after
    if "pos_embed" in given and model.pos_embed != "learned":
        code = given.pop("pos_embed")
        own = encoder.pos_embed
        if own is None or code.shape != own.shape or (code - own).abs().max() > TOLERANCE:
            raise UserError(
                f"{where}: its pos_embed is not the position code {model.pos_embed!r} of the model; use a"
                " model with pos_embed: learned"
            )
    try:
        load_pretrained(encoder, {f"encoder.{name}": t for name, t in given.items()})
    except UserError as e:
        raise UserError(f"{where}: {e}") from e
    return encoder, unused
