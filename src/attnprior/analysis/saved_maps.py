"""What `extract_maps` left: images, maps and tokens of networks, reconstructions of masked autoencoders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprior.analysis.redundancy import Entering
from attnprior.errors import UserError
from attnprior.files import load_tensors

MOST_ARMS = 16  # whose attention one figure can show, and whose tokens are looked at
MOST_TEACHERS = 6  # whose reconstructions one figure can show


@dataclass(frozen=True)
class Looked:
    """The attention of one network for n images on its g x g patches; weights, without a class token."""

    kind: str  # student | teacher
    dataset: str
    name: str
    seed: int
    copies: str | None  # what a student's maps are copied from, if they are
    cls_token: bool
    looked: np.ndarray  # (layers, n, g, g): mean over heads and queries
    heads: np.ndarray  # (heads, n, g, g): the centre query in one layer

    @property
    def tokens(self) -> int:
        """Keys of a map: uniform attention is one over this."""
        return self.looked.shape[-1] ** 2 + self.cls_token


@dataclass(frozen=True)
class Rebuilt:
    """What a masked autoencoder made of n images."""

    dataset: str
    name: str
    seed: int
    norm_pix_loss: bool
    hidden: np.ndarray  # (n, C, H, W): true for pixels of hidden patches
    predicted: np.ndarray  # (n, C, H, W): the decoder's output, as pixels / 255


@dataclass(frozen=True)
class Maps:
    """The content of a maps.safetensors; `images` (n, C, H, W) as pixels / 255 by data set."""

    images: dict[str, np.ndarray]
    split: dict[str, str]  # val | train, by data set
    heads_layer: int
    networks: list[Looked]
    rebuilt: list[Rebuilt]
    without: list[tuple[str, str]]  # (data set, name) of networks that have no attention
    entering: list[Entering]
    ranked: dict[str, int]  # how many images `entering` is of, by data set; of the same split


def read_maps(path: str, study: str) -> Maps:
    """Return the maps of the networks of `study`.

    Raises:
        UserError: the file is unreadable, incomplete or of another study.
    """
    tensors, header = load_tensors(path, "numpy")
    if not isinstance(header, dict) or header.get("kind") != "maps" or header.get("study") != study:
        raise UserError(f"{path}: no maps of study {study}; delete it and run again")
    try:
        images = {name: tensors[f"images/{name}"] / np.float32(255) for name in header["images"]}
        return Maps(
            images,
            {name: about["split"] for name, about in header["images"].items()},
            header["heads_layer"],
            [_looked(about, tensors) for about in header["networks"]],
            [_rebuilt(about, tensors) for about in header["reconstructions"]],
            [(dataset, name) for dataset, name in header["without_attention"]],
            [_entering(about, tensors) for about in header["entering"]],
            {name: len(about["index"]) for name, about in header["ranked_images"].items()},
        )
    except (KeyError, TypeError, AttributeError, IndexError) as e:
        raise UserError(f"{path}: incomplete ({e}); delete it and run again") from e


def _looked(about: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Looked:
    key = f"{about['kind']}/{about['dataset']}/{about['name']}"
    transfer = about["transfer"]
    copies = _copied(transfer) if transfer.get("method") == "copy" and transfer["what"] != "v" else None
    who = (about["kind"], about["dataset"], about["name"], about["seed"])
    return Looked(*who, copies, about["cls_token"], tensors[f"{key}/looked"], tensors[f"{key}/heads"])


def _copied(transfer: Mapping[str, Any]) -> str:
    """Return in words what a student's maps are copied from."""
    parts = {"map": "", "q": "its Q", "k": "its K", "qk": "", "qv": "its Q", "kv": "its K"}
    maps = {
        "other_image": "next image",
        "mean_images": "mean over images",
        "mean_queries": "mean over queries",
    }
    words = [transfer["teacher"], parts[transfer["what"]], maps.get(transfer["maps"], "")]
    return ", ".join(w for w in words if w)


def _entering(about: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Entering:
    who = (about["kind"], about["dataset"], about["name"], about["seed"], about["channels"], about["tokens"])
    return Entering(*who, tensors["/".join([*who[:3], "singular"])])


def _rebuilt(about: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Rebuilt:
    key = f"reconstruction/{about['dataset']}/{about['name']}"
    predicted, side = tensors[f"{key}/predicted"], about["patch_size"]
    hidden = tensors[f"{key}/hidden"].repeat(side, 1).repeat(side, 2)[:, None] > 0  # n 1 H W
    who = (about["dataset"], about["name"], about["seed"])
    return Rebuilt(*who, about["norm_pix_loss"], np.broadcast_to(hidden, predicted.shape), predicted)
