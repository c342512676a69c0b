"""Checks that a transfer is fully stated and that teacher and student fit together. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from attnprior.config import Model, Transfer
from attnprior.errors import UserError, nearest
from attnprior.selection import head_numbers, layer_pairs

WHAT = ("map", "q", "k", "v", "qk", "qv", "kv")
MAPS = ("same_image", "other_image", "mean_images", "mean_queries")
SCHEDULES = ("linear", "cosine")
OPTIONS: Mapping[str, tuple[str, ...]] = {  # by method; class_token comes with a model that has one
    "none": (),
    "copy": ("teacher", "what", "layers", "heads", "maps"),
    "distil": ("teacher", "what", "layers", "heads", "maps", "weight"),
    "distil_features": ("teacher", "layers", "weight"),
}


def _refuse(where: str, key: str, value: object, allowed: str) -> UserError:
    return UserError(f"params.yaml: {where}.transfer.{key}: {value!r} does not work; {allowed}")


def check_options(transfer: Transfer, where: str) -> None:
    """Check that a transfer has exactly the keys that its method uses; `where` is `students.<name>`.

    Raises:
        UserError: the method is unknown, or a key is missing or not used.
    """
    method = transfer.method
    if method not in OPTIONS:
        raise UserError(f"{where}.transfer.method: {method!r}; allowed: {', '.join(OPTIONS)}")
    for key in ("teacher", "what", "layers", "heads", "maps", "weight"):
        given = getattr(transfer, key) is not None
        if given and key not in OPTIONS[method]:
            users = ", ".join(m for m, keys in OPTIONS.items() if key in keys)
            raise UserError(
                f"params.yaml: {where}.transfer.{key} is not used by {method!r} (only by {users}); remove it"
            )
        if not given and key in OPTIONS[method]:
            raise UserError(f"params.yaml: missing key {where}.transfer.{key}, needed by {method!r}")
    if method == "none" and transfer.class_token is not None:
        raise UserError(f"params.yaml: {where}.transfer.class_token is not used by 'none'; remove it")


def validate_transfer(transfer: Transfer, student: Model, teacher: Model, where: str) -> None:
    """Check a transfer from a teacher to a student; `where` is `students.<name>`.

    Maps may come from another width: one has the shape heads x tokens x tokens (arXiv 2411.09702).

    Raises:
        UserError: a key is missing, unused or out of range, or the two models do not fit together.
    """
    check_options(transfer, where)
    if transfer.method == "none":
        return
    _check_class_token(transfer, student, teacher, where)
    _check_layers(transfer, student, teacher, where)
    _check_fit(transfer, student, teacher, where, "num_patches", "choose models that agree")
    if transfer.weight is not None:
        _check_weight(transfer.weight, where)
    if transfer.method == "distil_features":
        _check_fit(transfer, student, teacher, where, "embed_dim", "features need one width")
        return
    for key, allowed in (("what", WHAT), ("maps", MAPS)):
        value = getattr(transfer, key)
        if value not in allowed:
            raise _refuse(where, key, value, f"use one of {', '.join(allowed)}{nearest(value, allowed)}")
    if transfer.maps in ("mean_images", "mean_queries") and transfer.what != "map":
        raise _refuse(where, "maps", transfer.maps, f"only maps are averaged, and what is {transfer.what!r}")
    _check_heads(transfer, student, teacher, where)
    if transfer.what != "map":
        why = f"{transfer.what!r} needs heads of one width; use what: map or choose models that agree"
        _check_fit(transfer, student, teacher, where, "head_dim", why)


def check_freeze(freeze: str, transfer: Transfer, student: Model, where: str) -> None:
    """Check that a student that freezes queries and keys uses some; to be called after `validate_transfer`.

    Raises:
        UserError: every map that it has is a teacher's.
    """
    if freeze != "spatial" or transfer.method != "copy" or transfer.what not in ("map", "qk"):
        return
    assert transfer.layers is not None and transfer.heads is not None
    layers = layer_pairs(transfer.layers, student.depth, student.depth)
    heads = head_numbers(transfer.heads, student.num_heads)
    own_token = student.cls_token and not transfer.class_token
    if len(layers) == student.depth and len(heads) == student.num_heads and not own_token:
        raise UserError(
            f"params.yaml: {where}.freeze: {freeze!r} does not work; all maps are copied, which leaves no"
            " queries and keys to freeze; use freeze: none"
        )


def _check_fit(transfer: Transfer, student: Model, teacher: Model, where: str, key: str, advice: str) -> None:
    ours, theirs = getattr(student, key), getattr(teacher, key)
    if ours != theirs:
        allowed = f"its model has {key} {theirs} and the student's {ours}; {advice}"
        raise _refuse(where, "teacher", transfer.teacher, allowed)


def _check_class_token(transfer: Transfer, student: Model, teacher: Model, where: str) -> None:
    if not (student.cls_token or teacher.cls_token):
        if transfer.class_token is not None:
            raise _refuse(
                where, "class_token", transfer.class_token, "neither model has a class token; remove it"
            )
    elif transfer.class_token is None:
        raise UserError(
            f"params.yaml: missing key {where}.transfer.class_token; say whether the class token takes part"
        )
    elif transfer.class_token:
        advice = "choose models that agree or set class_token: false"
        _check_fit(transfer, student, teacher, where, "cls_token", advice)


def _check_layers(transfer: Transfer, student: Model, teacher: Model, where: str) -> None:
    assert transfer.layers is not None
    deepest = min(student.depth, teacher.depth)
    kind, value = _one_of(transfer.layers, ("first", "last", "list"), where, "layers")
    if kind != "list":
        if not 1 <= value <= deepest:
            raise _refuse(where, f"layers.{kind}", value, f"use 1 to {deepest}, the depth of both models")
    else:
        _check_list(value, deepest, where, "layers", "blocks")


def _check_heads(transfer: Transfer, student: Model, teacher: Model, where: str) -> None:
    heads = transfer.heads
    if isinstance(heads, Mapping):
        most = min(student.num_heads, teacher.num_heads)
        kind, value = _one_of(heads, ("first", "list"), where, "heads")
        if kind == "list":
            _check_list(value, most, where, "heads", "heads")
        elif not 1 <= value <= most:
            raise _refuse(where, "heads.first", value, f"use 1 to {most}, the heads of both models")
    elif heads == "all":
        _check_fit(transfer, student, teacher, where, "num_heads", "choose models that agree or some heads")
    else:
        raise _refuse(where, "heads", heads, "use all, {first: n} or {list: [...]}")


def _one_of(values: Mapping[str, Any], kinds: tuple[str, ...], where: str, key: str) -> tuple[str, Any]:
    if len(values) != 1 or not set(values) <= set(kinds):
        raise _refuse(where, key, dict(values), f"give exactly one of {', '.join(kinds)}")
    return next(iter(values.items()))


def _check_list(values: list[int], count: int, where: str, key: str, what: str) -> None:
    if not values or list(values) != sorted(set(values)) or not 0 <= values[0] <= values[-1] < count:
        allowed = f"list some of 0 to {count - 1}, the {what} of both models, each once and rising"
        raise _refuse(where, f"{key}.list", values, allowed)


def _check_weight(weight: float | Mapping[str, Any], where: str) -> None:
    if not isinstance(weight, Mapping):
        return
    if set(weight) != {"schedule", "from", "to"}:
        raise _refuse(where, "weight", dict(weight), "give a number, or schedule, from and to")
    if weight["schedule"] not in SCHEDULES:
        allowed = f"use one of {', '.join(SCHEDULES)}, or a plain number that stays"
        raise _refuse(where, "weight.schedule", weight["schedule"], allowed)
    if weight["from"] == weight["to"]:
        raise _refuse(where, "weight.to", weight["to"], "it is weight.from again; write weight as one number")
