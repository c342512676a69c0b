"""Another valid value for every leaf key of `params.yaml`."""

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from attnprior import published
from attnprior.errors import UserError
from attnprior.workflow import params as checks
from attnprior.workflow import studyfiles
from attnprior.workflow.schema import check_schema

REGISTRY = {"model": "models", "recipe": "recipes", "teacher": "teachers", "fit": "fits"}


def text(params: dict) -> str:
    """Return settings as the text of a file."""
    return yaml.dump(params, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def read(root=".") -> dict:
    """Return the settings of all files, as they stand there: scaled studies are not written out."""
    params = checks.read_yaml(Path(root, checks.PARAMS))
    return studyfiles.merge(params, {p: checks.read_yaml(Path(root, p)) for p in studyfiles.names(root)})


def texts(params: dict) -> dict[str, str]:
    """Return {path: text} of the files of settings."""
    shared = studyfiles.part(params, {checks.PARAMS})
    found = {checks.PARAMS: text(shared)}
    for path in dict.fromkeys(params.get(studyfiles.FILES, {}).values()):
        own = studyfiles.part(params, {path})
        found[path] = text({k: own[k] for k in studyfiles.REGISTRIES if own[k]})
    return found


def without_student(params: dict) -> dict:
    """Return settings in which the study has lost an arm, a control and a panel."""
    changed = copy.deepcopy(params)
    panel = changed["studies"]["digits"]["panels"]["model_i"]
    panel["arms"].remove("copy")
    panel["controls"] = []
    del changed["studies"]["digits"]["panels"]["vit"]
    return changed


def other_order(params):
    """Return settings with the keys of every mapping in reverse order."""
    return {k: other_order(params[k]) for k in reversed(params)} if isinstance(params, dict) else params


# What must leave the tables; test_matrix.py names the paths that go with it.
DROPS: dict[str, Callable[[dict], dict]] = {
    "a seed": lambda p: put(p, "studies.probe.seeds", p["studies"]["probe"]["seeds"][:1]),
    "students": without_student,
    "a data set": lambda p: put(p, "studies.digits.datasets", ["spare"]),
}

# Other text with the same meaning.
TEXTS: dict[str, Callable[[str], str]] = {
    "comments": lambda t: "# first\n" + "\n".join(f"{line}  # why" for line in t.splitlines()) + "\n\n",
    "key order": lambda t: text(other_order(yaml.safe_load(t))),
    "flow style": lambda t: yaml.safe_dump(yaml.safe_load(t), default_flow_style=True, width=100),
    "indents and line breaks": lambda t: yaml.safe_dump(yaml.safe_load(t), indent=6, width=20),
    "quotes": lambda t: yaml.safe_dump(yaml.safe_load(t), default_style='"'),
    "unchanged": lambda t: t,
}


def leaves(node: Any, key: str = "") -> Iterator[str]:
    """Yield the dotted key of everything that is no mapping, or an empty one."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else name)
    elif key.split(".")[0] != studyfiles.FILES:
        yield key


def put(params: dict, key: str, value: Any) -> dict:
    """Return a copy of `params` with another value at a dotted key; it shares what stays."""
    first, _, rest = key.partition(".")
    return {**params, first: put(params[first], rest, value) if rest else copy.deepcopy(value)}


def mutated(params: dict, schema: dict, key: str) -> dict | None:
    """Return valid settings that differ in the leaf `key`, or None if it can take no other value.

    Where the value alone cannot change (a method and its options), what belongs to it changes as well.
    """
    alone = ({key: value} for value in _values(params, schema, key))
    for changes in itertools.chain(alone, _together(params, key)):
        changed = params
        for changed_key, value in changes.items():
            changed = put(changed, changed_key, value)
        if checks.subtree(changed, key) != checks.subtree(params, key) and _valid(changed, params, schema):
            return changed
    return None


def _valid(changed: dict, params: dict, schema: dict) -> bool:
    """Return whether changed settings are valid, if `params` are; the schema judges what is not shared."""
    own = {
        section: {n: v for n, v in values.items() if v is not params[section].get(n)}
        if section in studyfiles.REGISTRIES
        else values
        for section, values in changed.items()
        if section != studyfiles.FILES
    }
    try:
        check_schema(own, schema, changed)
        checks.validate(changed, {})
    except UserError:
        return False
    return True


def _values(params: dict, schema: dict, key: str) -> Iterator[Any]:
    value, last = checks.subtree(params, key), key.rpartition(".")[2]
    rule = _rule(schema, key)
    match value:
        case bool():
            yield not value
        case int():
            yield from (n for n in (value + 1, value - 1, 2 * value, value // 2) if n != value)
        case float():
            yield from (x for x in (value * 0.5, value * 1.5, value + 0.125) if x != value)
        case None:
            yield from (1, 1000, 1400)  # a seed; training images of a data set
        case str() if ".paper.values." in key:
            yield next(k for k in sorted(published.keys()) if k.endswith("/alpha0.0"))
        case str() if last in ("of", "scale"):
            yield from (v for v in params["studies" if last == "of" else "scales"] if v != value)
        case str() if "enum" in rule:
            yield from (v for v in rule["enum"] if v != value)
        case str() if last in REGISTRY:
            yield from (v for v in params[REGISTRY[last]] if v != value)
        case str() if last == "baseline":
            yield from (v for v in checks.subtree(params, key.replace("baseline", "arms")) if v != value)
        case str():
            yield f"{value} (changed)"
        case {}:
            yield {"lr": 0.0005}
        case [*others, (int() | float()) as number]:
            yield [*others, number * 0.5 if isinstance(number, float) else number + 10]
        case [str(), *_] if last == "stated":
            yield []
        case []:
            yield ["spare"]
            yield ["mimetic"]
        case [*others, _]:
            if others:
                yield others
            yield [*value, "spare"]
            yield [*value, next(s for s in params["students"] if s not in value)]


def _together(params: dict, key: str) -> Iterator[dict[str, Any]]:
    """Yield changes of several keys, for keys that are bound to each other."""
    parent, _, last = key.rpartition(".")
    section, name = key.split(".")[:2] if parent else (key, "")
    own = checks.subtree(params, f"{section}.{name}") if name else {}
    match section, last:
        case "students", "source" if parent.endswith(".init"):
            yield {parent: {last: "random"}}
            yield {parent: {last: "mimetic", "value": False}}
        case "students", "method":
            yield {parent: {last: "none"}}
            for teacher in params["teachers"]:
                features = {"teacher": teacher, "layers": {"first": 1}, "weight": 1.0}
                yield {parent: {last: "distil_features", **features}}
                yield {parent: {last: "distil_features", **features, "class_token": True}}
        case "students", "heads":
            yield {key: {"first": 1}}
        case "students", "model":
            plain = {"init": {"source": "random"}, "transfer": {"method": "none"}}
            for parts, other in itertools.product((["init"], ["init", "transfer"]), params["models"]):
                yield {key: other, **{f"students.{name}.{p}": plain[p] for p in parts}}
        case "students", "fit" | "teacher":
            others = params[REGISTRY[last]].items()
            now = checks.subtree(params, key)
            for other, values in others:
                if other != now:
                    yield {f"students.{name}.transfer": _moved(params, name, values["model"]), key: other} | {
                        f"students.{name}.model": values["model"]
                    }
        case "teachers", "source":
            mae = next(t for t in params["teachers"].values() if t["source"] == "mae")
            kept = {k: own[k] for k in ("model", "dataset", "probe")}
            yield {parent: {**kept, last: "random"} if own[last] == "mae" else {**mae, **kept}}
        case "teachers", "dataset":
            yield from ({key: name} for name in params["datasets"] if name != own[last])
        case "fits", "solver":
            kept = {k: own[k] for k in ("model", "filter_size", "offsets", "logit_scale", "layers", "inputs")}
            svd = {"signal": 1.0, "noise": 0.1, "norm": 1.0, "value_norm": 0.0}
            adam = {"steps": 100, "lr": 0.001, "norm_every": 0}
            yield {
                parent: {**kept, last: "svd", **svd}
                if own[last] == "adam"
                else {**kept, last: "adam", **adam}
            }
        case "fits", "filter_size":
            yield from ({key: n, f"{parent}.offsets": "random"} for n in (own[last] + 2, own[last] - 2))
        case "teachers" | "fits", "model":
            # Its students get that model, too.
            for parts, other in itertools.product((["init"], ["init", "transfer"]), params["models"]):
                students = _users(params, name, parts)
                moved = {f"students.{s}.transfer": _moved(params, s, other) for s in students}
                yield {key: other, **moved, **{f"students.{s}.model": other for s in students}}
        case "students", "freeze":
            yield {key: "spatial", f"{parent}.transfer": {"method": "none"}}
        case "recipes", "accumulate":
            yield {key: 2, f"{parent}.processes": 1}
        case "recipes", "min_lr" | "warmup_lr":
            yield {key: own["lr"] / 2}
        case "recipes", "warmup_epochs":
            yield {key: 1, f"{parent}.warmup_lr": 0.0}
        case "recipes", _ if parent.endswith(".augment"):
            students = [s for s, v in params["students"].items() if v["recipe"] == name and v["overrides"]]
            augment = {parent: _augmented(own["augment"], last)}
            yield augment
            yield augment | {f"students.{s}.overrides": {} for s in students}
        case "studies", "datasets":
            yield {
                key: [*own[last], "spare"],
                "datasets.spare": {**params["datasets"][own[last][0]], "split_seed": 7},
            }
        case "models", "kind":
            yield {parent: params["models"]["model_i" if own[last] == "convmixer" else "convmixer"]}
        case "models", "attention":
            free = {"pos_embed": "none", "pos_at": "none", "alpha": 1.0, "cls_token": False, "pool": "mean"}
            yield {parent: {**own, last: "free", **free}}
        case "models", "cls_token":
            students = [s for s, v in params["students"].items() if v["model"] == name]
            moved = put(params, key, not own[last])
            yield {key: not own[last], f"{parent}.pool": "mean"} | {
                f"students.{s}.transfer": _moved(moved, s, name) for s in students
            }
        case "models", "kernel_size":
            yield {key: own[last] + 2}
        case "models", "logit_scale":
            yield from ({key: f["logit_scale"]} for f in params["fits"].values() if f["model"] == name)
        case "models", "alpha":
            yield {key: 0.5, f"{parent}.pos_at": "qk"}
        case "models", "pos_at":
            # Fits need a model with qk: they and their students go to another one.
            for other in params["models"]:
                moved = {f"fits.{f}.model": other for f, v in params["fits"].items() if v["model"] == name}
                students = {s for f in moved for s in _users(params, f.split(".")[1], ["init"])}
                moved |= {f"students.{s}.model": other for s in students}
                yield {key: "input", f"{parent}.alpha": 1.0, **moved}


def _augmented(augment: dict, key: str) -> dict:
    """Return augmentations in which `key`, so far without effect or a padded crop, is another one."""
    window = {"scale": [0.5, 1.0], "ratio": [0.75, 1.25]}
    other: dict[str, dict] = {
        "crop": {"crop": "resized", "interpolation": "bilinear", **window},
        "randaugment": {
            "randaugment": {"style": "torchvision", "ops": 2, "magnitude": 14, "before_crop": True}
        },
        "color_jitter": {
            "color_jitter": dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0.25)
        },
        "erasing": {"erasing": {"probability": 0.25, "value": "zero", **window}},
        "mixup": {"mixup": 0.5, "mix_probability": 1.0},
        "cutmix": {"cutmix": 0.5, "mix_probability": 1.0},
    }
    kept = {k: v for k, v in augment.items() if k != "padding" or key != "crop"}
    return kept | other.get(key, {})


def _moved(params: dict, student: str, model: str) -> dict:
    """Return a student's transfer for another model: with the key of the class token if that has one."""
    transfer = {k: v for k, v in params["students"][student]["transfer"].items() if k != "class_token"}
    has = params["models"][model].get("cls_token") and transfer["method"] != "none"
    return transfer | ({"class_token": True} if has else {})


def _users(params: dict, source: str, parts: list[str]) -> list[str]:
    """Return the students that use a fit or teacher in `parts` of their settings."""
    return [s for s, v in params["students"].items() if any(source in v[part].values() for part in parts)]


def _rule(schema: dict, key: str) -> dict:
    """Return the schema of the value at a dotted key."""
    node = schema
    for part in key.split("."):
        node = _resolved(schema, node)
        if "if" in node:  # a study: written out, or another at a scale
            node = node["then"] if part in ("of", "scale") else node["else"]
        kinds = [_resolved(schema, branch["then"]) for branch in node.get("allOf", [])]  # of models
        known = [n["properties"][part] for n in (node, *kinds) if part in n.get("properties", {})]
        node = known[0] if known else node["additionalProperties"]
    return _resolved(schema, node)


def _resolved(schema: dict, node: dict) -> dict:
    while "$ref" in node:
        found = schema
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node
