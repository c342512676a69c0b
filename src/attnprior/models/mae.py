"""Masked autoencoder (arXiv 2111.06377): the pre-training of teachers, and the hand-over of its encoder."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnprior import config, randomness
from attnprior.errors import UserError
from attnprior.models import position as codes
from attnprior.models.checks import visible_patches
from attnprior.models.masks import mask_noise
from attnprior.models.vit import Block, ViT, build_vit, patchify
from attnprior.models.weights import init_weights

__all__ = [
    "MAE",
    "build_mae",
    "encoder_config",
    "load_pretrained",
    "load_teacher_encoder",
    "patchify",
    "random_masking",
    "random_teacher",
    "teacher_tensors",
    "unpatchify",
]


def unpatchify(patches: Tensor, patch_size: int, in_chans: int) -> Tensor:
    """Return the square images (B, C, H, W) of patch vectors (B, N, p*p*C): the inverse of `patchify`."""
    b, n, _ = patches.shape
    p, grid = patch_size, round(n**0.5)
    x = patches.view(b, grid, grid, p, p, in_chans).permute(0, 5, 1, 3, 2, 4)  # B C rows p columns p
    return x.reshape(b, in_chans, grid * p, grid * p)


def random_masking(noise: Tensor, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (ids_keep (B, keep), ids_restore (B, N), mask (B, N)) of uniform numbers `noise` (B, N).

    The `keep` smallest stay visible, in ascending order; ids_restore undoes that order; the mask is 0 for
    visible and 1 for hidden patches, in image order (section 3).
    """
    ids_shuffle = noise.argsort(dim=1, stable=True)
    ids_restore = ids_shuffle.argsort(dim=1)
    return ids_shuffle[:, :keep], ids_restore, (ids_restore >= keep).to(noise.dtype)


class MaskedDecoder(nn.Module):
    """Light transformer that predicts every patch from the visible ones, with biases everywhere."""

    pos_embed: Tensor

    def __init__(self, model: config.Model, decoder: config.Decoder):
        super().__init__()
        dim, eps = decoder.embed_dim, model.norm_eps
        self.prefix = int(model.cls_token)
        self.embed = nn.Linear(model.embed_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        code = codes.sincos2d(model.grid, model.grid, dim, simple=False)
        self.register_buffer("pos_embed", codes.with_class_row(code, model.cls_token), persistent=False)
        scale = (dim // decoder.num_heads) ** -0.5
        self.blocks = nn.ModuleList(
            Block(dim, decoder.num_heads, decoder.mlp_ratio, eps, (True, True), scale)
            for _ in range(decoder.depth)
        )
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.pred = nn.Linear(dim, model.patch_size**2 * model.in_chans)

    def forward(self, latent: Tensor, ids_restore: Tensor) -> Tensor:
        """Return predicted patch vectors (B, N, p*p*C) of encoder tokens (B, prefix + keep, D)."""
        x = self.embed(latent)  # B prefix+keep E
        b, n = ids_restore.shape
        hidden = self.mask_token.expand(b, n - x.shape[1] + self.prefix, -1)
        patches = torch.cat([x[:, self.prefix :], hidden], dim=1)
        patches = patches.gather(1, ids_restore[:, :, None].expand(-1, -1, x.shape[2]))  # image order
        x = torch.cat([x[:, : self.prefix], patches], dim=1) + self.pos_embed  # B T E
        for block in self.blocks:
            x = block(x)
        return self.pred(self.norm(x))[:, self.prefix :]


def encoder_config(model: config.Model) -> config.Model:
    """Return the settings of the encoder of a teacher: no head, and a norm on its output tokens."""
    return replace(model, num_classes=0, pool="cls" if model.cls_token else "mean")


class MAE(nn.Module):
    """Masked autoencoder with the attributes `encoder` (a ViT without head) and `decoder`.

    Raises:
        UserError: the mask ratio leaves no patch visible or none hidden.
    """

    def __init__(
        self,
        config: config.Model,
        decoder: config.Decoder,
        mask_ratio: float,
        norm_pix_loss: bool,
        masking: str = "random",
    ):
        super().__init__()
        self.masking = masking
        self.keep = visible_patches(config.num_patches, mask_ratio, "teachers.<name>")
        self.norm_pix_loss = norm_pix_loss
        self.encoder = ViT(encoder_config(config))
        self.decoder = MaskedDecoder(config, decoder)

    def noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return the numbers (B, N) that choose what is hidden of `batch` images."""
        return mask_noise(self.masking, batch, self.encoder.config.grid, self.keep, generator)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (loss, prediction (B, N, p*p*C), mask (B, N)) of images (B, C, H, W).

        `noise` (B, N) are the numbers of `random_masking`, such as `noise` draws. The loss is the squared
        error, averaged over hidden patches; with norm_pix_loss each target patch is normalised by its mean
        and unbiased variance (section 5).
        """
        target = patchify(images, self.encoder.config.patch_size)  # B N p*p*C
        ids_keep, ids_restore, mask = random_masking(noise, self.keep)
        pred = self.decoder(self.encoder.encode(target, ids_keep), ids_restore)
        if self.norm_pix_loss:
            variance, mean = torch.var_mean(target, dim=2, keepdim=True)
            target = (target - mean) / (variance + 1e-6).sqrt()
        error = F.mse_loss(pred, target, reduction="none").mean(dim=2)  # B N
        return (error * mask).sum() / mask.sum(), pred, mask


def build_mae(
    config: config.Model,
    decoder: config.Decoder,
    mask_ratio: float,
    norm_pix_loss: bool,
    seed: int,
    masking: str = "random",
) -> MAE:
    """Return a masked autoencoder drawn from the stream (seed, "teacher_init"), Xavier as in the paper.

    torch's global random state is left as it was. Teachers have a stream of their own: a student of the same
    seed must not start from its teacher's weights.
    """
    with torch.random.fork_rng(devices=[]):
        mae = MAE(config, decoder, mask_ratio, norm_pix_loss, masking)
    init_weights(mae, "xavier", randomness.generator(seed, "teacher_init"))
    return mae


def random_teacher(model: config.Model, seed: int) -> ViT:
    """Return an untrained encoder, drawn as the model's `weight_init` says from (seed, "teacher_init")."""
    return build_vit(encoder_config(model), seed, stream="teacher_init")


def teacher_tensors(teacher: MAE | ViT) -> dict[str, Tensor]:
    """Return the tensors of a teacher file: timm's names after "encoder.", the decoder's after "decoder."."""
    if isinstance(teacher, ViT):
        return {f"encoder.{name}": tensor for name, tensor in teacher.state_dict().items()}
    return dict(teacher.state_dict())


def load_teacher_encoder(tensors: dict[str, Tensor], header: dict) -> ViT:
    """Return the frozen encoder (eval mode, no gradients) of a teacher file's tensors and header.

    Raises:
        UserError: the tensors do not belong to the model that the header names.
    """
    model = config.build(config.Model, header["model"], "model")
    with torch.random.fork_rng(devices=[]):
        vit = ViT(encoder_config(model), logit_scale=header["logit_scale"])
    load_pretrained(vit, tensors)
    return vit.eval().requires_grad_(False)


def load_pretrained(vit: ViT, tensors: dict[str, Tensor]) -> None:
    """Copy a teacher's encoder into `vit`, all but `head`, `fc_norm` and a `norm` that `vit` does not have.

    A learned position code of another grid is interpolated.

    Raises:
        UserError: any other tensor is missing, left over or of another shape.
    """
    own = {k: v for k, v in vit.state_dict().items() if not k.startswith(("head.", "fc_norm."))}
    skip = ("head.", "fc_norm.") if "norm.weight" in own else ("head.", "fc_norm.", "norm.")
    given = {k[8:]: v for k, v in tensors.items() if k.startswith("encoder.") and not k[8:].startswith(skip)}
    if "pos_embed" in own and "pos_embed" in given:
        given["pos_embed"] = codes.interpolated(given["pos_embed"], vit.prefix, vit.config.grid)
    problems = [f"missing {k}" for k in own if k not in given]
    problems += [f"unexpected {k}" for k in given if k not in own]
    problems += [
        f"{k} has shape {tuple(given[k].shape)} and not {tuple(own[k].shape)}"
        for k in own
        if k in given and given[k].shape != own[k].shape
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise UserError(
            f"teacher weights do not fit the model: {'; '.join(problems[:4])}{more};"
            " give teacher and student the same model, or run the teacher again"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])
