"""Which keys a recipe has: a key exists exactly where it has a meaning."""

from collections.abc import Callable, Iterator
from typing import Any

from attnprior.errors import UserError, nearest

TOP = [
    *("optimizer", "weight_decay", "lr", "schedule", "epochs", "batch_size", "accumulate", "layer_decay"),
    *("ema", "grad_clip", "label_smoothing", "drop_path", "augment"),
]
AUGMENT = ["crop", "flip", "randaugment", "color_jitter", "erasing", "mixup", "cutmix"]
FIXED = {
    "": TOP,
    "augment.": AUGMENT,
    "augment.randaugment.": ["style", "ops", "magnitude"],
    "augment.color_jitter.": ["brightness", "contrast", "saturation", "hue"],
    "augment.erasing.": ["probability", "scale", "ratio", "value"],
}
Test = Callable[[dict], bool]
# key, when it is used, and the test of that, given that the keys above are there
CONDITIONAL: list[tuple[str, str, Test]] = [
    ("processes", "accumulate above 1", lambda r: r["accumulate"] > 1),
    ("sharded", "processes above 1", lambda r: r.get("processes", 1) > 1),
    ("betas", "optimizer adamw or adam", lambda r: r["optimizer"] in ("adamw", "adam")),
    ("eps", "optimizer adamw or adam", lambda r: r["optimizer"] in ("adamw", "adam")),
    ("momentum", "optimizer sgd or lars", lambda r: r["optimizer"] in ("sgd", "lars")),
    ("trust", "optimizer lars", lambda r: r["optimizer"] == "lars"),
    ("decay", "weight_decay above 0", lambda r: r["weight_decay"] > 0),
    ("min_lr", "schedule cosine or cosine_whole", lambda r: r["schedule"] in ("cosine", "cosine_whole")),
    ("warmup_epochs", "schedules other than triangular", lambda r: r["schedule"] != "triangular"),
    (
        "warmup_lr",
        "warmup_epochs above 0 and schedules other than cosine_capped",
        lambda r: r.get("warmup_epochs", 0) > 0 and r["schedule"] != "cosine_capped",
    ),
    (
        "per",
        "a rate that changes",
        lambda r: r["schedule"] != "constant" or r.get("warmup_epochs", 0) > 0,
    ),
    ("augment.padding", "crop padded", lambda r: r["augment"]["crop"] == "padded"),
    ("augment.scale", "crop resized", lambda r: r["augment"]["crop"] == "resized"),
    ("augment.ratio", "crop resized", lambda r: r["augment"]["crop"] == "resized"),
    ("augment.interpolation", "crop resized", lambda r: r["augment"]["crop"] == "resized"),
    (
        "augment.mix_probability",
        "mixup or cutmix above 0",
        lambda r: r["augment"]["mixup"] > 0 or r["augment"]["cutmix"] > 0,
    ),
    (
        "augment.mix_switch",
        "mixup and cutmix above 0",
        lambda r: r["augment"]["mixup"] > 0 and r["augment"]["cutmix"] > 0,
    ),
    ("augment.randaugment.std", "style timm", lambda r: _style(r) == "timm"),
    ("augment.randaugment.increasing", "style timm", lambda r: _style(r) == "timm"),
    ("augment.randaugment.interpolation", "style timm", lambda r: _style(r) == "timm"),
    (
        "augment.randaugment.before_crop",
        "a crop or flip",
        lambda r: _style(r) is not None and (r["augment"]["crop"] != "none" or r["augment"]["flip"] > 0),
    ),
]


def _style(recipe: dict) -> str | None:
    found = recipe["augment"]["randaugment"]
    return None if found is None else found["style"]


def check_recipe(values: dict[str, Any], where: str) -> None:
    """Check that a recipe has exactly the keys that it uses, and that its numbers go together.

    `values` obey the schema's types and ranges.

    Raises:
        UserError: names the key below `where`.
    """
    for prefix, keys in FIXED.items():
        node = _at(values, prefix)
        for key in keys if node is not None else ():
            if key not in node:
                raise UserError(
                    f"params.yaml: missing key {where}.{prefix}{key}; add it (nothing has a default)"
                )
    for key, when, test in CONDITIONAL:
        parent, last = _split(key)
        node = _at(values, parent)
        if node is None:
            continue
        if test(values) and last not in node:
            raise UserError(f"params.yaml: missing key {where}.{key}, needed by {when}")
        if not test(values) and last in node:
            raise UserError(f"params.yaml: {where}.{key} is not used here (only by {when}); remove it")
    for key, problem in _problems(values):
        value = _at(values, _split(key)[0])[_split(key)[1]]
        raise UserError(f"params.yaml: {where}.{key} is {value!r}, {problem}")


def _problems(r: dict) -> Iterator[tuple[str, str]]:
    """Yield keys whose value contradicts another one, and what is allowed."""
    if r.get("processes", 1) > r["accumulate"]:
        yield "processes", f"must be at most accumulate, {r['accumulate']}: each takes a batch of every step"
    if r.get("sharded") and r["optimizer"] == "lars":
        yield "sharded", "but lars needs the norms of whole weights; set it to false"
    if r.get("min_lr", 0) > r["lr"]:
        yield "min_lr", f"must be at most lr, {r['lr']}"
    if r.get("warmup_lr", 0) > r["lr"]:
        yield "warmup_lr", f"must be at most lr, {r['lr']}"
    if r.get("warmup_epochs", 0) > r["epochs"]:
        yield "warmup_epochs", f"must be at most epochs, {r['epochs']}"
    if r["schedule"] == "cosine_capped" and r["warmup_epochs"] == 0:
        yield "warmup_epochs", "must be above 0 for schedule cosine_capped"
    for key in ("augment.scale", "augment.ratio", "augment.erasing.scale", "augment.erasing.ratio"):
        parent, last = _split(key)
        found = (_at(r, parent) or {}).get(last)
        if found and found[0] > found[1]:
            yield key, "must be [smallest, largest]"
    random = r["augment"]["randaugment"]
    if random:
        most = 30 if random["style"] == "torchvision" else 10
        if random["magnitude"] > most or (most == 30 and random["magnitude"] % 1):
            allowed = "a whole number from 0 to 30" if most == 30 else "0 to 10"
            yield "augment.randaugment.magnitude", f"must be {allowed} for style {random['style']}"


PRETRAINING = {
    "label_smoothing": 0,
    "drop_path": 0,
    "layer_decay": 1,
    "augment.mixup": 0,
    "augment.cutmix": 0,
}


def check_pretraining(values: dict[str, Any], where: str) -> None:
    """Check that a recipe of masked-autoencoder pre-training has only what that uses.

    Raises:
        UserError: it has labels, drop path or layer-wise rates, which nothing would apply.
    """
    for key, none in PRETRAINING.items():
        parent, last = _split(key)
        value = _at(values, parent)[last]
        if value != none:
            raise UserError(
                f"params.yaml: {where}.{key} is {value!r}, which pre-training without labels does not use;"
                f" set it to {none}"
            )


def merged(recipe: dict[str, Any], overrides: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `recipe` with `overrides`, mappings merged key by key.

    Keys of `recipe` that have no meaning with the overrides are left out (betas, once the optimizer is sgd);
    what the overrides name themselves stays, to be judged by `check_recipe`.

    Raises:
        UserError: an override names no recipe key.
    """
    known = {prefix: list(keys) for prefix, keys in FIXED.items()}
    for key, _, _ in CONDITIONAL:
        parent, last = _split(key)
        known[parent].append(last)
    found = _merge(recipe, overrides, "", known, where)
    for key, _, test in CONDITIONAL:
        parent, last = _split(key)
        node, own = _at(found, parent), _at(overrides, parent) or {}
        try:
            unused = node is not None and last in node and last not in own and not test(found)
        except (KeyError, TypeError):  # a key that decides is missing or no recipe's: check_recipe names it
            unused = False
        if unused:
            del node[last]
    return found


def _merge(base: dict, over: dict, prefix: str, known: dict[str, list[str]], where: str) -> dict:
    for key in over:
        if key not in known[prefix]:
            raise UserError(
                f"params.yaml: unknown key {where}.{prefix}{key}{nearest(key, known[prefix])};"
                f" allowed: {', '.join(known[prefix])}"
            )
    found = {k: _copy(v) for k, v in base.items()}
    for key, value in over.items():
        both = isinstance(value, dict) and f"{prefix}{key}." in known
        own = base.get(key) if isinstance(base.get(key), dict) else {}
        found[key] = _merge(own or {}, value, f"{prefix}{key}.", known, where) if both else value
    return found


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _split(key: str) -> tuple[str, str]:
    parent, dot, last = key.rpartition(".")
    return parent + dot, last


def _at(values: dict, prefix: str) -> Any:
    """Return the mapping at a dotted prefix ("", "augment."), None if it is null or absent."""
    node: Any = values
    for part in prefix.split(".")[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    return node
