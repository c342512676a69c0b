"""Checks that a student's initialisation and freezing go with its model and recipe. Imports no torch."""

from attnprior import config
from attnprior.errors import UserError, nearest
from attnprior.models.checks import refusal

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


def validate_student(
    student: config.Student, model: config.AnyModel, recipe: config.Recipe, where: str
) -> None:
    """Check that initialisation and freezing go with a student's model; `where` is `students.<name>`.

    Raises:
        UserError: they do not, or the filters of a ConvMixer do not exist.
    """
    init, source = student.init, student.init.source
    if student.freeze not in ("none", "spatial", "encoder"):
        raise refusal(where, "freeze", student.freeze, "use none, spatial or encoder")
    if student.freeze == "encoder":
        _validate_frozen_encoder(student, model, recipe, where)
    normed = isinstance(model, config.ConvMixer) or student.freeze == "encoder"
    if normed and (recipe.processes or 1) > 1:
        allowed = "its batch norms keep running statistics, which processes do not share; set it to 1"
        raise refusal(where, "recipe.processes", recipe.processes, allowed)
    if isinstance(model, config.ConvMixer):
        if source != "filters":
            allowed = "its model is a convmixer, which has no attention; use source: filters"
            raise refusal(where, "init.source", source, allowed)
        if student.transfer.method != "none":
            allowed = "its model is a convmixer, which has no attention; use none"
            raise refusal(where, "transfer.method", student.transfer.method, allowed)
        if recipe.drop_path:
            allowed = "its model is a convmixer, whose blocks are not dropped; set it to 0.0 in overrides"
            raise refusal(where, "recipe.drop_path", recipe.drop_path, allowed)
        _validate_filters(student, model, where)
        return
    if source == "filters":
        raise refusal(where, "init.source", source, "filters are those of a convmixer; its model is a vit")
    if source in ("mimetic", "mimetic_reduced") and init.value and not model.value:
        raise refusal(where, "init.value", True, "its model has value: false; set it to false")
    narrow = model.attention == "free" and model.num_patches < model.head_dim
    if source in ("mimetic", "mimetic_reduced") and narrow:
        allowed = (
            f"its model has free queries and keys {model.head_dim} wide, mimetic ones of {model.num_patches}"
            f" patches have {model.num_patches} columns; lower patch_size or raise num_heads"
        )
        raise refusal(where, "init.source", source, allowed)
    if student.freeze == "spatial" and student.transfer.method == "distil":
        allowed = "queries and keys that are not trained cannot take over a teacher's; use freeze: none"
        raise refusal(where, "freeze", student.freeze, allowed)


def _validate_frozen_encoder(
    student: config.Student, model: config.AnyModel, recipe: config.Recipe, where: str
) -> None:
    """Check that nothing is asked of an encoder that is not trained; its head alone is."""
    if isinstance(model, config.ConvMixer):
        allowed = "its model is a convmixer, and a linear probe is that of a vit; use none or spatial"
        raise refusal(where, "freeze", student.freeze, allowed)
    if student.transfer.method != "none":
        allowed = (
            "with freeze: encoder attention does not learn and stays that of the first weights; use none"
        )
        raise refusal(where, "transfer.method", student.transfer.method, allowed)
    if recipe.drop_path:
        allowed = "with freeze: encoder no block is trained, so none is dropped; set it to 0.0 in overrides"
        raise refusal(where, "recipe.drop_path", recipe.drop_path, allowed)
    if recipe.layer_decay != 1:
        allowed = (
            "with freeze: encoder only the head is trained, at the full rate; set it to 1.0 in overrides"
        )
        raise refusal(where, "recipe.layer_decay", recipe.layer_decay, allowed)
    if 1 in (recipe.batch_size, student.labels % recipe.batch_size):
        allowed = (
            f"of {student.labels} labels it leaves a batch of one image, of which the norm before the head"
            " has no variance; use another number"
        )
        raise refusal(where, "recipe.batch_size", recipe.batch_size, allowed)


def _validate_filters(student: config.Student, model: config.ConvMixer, where: str) -> None:
    init, kind = student.init, student.init.kind
    if kind not in FILTERS:
        raise refusal(
            where, "init.kind", kind, f"use one of {', '.join(FILTERS)}{nearest(str(kind), FILTERS)}"
        )
    if kind == "learned" and student.freeze != "none":
        raise refusal(where, "freeze", student.freeze, "learned filters are trained; use kind: random")
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
        raise refusal(
            where, "init.heads", init.heads, f"use 1 to {model.embed_dim}, the channels of its model"
        )
    if init.entries is not None and not 1 <= init.entries <= model.kernel_size**2:
        most = model.kernel_size**2
        raise refusal(where, "init.entries", init.entries, f"use 1 to {most}, the entries of a filter")
