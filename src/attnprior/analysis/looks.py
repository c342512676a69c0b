"""What networks do with a few images: attention maps, ranks of tokens, and what masked autoencoders rebuild.

Token i of the patches lies at row i // g and column i % g of a g x g grid. A class token is left out of every
map, as query and as key, so a map of a model that has one sums to less than 1.
"""

from typing import Any

import torch
from torch import Tensor

from attnprior.analysis.rank import token_values
from attnprior.data.datasets import TRAIN, VAL, Data
from attnprior.data.loader import normalise, part
from attnprior.errors import UserError
from attnprior.models.copying import Copied
from attnprior.models.mae import MAE, patchify, unpatchify
from attnprior.models.vit import ViT
from attnprior.randomness import generator
from attnprior.train.supervised import Network

IMAGES = 4
RANKED = 16  # images whose tokens are looked at: nothing is drawn of them, so more cost little
HEADS_LAYER = 0  # the layer whose heads are kept apart: the one that an initialisation reaches first


def choose_images(data: Data, count: int = IMAGES) -> tuple[Tensor, dict[str, Any]]:
    """Return images (n, C, H, W) uint8 that the figures show, and what they are.

    The first validation image of each class comes first, then second ones; training images where there is no
    validation split, test images never. The description holds split, rows in the data file and class names.
    """
    split = VAL if (data.split == VAL).any() else TRAIN
    images, labels, rows = part(data, split, torch.device("cpu"))
    seen: dict[int, int] = {}
    ranks = []  # how many images of the same class come before
    for label in labels.tolist():
        ranks.append(seen.get(label, 0))
        seen[label] = ranks[-1] + 1
    order = sorted(range(len(ranks)), key=lambda i: (ranks[i], i))[:count]
    about = {
        "split": "val" if split == VAL else "train",
        "index": rows[order].tolist(),
        "classes": [data.classes[k] for k in labels[order].tolist()],
    }
    return images[order], about


@torch.inference_mode()
def attention(network: Network | ViT, images: Tensor) -> dict[str, Tensor]:
    """Return the maps that a network uses for normalised images (n, C, H, W), in float32.

    "looked" (layers, n, g, g): weight on each key, mean over heads and queries. "centre" (layers, n, g, g):
    the query of the token at row and column g // 2, mean over heads. "heads" (heads, n, g, g): that query in
    the first layer. A student that copies attention uses its teacher's maps in the copied layers; the control
    `other_image` those of the next one of `images`, the last those of the first.

    Raises:
        UserError: the network has no attention.
    """
    vit = network.student if isinstance(network, Network) else network
    if not isinstance(vit, ViT):
        raise UserError("a convmixer has no attention: its maps cannot be shown")
    _, recorded = vit(images, record=("logits",), copied=_copied(network, images))
    grid, p = vit.config.grid, vit.prefix
    centre = grid // 2 * grid + grid // 2
    maps = [logits.float().softmax(-1)[:, :, p:, p:] for logits in recorded["logits"]]  # n H N N
    found = {
        "looked": torch.stack([m.mean(dim=(1, 2)) for m in maps]),  # L n N
        "centre": torch.stack([m[:, :, centre].mean(dim=1) for m in maps]),
        "heads": maps[HEADS_LAYER][:, :, centre].transpose(0, 1),  # H n N
    }
    return {name: m.unflatten(-1, (grid, grid)) for name, m in found.items()}


@torch.inference_mode()
def entering(network: Network | ViT, images: Tensor) -> dict[str, Tensor]:
    """Return "singular" (layers, n, min(N, C)) of the tokens that enter each layer, float32.

    Singular values over the largest of each matrix, of normalised images (n, C, H, W). Copied maps are used
    as in `attention`; a student may be a ConvMixer.
    """
    student = network.student if isinstance(network, Network) else network
    return {"singular": token_values(student, images, _copied(network, images))}


def _copied(network: Network | ViT, images: Tensor) -> list[Copied | None] | None:
    """Return what a student takes from its teacher for `images`, or None."""
    if not isinstance(network, Network):
        return None
    following = torch.arange(len(images), device=images.device).roll(-1)
    return network.copied(images, following if network.transfer.maps == "other_image" else None, None)


@torch.inference_mode()
def reconstruction(mae: MAE, images: Tensor, data: Data, seed: int) -> dict[str, Tensor]:
    """Return what a masked autoencoder rebuilds of images (n, C, H, W) uint8.

    "hidden" (n, g, g) is 1 for hidden patches, drawn from the stream (seed, "figure_mask"). "predicted"
    (n, C, H, W) is the decoder's output for every patch, in the unit of pixels / 255; with norm_pix_loss each
    patch has been given the mean and variance of the original, which that decoder does not predict.
    """
    model = mae.encoder.config
    shown = normalise(images, data.mean, data.std)
    noise = mae.noise(len(images), generator(seed, "figure_mask"))
    _, predicted, hidden = mae(shown, noise.to(images.device))  # n N p*p*C
    if mae.norm_pix_loss:
        variance, mean = torch.var_mean(patchify(shown, model.patch_size), dim=2, keepdim=True)
        predicted = predicted * (variance + 1e-6).sqrt() + mean
    m, s = (torch.tensor(v, device=images.device).view(1, -1, 1, 1) for v in (data.mean, data.std))
    return {
        "hidden": hidden.unflatten(-1, (model.grid, model.grid)),
        "predicted": unpatchify(predicted, model.patch_size, model.in_chans) * s + m,
    }
