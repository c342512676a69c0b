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
FILTERS = {  # numbers that a kind of filter has, besides heads
    "learned": (),
    "random": (),
    "softmax": (),
    "impulse": ("squared_norm",),
    "box": ("entries", "squared_norm"),
    "gauss": ("variance", "squared_norm"),
    "perm": ("squared_norm",),
    "fullperm": ("squared_norm",),
}
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


def _refuse(where: str, key: str, value: object, allowed: str) -> UserError:
    return UserError(f"params.yaml: {where}.{key}: {value!r} does not work; {allowed}")


def validate_model(model: config.AnyModel, where: str) -> None:
    """Check that the parts of a model fit together; `where` is its dotted key, `models.<name>`.

    Raises:
        UserError: a value is unknown or does not go with the others.
    """
    if model.image_size % model.patch_size:
        raise _refuse(where, "patch_size", model.patch_size, f"it must divide image_size {model.image_size}")
    if isinstance(model, config.ConvMixer):
        if model.kernel_size % 2 == 0:
            raise _refuse(where, "kernel_size", model.kernel_size, "it must be odd")
        return
    m = model
    for key, choices in CHOICES.items():
        value = getattr(m, key)
        if value not in choices:
            raise _refuse(where, key, value, f"use one of {', '.join(choices)}{nearest(value, choices)}")
    if m.embed_dim % m.num_heads:
        raise _refuse(where, "num_heads", m.num_heads, f"it must divide embed_dim {m.embed_dim}")
    if m.patch_norm and m.patch_size**2 * m.in_chans == 1:
        raise _refuse(
            where, "patch_norm", m.patch_norm, "a norm over one value is constant zero; set it to false"
        )
    if m.pool == "cls" and not m.cls_token:
        raise _refuse(where, "pool", m.pool, "it needs cls_token: true; or use pool: mean")
    _validate_position(m, where)
    if m.attention == "free":
        if m.pos_at == "qk":
            allowed = "attention: free has no input of queries and keys; use pos_at input or none"
            raise _refuse(where, "pos_at", m.pos_at, allowed)
        if m.cls_token:
            raise _refuse(
                where, "cls_token", True, "attention: free has a map of the patches alone; set it to false"
            )
        if m.qkv_bias and not m.value:
            allowed = "attention: free without value has no such map; set it to false"
            raise _refuse(where, "qkv_bias", True, allowed)


def _validate_position(m: config.Model, where: str) -> None:
    if m.pos_embed.startswith("sincos2d"):
        _validate_sincos_dim(m.embed_dim, where, 8 if m.pos_embed == "sincos2d_simple" else 4)
    if m.pos_embed == "identity" and m.num_patches > m.embed_dim:
        raise _refuse(
            where, "pos_embed", m.pos_embed, f"{m.num_patches} patches need embed_dim >= {m.num_patches}"
        )
    if (m.pos_embed == "none") != (m.pos_at == "none"):
        raise _refuse(
            where, "pos_at", m.pos_at, f"pos_embed is {m.pos_embed}; set both to none or neither of them"
        )
    if not 0 <= m.alpha <= 1:
        raise _refuse(where, "alpha", m.alpha, "it must lie between 0 and 1")
    if m.pos_embed == "rope":
        if m.pos_at != "qk":
            raise _refuse(where, "pos_at", m.pos_at, "rope turns queries and keys; set it to qk")
        if m.head_dim % 4:
            raise _refuse(
                where, "num_heads", m.num_heads, f"rope needs a head width divisible by 4, not {m.head_dim}"
            )
    if m.alpha != 1 and (m.pos_at == "none" or m.pos_embed == "rope"):
        what = "rope" if m.pos_embed == "rope" else "pos_at none"
        raise _refuse(where, "alpha", m.alpha, f"with {what} nothing is blended; set it to 1.0")
    if m.alpha == 0 and m.pos_at == "input":
        raise _refuse(where, "alpha", m.alpha, "with pos_at input the image would be lost; use more than 0")


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
    if model.attention == "free":
        allowed = "attention: free has one map of all patches, of which a masked autoencoder hides most"
        raise _refuse(where, "model", teacher.model, f"{allowed}; choose a model with attention: qk")
    keep = visible_patches(model.num_patches, teacher.mask_ratio, where)
    if teacher.masking == "grid" and (model.grid % 2 or 4 * keep != model.num_patches):
        allowed = (
            "it keeps one of every 2x2 patches: use mask_ratio 0.75 and an even number of patches a side"
        )
        raise _refuse(where, "masking", teacher.masking, allowed)
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
        UserError: the filter is even or not ordered, or an option does not go with the model.
    """
    if fit.filter_size % 2 == 0:
        raise _refuse(where, "filter_size", fit.filter_size, "it must be odd")
    if fit.offsets == "ordered" and fit.filter_size != 3:
        raise _refuse(where, "filter_size", fit.filter_size, "ordered offsets are defined for 3 only")
    if fit.layers not in ("each", "shared"):
        raise _refuse(where, "layers", fit.layers, "use each or shared")
    if None not in (fit.logit_scale, model.logit_scale) and fit.logit_scale != model.logit_scale:
        allowed = f"its model has logit_scale {model.logit_scale}; make them equal or set one to null"
        raise _refuse(where, "logit_scale", fit.logit_scale, allowed)
    free = model.attention == "free"
    if not free and model.pos_embed in ("none", "rope"):
        allowed = f"its pos_embed is {model.pos_embed}; a fit needs a position code, or attention: free"
        raise _refuse(where, "model", fit.model, allowed)
    _needed(fit, "inputs", not free, where, "attention: qk")
    _needed(fit, "position_norm", not free and model.pos_embed == "learned", where, "pos_embed: learned")
    if fit.inputs is not None:
        for key in ("first", "rest"):
            value = getattr(fit.inputs, key)
            if value not in PSEUDO_INPUTS:
                allowed = f"use one of {', '.join(PSEUDO_INPUTS)}{nearest(value, PSEUDO_INPUTS)}"
                raise _refuse(where, f"inputs.{key}", value, allowed)
        if model.depth == 1 and fit.inputs.rest != fit.inputs.first:
            raise _refuse(
                where, "inputs.rest", fit.inputs.rest, "the model has one layer; set it to inputs.first"
            )
    if fit.value_norm and not model.value:
        raise _refuse(where, "value_norm", fit.value_norm, "its model has value: false; set it to 0.0")


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
            raise _refuse(where, "init.teacher", name, allowed)


def validate_student(
    student: config.Student, model: config.AnyModel, recipe: config.Recipe, where: str
) -> None:
    """Check that initialisation and freezing go with a student's model; `where` is `students.<name>`.

    Raises:
        UserError: they do not, or the filters of a ConvMixer do not exist.
    """
    init, source = student.init, student.init.source
    if student.freeze not in ("none", "spatial", "encoder"):
        raise _refuse(where, "freeze", student.freeze, "use none, spatial or encoder")
    if student.freeze == "encoder":
        _validate_frozen_encoder(student, model, recipe, where)
    if isinstance(model, config.ConvMixer):
        if source != "filters":
            allowed = "its model is a convmixer, which has no attention; use source: filters"
            raise _refuse(where, "init.source", source, allowed)
        if student.transfer.method != "none":
            allowed = "its model is a convmixer, which has no attention; use none"
            raise _refuse(where, "transfer.method", student.transfer.method, allowed)
        if recipe.drop_path:
            allowed = "its model is a convmixer, whose blocks are not dropped; set it to 0.0 in overrides"
            raise _refuse(where, "recipe.drop_path", recipe.drop_path, allowed)
        _validate_filters(student, model, where)
        return
    if source == "filters":
        raise _refuse(where, "init.source", source, "filters are those of a convmixer; its model is a vit")
    if source in ("mimetic", "mimetic_reduced") and init.value and not model.value:
        raise _refuse(where, "init.value", True, "its model has value: false; set it to false")
    narrow = model.attention == "free" and model.num_patches < model.head_dim
    if source in ("mimetic", "mimetic_reduced") and narrow:
        allowed = (
            f"its model has free queries and keys {model.head_dim} wide, mimetic ones of {model.num_patches}"
            f" patches have {model.num_patches} columns; lower patch_size or raise num_heads"
        )
        raise _refuse(where, "init.source", source, allowed)
    if student.freeze == "spatial" and student.transfer.method == "distil":
        allowed = "queries and keys that are not trained cannot take over a teacher's; use freeze: none"
        raise _refuse(where, "freeze", student.freeze, allowed)


def _validate_frozen_encoder(
    student: config.Student, model: config.AnyModel, recipe: config.Recipe, where: str
) -> None:
    """Check that nothing is asked of an encoder that is not trained; its head alone is."""
    if isinstance(model, config.ConvMixer):
        allowed = "its model is a convmixer, and a linear probe is that of a vit; use none or spatial"
        raise _refuse(where, "freeze", student.freeze, allowed)
    if student.transfer.method != "none":
        allowed = (
            "with freeze: encoder attention does not learn and stays that of the first weights; use none"
        )
        raise _refuse(where, "transfer.method", student.transfer.method, allowed)
    if recipe.drop_path:
        allowed = "with freeze: encoder no block is trained, so none is dropped; set it to 0.0 in overrides"
        raise _refuse(where, "recipe.drop_path", recipe.drop_path, allowed)
    if recipe.layer_decay != 1:
        allowed = (
            "with freeze: encoder only the head is trained, at the full rate; set it to 1.0 in overrides"
        )
        raise _refuse(where, "recipe.layer_decay", recipe.layer_decay, allowed)
    if 1 in (recipe.batch_size, student.labels % recipe.batch_size):
        allowed = (
            f"of {student.labels} labels it leaves a batch of one image, of which the norm before the head"
            " has no variance; use another number"
        )
        raise _refuse(where, "recipe.batch_size", recipe.batch_size, allowed)


def _validate_filters(student: config.Student, model: config.ConvMixer, where: str) -> None:
    init, kind = student.init, student.init.kind
    if kind not in FILTERS:
        raise _refuse(
            where, "init.kind", kind, f"use one of {', '.join(FILTERS)}{nearest(str(kind), FILTERS)}"
        )
    if kind == "learned" and student.freeze != "none":
        raise _refuse(where, "freeze", student.freeze, "learned filters are trained; use kind: random")
    for key in ("entries", "variance", "squared_norm"):
        if key in FILTERS[kind] and getattr(init, key) is None:
            raise UserError(f"params.yaml: missing key {where}.init.{key}, needed by filters of kind {kind}")
        if key not in FILTERS[kind] and getattr(init, key) is not None:
            users = ", ".join(k for k, keys in FILTERS.items() if key in keys)
            raise UserError(
                f"params.yaml: {where}.init.{key} is not used by filters of kind {kind} (only by {users});"
                " remove it"
            )
    if init.heads is None or not 1 <= init.heads <= model.embed_dim:
        raise _refuse(
            where, "init.heads", init.heads, f"use 1 to {model.embed_dim}, the channels of its model"
        )
    if init.entries is not None and not 1 <= init.entries <= model.kernel_size**2:
        most = model.kernel_size**2
        raise _refuse(where, "init.entries", init.entries, f"use 1 to {most}, the entries of a filter")
