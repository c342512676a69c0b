"""`params.yaml`: loading, checking with one-line errors, and the sub-trees that a rule may see."""

from collections.abc import Mapping
from pathlib import Path

from attnprior import config
from attnprior.errors import UserError, nearest, one_line
from attnprior.files import canonical_json
from attnprior.models.checks import (
    validate_fit,
    validate_hand_over,
    validate_model,
    validate_student,
    validate_teacher,
)
from attnprior.models.transfer_checks import check_options, validate_transfer
from attnprior.recipe_keys import check_pretraining, check_recipe
from attnprior.workflow.counts import check_counts
from attnprior.workflow.sources import check_circles, check_source

PARAMS = "params.yaml"
SCHEMA = "workflow/schemas/params.schema.yaml"


def load(root=".") -> dict:
    """Return the checked content of `params.yaml` below `root`.

    Raises:
        UserError: the file is missing, no YAML, or breaks the schema or a cross-reference.
    """
    params = read_yaml(Path(root) / PARAMS)
    validate(params, read_yaml(Path(root) / SCHEMA))
    return params


def read_yaml(path):
    """Return the content of a YAML file.

    Raises:
        UserError: the file is missing or no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=loader)
    except OSError as e:
        raise UserError(
            f"{path}: cannot be read ({e.strerror}); run from the root of an attnprior checkout"
        ) from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: not valid YAML ({one_line(e)})") from e


def validate(params: dict, schema: dict) -> None:
    """Check `params` against the JSON schema, then names and combinations.

    Raises:
        UserError: names the key, the value and what is allowed, in one line.
    """
    _check_schema(params, schema)
    for name in params["models"]:
        where = f"models.{name}"
        validate_model(config.build_model(params["models"][name], where), where)
    for name, values in params["recipes"].items():
        check_recipe(values, f"recipes.{name}")
    for name in params["teachers"]:
        _check_teacher(params, name)
    for name in params["fits"]:
        _check_fit(params, name)
    for name in params["students"]:
        _check_student(params, name)
    check_circles(params)
    for name in params["studies"]:
        _check_study(params, name)
    for name in params["active"]:
        _known(params, "studies", name, "active")
    check_teacher_seeds(params)
    check_counts(params)


def check_study(params: dict, name: str) -> None:
    """Check that `params.yaml` has the study `name`, as given on the command line.

    Raises:
        UserError: it has not.
    """
    known = params["studies"]
    if name not in known:
        raise UserError(
            f"no study {name!r} in {PARAMS}{nearest(name, known)}; known: {', '.join(sorted(known))}"
        )


def settings(params: dict, *keys: str) -> str:
    """Return the sub-trees at the dotted `keys` as one canonical JSON string.

    A rule passes this string and nothing else to its stage. Snakemake compares it as a whole
    (it would compare separate values as an unnamed set), and its keys are DVC's `params:` keys.
    """
    return canonical_json({key: subtree(params, key) for key in keys})


def subtree(params: dict, key: str):
    """Return the value at a dotted key."""
    node = params
    for part in key.split("."):
        node = node[part]
    return node


def _check_schema(params, schema):
    import jsonschema

    if not isinstance(params, dict):
        raise UserError(
            f"{PARAMS}: must be a mapping of sections such as `datasets:`, is {type(params).__name__}"
        )
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(params))
    if errors:
        # A wrong name first, since its content is judged, too; then the deepest.
        worst = max(errors, key=lambda e: (e.validator == "pattern", len(e.absolute_path), e.message))
        raise UserError(f"{PARAMS}: {_explain(worst)}")


def _explain(error) -> str:
    path = ".".join(str(p) for p in error.absolute_path)
    value, rule = error.instance, error.validator_value
    dot = f"{path}." if path else ""
    match error.validator:
        case "additionalProperties":
            allowed = error.schema.get("properties", {})
            unknown = next(k for k in value if k not in allowed)
            return (
                f"unknown key {dot}{unknown}{nearest(str(unknown), allowed)};"
                f" allowed: {', '.join(sorted(allowed))}"
            )
        case "required":
            missing = next(k for k in rule if k not in value)
            return f"missing key {dot}{missing}; add it (nothing has a default)"
        case "enum":
            return f"{path} is {value!r}{nearest(str(value), rule)}; allowed: {', '.join(map(str, rule))}"
        case "type":
            names = rule if isinstance(rule, list) else [rule]
            hint = ""
            if isinstance(value, str) and "e" in value.lower() and _is_number(value):
                hint = f"; write {float(value)!r}, since YAML 1.1 reads {value} as text"
            return f"{path} is {value!r} ({type(value).__name__}), must be {' or '.join(names)}{hint}"
        case "minimum":
            return f"{path} is {value!r}, must be at least {rule}"
        case "maximum":
            return f"{path} is {value!r}, must be at most {rule}"
        case "exclusiveMinimum":
            return f"{path} is {value!r}, must be above {rule}"
        case "exclusiveMaximum":
            return f"{path} is {value!r}, must be below {rule}"
        case "minItems" | "maxItems":
            return f"{path} has {len(value)} entries, must have {error.validator[:3]}. {rule}"
        case "uniqueItems":
            return f"{path} lists an entry twice: {value!r}; remove one"
        case "pattern":
            return f"{dot}{value!r} is no valid name; allowed: a-z, 0-9 and _, beginning with a letter"
    return f"{path}: {one_line(error.message)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _known(params, section, name, where):
    if name not in params[section]:
        known = sorted(params[section])
        raise UserError(
            f"{PARAMS}: {where} is {name!r}, which {section} does not have{nearest(name, known)};"
            f" known: {', '.join(known) or 'none'}"
        )


def _only(values: dict, where: str, kind: str, used: Mapping[str, tuple[str, ...]]) -> None:
    """Check that `values` has exactly the options that its `kind` uses, besides common ones."""
    optional = {k for keys in used.values() for k in keys}
    for key in sorted(optional & set(values)):
        if key not in used[kind]:
            users = ", ".join(k for k, keys in used.items() if key in keys)
            raise UserError(f"{PARAMS}: {where}.{key} is not used by {kind!r} (only by {users}); remove it")
    for key in used[kind]:
        if key not in values:
            raise UserError(f"{PARAMS}: missing key {where}.{key}, needed by {kind!r}")


TEACHER_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "mae": ("recipe", "mask_ratio", "masking", "norm_pix_loss", "decoder"),
    "random": (),
    "student": ("student",),
    "file": ("path", "format"),
}
SOLVER_OPTIONS = {"adam": ("steps", "lr", "norm_every"), "svd": ("signal", "noise", "norm", "value_norm")}
INIT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "random": (),
    "mimetic": ("value",),
    "mimetic_reduced": (),
    "impulse": ("fit",),
    "teacher": ("teacher",),
    "filters": ("kind", "heads"),
}


def _check_teacher(params, name):
    where, values = f"teachers.{name}", params["teachers"][name]
    _only(values, where, values["source"], TEACHER_OPTIONS)
    _known(params, "models", values["model"], f"{where}.model")
    if values["dataset"] is not None:
        _known(params, "datasets", values["dataset"], f"{where}.dataset")
    check_source(params, name)
    if values["source"] != "mae":
        _model(params, values["model"])  # it needs attention
        return
    _known(params, "recipes", values["recipe"], f"{where}.recipe")
    check_pretraining(params["recipes"][values["recipe"]], f"recipes.{values['recipe']}")
    validate_teacher(
        config.build(config.Teacher, values, where),
        _model(params, values["model"]),
        where,
    )


def _check_fit(params, name):
    where, values = f"fits.{name}", params["fits"][name]
    _only(values, where, values["solver"], SOLVER_OPTIONS)
    _known(params, "models", values["model"], f"{where}.model")
    validate_fit(config.build(config.Fit, values, where), _model(params, values["model"]), where)


def _model(params, name) -> config.Model:
    return config.build(config.Model, params["models"][name], f"models.{name}")


def _check_student(params, name):
    where, values = f"students.{name}", params["students"][name]
    init, transfer = values["init"], values["transfer"]
    _only(init, f"{where}.init", init["source"], INIT_OPTIONS)
    check_options(config.build(config.Transfer, transfer, f"{where}.transfer"), where)
    _known(params, "models", values["model"], f"{where}.model")
    _known(params, "recipes", values["recipe"], f"{where}.recipe")
    student = config.build(config.Student, values, where)
    recipe = config.recipe_of(student, params["recipes"][values["recipe"]], where)
    if "fit" in init:
        _known(params, "fits", init["fit"], f"{where}.init.fit")
        made_for = params["fits"][init["fit"]]["model"]
        if made_for != values["model"]:
            raise UserError(
                f"{PARAMS}: {where}.init.fit is {init['fit']!r}, made for model {made_for!r};"
                f" it must be made for {values['model']!r}, the student's"
            )
    for part, option in (("init", init), ("transfer", transfer)):
        if "teacher" in option:
            _known(params, "teachers", option["teacher"], f"{where}.{part}.teacher")
    model = config.build_model(params["models"][values["model"]], f"models.{values['model']}")
    validate_student(student, model, recipe, where)
    if "teacher" in init:
        theirs = _model(params, params["teachers"][init["teacher"]]["model"])
        validate_hand_over(theirs, _model(params, values["model"]), init["teacher"], where)
    if "teacher" in transfer:
        validate_transfer(
            config.build(config.Transfer, transfer, f"{where}.transfer"),
            _model(params, values["model"]),
            _model(params, params["teachers"][transfer["teacher"]]["model"]),
            where,
        )


def _check_study(params, name):
    where, values = f"studies.{name}", params["studies"][name]
    for dataset in values["datasets"]:
        _known(params, "datasets", dataset, f"{where}.datasets")
    for panel_name, panel in values["panels"].items():
        panel_where = f"{where}.panels.{panel_name}"
        for role in ("arms", "controls"):
            for student in panel[role]:
                _known(params, "students", student, f"{panel_where}.{role}")
        if panel["baseline"] not in panel["arms"]:
            raise UserError(
                f"{PARAMS}: {panel_where}.baseline is {panel['baseline']!r}, must be one of its arms:"
                f" {', '.join(panel['arms'])}"
            )
        twice = set(panel["arms"]) & set(panel["controls"])
        if twice:
            raise UserError(
                f"{PARAMS}: {panel_where}.controls lists {sorted(twice)[0]!r}, which is an arm; remove one"
            )


def check_teacher_seeds(params):
    """Check that active studies agree on the teacher seed of an arm they share: it has one directory.

    Raises:
        UserError: they do not.
    """
    owner: dict[tuple[str, str], str] = {}
    for study in params["active"]:
        values = params["studies"][study]
        for panel in values["panels"].values():
            for student in [*panel["arms"], *panel["controls"]]:
                for dataset in values["datasets"]:
                    other = owner.setdefault((dataset, student), study)
                    theirs = params["studies"][other]["teacher_seed"]
                    if theirs != values["teacher_seed"]:
                        raise UserError(
                            f"{PARAMS}: studies.{study}.teacher_seed is {values['teacher_seed']}, but"
                            f" {theirs} in study {other!r}, which shares the arm {dataset}/{student};"
                            " make them equal or give one study its own student"
                        )
