"""Checks of model settings that ranges and types cannot express. Imports no torch."""

from attnprior import config
from attnprior.errors import UserError, nearest

CHOICES = {
    "pos_embed": ("sincos2d", "sincos2d_simple", "learned", "identity", "none"),
    "pos_at": ("input", "qk", "none"),
    "pool": ("mean", "mean_fc_norm", "cls"),
    "weight_init": ("torch", "trunc_normal"),
}


def _refuse(where: str, key: str, value: object, allowed: str) -> UserError:
    return UserError(f"params.yaml: {where}.{key}: {value!r} does not work; {allowed}")


def validate_model(model: config.Model, where: str) -> None:
    """Check that the parts of a model fit together; `where` is its dotted key, `models.<name>`.

    Raises:
        UserError: a value is unknown or does not go with the others.
    """
    m = model
    for key, allowed in CHOICES.items():
        value = getattr(m, key)
        if value not in allowed:
            raise _refuse(where, key, value, f"use one of {', '.join(allowed)}{nearest(value, allowed)}")
    if m.image_size % m.patch_size:
        raise _refuse(where, "patch_size", m.patch_size, f"it must divide image_size {m.image_size}")
    if m.embed_dim % m.num_heads:
        raise _refuse(where, "num_heads", m.num_heads, f"it must divide embed_dim {m.embed_dim}")
    if m.pos_embed.startswith("sincos2d"):
        _validate_sincos_dim(m.embed_dim, where, 8 if m.pos_embed == "sincos2d_simple" else 4)
    if m.pos_embed == "identity" and m.num_patches > m.embed_dim:
        raise _refuse(
            where, "pos_embed", m.pos_embed, f"{m.num_patches} patches need embed_dim >= {m.num_patches}"
        )
    if m.patch_norm and m.patch_size**2 * m.in_chans == 1:
        raise _refuse(
            where, "patch_norm", m.patch_norm, "a norm over one value is constant zero; set it to false"
        )
    if m.pool == "cls" and not m.cls_token:
        raise _refuse(where, "pool", m.pool, "it needs cls_token: true; or use pool: mean")
    if (m.pos_embed == "none") != (m.pos_at == "none"):
        raise _refuse(
            where, "pos_at", m.pos_at, f"pos_embed is {m.pos_embed}; set both to none or neither of them"
        )
    if not 0 <= m.alpha <= 1:
        raise _refuse(where, "alpha", m.alpha, "it must lie between 0 and 1")
    if m.pos_at != "qk" and m.alpha != 1:
        raise _refuse(where, "alpha", m.alpha, f"with pos_at {m.pos_at} nothing is blended; set it to 1.0")


def _validate_sincos_dim(dim: int, where: str, least: int) -> None:
    if dim % 4 or dim < least:
        raise _refuse(
            where, "embed_dim", dim, f"a sine-cosine position code needs a multiple of 4, at least {least}"
        )


def visible_patches(num_patches: int, mask_ratio: float, where: str) -> int:
    """Return how many patches masking leaves: num_patches * (1 - mask_ratio), rounded.

    Raises:
        UserError: none is visible or none is hidden.
    """
    keep = round(num_patches * (1 - mask_ratio))
    if not 1 <= keep < num_patches:
        raise _refuse(
            where, "mask_ratio", mask_ratio, f"of {num_patches} patches at least one stays and one is hidden"
        )
    return keep


def validate_teacher(teacher: config.Teacher, model: config.Model, where: str) -> None:
    """Check the masked-autoencoder settings of a teacher; `where` is `teachers.<name>`.

    Raises:
        UserError: the mask ratio or the decoder does not go with the model.
    """
    if teacher.source != "mae":
        return
    assert teacher.mask_ratio is not None and teacher.decoder is not None  # the schema asks for them
    visible_patches(model.num_patches, teacher.mask_ratio, where)
    decoder = teacher.decoder
    if decoder.embed_dim % decoder.num_heads:
        allowed = f"it must divide decoder.embed_dim {decoder.embed_dim}"
        raise _refuse(where, "decoder.num_heads", decoder.num_heads, allowed)
    _validate_sincos_dim(decoder.embed_dim, f"{where}.decoder", 4)
    if teacher.norm_pix_loss and model.patch_size**2 * model.in_chans == 1:
        raise _refuse(where, "norm_pix_loss", True, "a patch of one value has no variance; set it to false")


def validate_fit(fit: config.Fit, model: config.Model, where: str) -> None:
    """Check the settings of an impulse fit; `where` is `fits.<name>`.

    Raises:
        UserError: the filter is even or not ordered, or the model has no fixed position code.
    """
    if fit.filter_size % 2 == 0:
        raise _refuse(where, "filter_size", fit.filter_size, "it must be odd")
    if fit.offsets == "ordered" and fit.filter_size != 3:
        raise _refuse(where, "filter_size", fit.filter_size, "ordered offsets are defined for 3 only")
    if model.pos_embed in ("learned", "none"):
        allowed = f"its pos_embed is {model.pos_embed}; a fit needs a fixed position code"
        raise _refuse(where, "model", fit.model, allowed)
