"""Checks of model settings that ranges and types cannot express. Imports no torch."""

from attnprior import config
from attnprior.errors import UserError, nearest

CHOICES = {
    "kind": ("vit",),
    "attention": ("qk", "free"),
    "pos_embed": ("sincos2d", "sincos2d_simple", "learned", "identity", "rope", "none"),
    "pos_at": ("input", "qk", "none"),
    "pool": ("mean", "mean_fc_norm", "cls"),
    "weight_init": ("torch", "trunc_normal"),
}
PSEUDO_INPUTS = ("position", "uniform", "gaussian", "position_uniform", "position_gaussian")
# What weights need to fit: all but the grid, the head and how the weights were drawn.
HANDED_ON = (
    *("in_chans", "patch_size", "patch_norm", "embed_dim", "depth", "num_heads", "mlp_ratio", "attention"),
    *(
        "value",
        "qkv_bias",
        "proj_bias",
        "logit_scale",
        "norm_eps",
        "pos_embed",
        "pos_at",
        "alpha",
        "cls_token",
    ),
)


def refusal(where: str, key: str, value: object, allowed: str) -> UserError:
    """Return the error that `key` of the entry `where` cannot be `value`; `allowed` says what can be."""
    return UserError(f"params.yaml: {where}.{key}: {value!r} does not work; {allowed}")


def validate_model(model: config.AnyModel, where: str) -> None:
    """Check that the parts of a model fit together; `where` is its dotted key, `models.<name>`.

    Raises:
        UserError: a value is unknown or does not go with the others.
    """
    if model.image_size % model.patch_size:
        raise refusal(where, "patch_size", model.patch_size, f"it must divide image_size {model.image_size}")
    if isinstance(model, config.ConvMixer):
        if model.kernel_size % 2 == 0:
            raise refusal(where, "kernel_size", model.kernel_size, "it must be odd")
        return
    m = model
    for key, choices in CHOICES.items():
        value = getattr(m, key)
        if value not in choices:
            raise refusal(where, key, value, f"use one of {', '.join(choices)}{nearest(value, choices)}")
    if m.embed_dim % m.num_heads:
        raise refusal(where, "num_heads", m.num_heads, f"it must divide embed_dim {m.embed_dim}")
    if m.patch_norm and m.patch_size**2 * m.in_chans == 1:
        raise refusal(
            where, "patch_norm", m.patch_norm, "a norm over one value is constant zero; set it to false"
        )
    if m.pool == "cls" and not m.cls_token:
        raise refusal(where, "pool", m.pool, "it needs cls_token: true; or use pool: mean")
    _validate_position(m, where)
    if m.attention == "free":
        if m.pos_at == "qk":
            allowed = "attention: free has no input of queries and keys; use pos_at input or none"
            raise refusal(where, "pos_at", m.pos_at, allowed)
        if m.cls_token:
            raise refusal(
                where, "cls_token", True, "attention: free has a map of the patches alone; set it to false"
            )
        if m.qkv_bias and not m.value:
            allowed = "attention: free without value has no such map; set it to false"
            raise refusal(where, "qkv_bias", True, allowed)


def _validate_position(m: config.Model, where: str) -> None:
    if m.pos_embed.startswith("sincos2d"):
        _validate_sincos_dim(m.embed_dim, where, 8 if m.pos_embed == "sincos2d_simple" else 4)
    if m.pos_embed == "identity" and m.num_patches > m.embed_dim:
        raise refusal(
            where, "pos_embed", m.pos_embed, f"{m.num_patches} patches need embed_dim >= {m.num_patches}"
        )
    if (m.pos_embed == "none") != (m.pos_at == "none"):
        raise refusal(
            where, "pos_at", m.pos_at, f"pos_embed is {m.pos_embed}; set both to none or neither of them"
        )
    if not 0 <= m.alpha <= 1:
        raise refusal(where, "alpha", m.alpha, "it must lie between 0 and 1")
    if m.pos_embed == "rope":
        if m.pos_at != "qk":
            raise refusal(where, "pos_at", m.pos_at, "rope turns queries and keys; set it to qk")
        if m.head_dim % 4:
            raise refusal(
                where, "num_heads", m.num_heads, f"rope needs a head width divisible by 4, not {m.head_dim}"
            )
    if m.alpha != 1 and (m.pos_at == "none" or m.pos_embed == "rope"):
        what = "rope" if m.pos_embed == "rope" else "pos_at none"
        raise refusal(where, "alpha", m.alpha, f"with {what} nothing is blended; set it to 1.0")
    if m.alpha == 0 and m.pos_at == "input":
        raise refusal(where, "alpha", m.alpha, "with pos_at input the image would be lost; use more than 0")


def _validate_sincos_dim(dim: int, where: str, least: int) -> None:
    if dim % 4 or dim < least:
        raise refusal(
            where, "embed_dim", dim, f"a sine-cosine position code needs a multiple of 4, at least {least}"
        )


def visible_patches(num_patches: int, mask_ratio: float, where: str) -> int:
    """Return how many patches masking leaves: num_patches * (1 - mask_ratio), rounded.

    Raises:
        UserError: none is visible or none is hidden.
    """
    keep = round(num_patches * (1 - mask_ratio))
    if not 1 <= keep < num_patches:
        raise refusal(
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
    if model.attention == "free":
        allowed = "attention: free has one map of all patches, of which a masked autoencoder hides most"
        raise refusal(where, "model", teacher.model, f"{allowed}; choose a model with attention: qk")
    keep = visible_patches(model.num_patches, teacher.mask_ratio, where)
    if teacher.masking == "grid" and (model.grid % 2 or 4 * keep != model.num_patches):
        allowed = (
            "it keeps one of every 2x2 patches: use mask_ratio 0.75 and an even number of patches a side"
        )
        raise refusal(where, "masking", teacher.masking, allowed)
    decoder = teacher.decoder
    if decoder.embed_dim % decoder.num_heads:
        allowed = f"it must divide decoder.embed_dim {decoder.embed_dim}"
        raise refusal(where, "decoder.num_heads", decoder.num_heads, allowed)
    _validate_sincos_dim(decoder.embed_dim, f"{where}.decoder", 4)
    if teacher.norm_pix_loss and model.patch_size**2 * model.in_chans == 1:
        raise refusal(where, "norm_pix_loss", True, "a patch of one value has no variance; set it to false")


def validate_fit(fit: config.Fit, model: config.Model, where: str) -> None:
    """Check the settings of an impulse fit; `where` is `fits.<name>`.

    Raises:
        UserError: the filter is even or not ordered, or an option does not go with the model.
    """
    if fit.filter_size % 2 == 0:
        raise refusal(where, "filter_size", fit.filter_size, "it must be odd")
    if fit.offsets == "ordered" and fit.filter_size != 3:
        raise refusal(where, "filter_size", fit.filter_size, "ordered offsets are defined for 3 only")
    if fit.layers not in ("each", "shared"):
        raise refusal(where, "layers", fit.layers, "use each or shared")
    if None not in (fit.logit_scale, model.logit_scale) and fit.logit_scale != model.logit_scale:
        allowed = f"its model has logit_scale {model.logit_scale}; make them equal or set one to null"
        raise refusal(where, "logit_scale", fit.logit_scale, allowed)
    free = model.attention == "free"
    if not free and model.pos_embed in ("none", "rope"):
        allowed = f"its pos_embed is {model.pos_embed}; a fit needs a position code, or attention: free"
        raise refusal(where, "model", fit.model, allowed)
    _needed(fit, "inputs", not free, where, "attention: qk")
    _needed(fit, "position_norm", not free and model.pos_embed == "learned", where, "pos_embed: learned")
    if fit.inputs is not None:
        for key in ("first", "rest"):
            value = getattr(fit.inputs, key)
            if value not in PSEUDO_INPUTS:
                allowed = f"use one of {', '.join(PSEUDO_INPUTS)}{nearest(value, PSEUDO_INPUTS)}"
                raise refusal(where, f"inputs.{key}", value, allowed)
        if model.depth == 1 and fit.inputs.rest != fit.inputs.first:
            raise refusal(
                where, "inputs.rest", fit.inputs.rest, "the model has one layer; set it to inputs.first"
            )
    if fit.value_norm and not model.value:
        raise refusal(where, "value_norm", fit.value_norm, "its model has value: false; set it to 0.0")


def _needed(fit: config.Fit, key: str, used: bool, where: str, owner: str) -> None:
    """Check that a key which models with `owner` alone use is there exactly for them."""
    if used and getattr(fit, key) is None:
        raise UserError(f"params.yaml: missing key {where}.{key}, needed by a model with {owner}")
    if not used and getattr(fit, key) is not None:
        raise UserError(
            f"params.yaml: {where}.{key} is not used by its model {fit.model!r} (only with {owner});"
            " remove it"
        )


def validate_hand_over(teacher: config.Model, student: config.Model, name: str, where: str) -> None:
    """Check that the weights of teacher `name` can be a student's first ones; `where` is `students.<name>`.

    The grid may differ where the patch is the same: learned position codes are interpolated, fixed ones
    made for the new grid.

    Raises:
        UserError: a setting that shapes weights or their use differs.
    """
    keys: tuple[str, ...] = HANDED_ON
    if student.attention == "free" or student.pos_embed == "identity":
        keys += ("image_size",)
    for key in keys:
        ours, theirs = getattr(student, key), getattr(teacher, key)
        if ours != theirs:
            allowed = f"its model has {key} {theirs} and the student's {ours}; choose models that agree"
            raise refusal(where, "init.teacher", name, allowed)
