"""`params.yaml` and `studies/*.yaml`: loading, checking with one-line errors, and what a rule may see."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from attnprior import config, published
from attnprior.errors import UserError, nearest
from attnprior.files import canonical_json
from attnprior.models.checks import (
    validate_fit,
    validate_hand_over,
    validate_model,
    validate_teacher,
)
from attnprior.models.student_checks import validate_student
from attnprior.models.transfer_checks import check_freeze, check_options, validate_transfer
from attnprior.recipe_keys import check_pretraining, check_recipe
from attnprior.workflow import graph, scaled, studyfiles
from attnprior.workflow.counts import check_counts
from attnprior.workflow.schema import check_schema
from attnprior.workflow.sources import check_circles, check_source
from attnprior.workflow.studyfiles import PARAMS, file_of, of_file, read_yaml

SCHEMA = "workflow/schemas/params.schema.yaml"


def load(root=".", studies: Iterable[str] = (), *, every: bool = False) -> dict:
    """Return the settings of all files below `root` as one mapping, scaled studies written out.

    Checked are `params.yaml` and the files of the active studies and of `studies`, or all files with `every`:
    the others only for their names, since hundreds of entries that nothing uses must not slow down a command.

    Raises:
        UserError: a file is missing, no YAML, or breaks the schema or a cross-reference.
    """
    params = read_yaml(Path(root) / PARAMS)
    schema = read_yaml(Path(root) / SCHEMA)
    paths = studyfiles.names(root)
    if not paths or not isinstance(params, dict):
        return validate(params, schema)
    texts = {p: studyfiles.read_text(Path(root) / p) for p in paths}
    for path, text in texts.items():
        studyfiles.check_sections(path, text)
    merged = studyfiles.merge(params, {p: studyfiles.parsed(p, text) for p, text in texts.items()})
    active = params["active"] if isinstance(params.get("active"), list) else []
    files = {PARAMS, *paths} if every else studyfiles.reachable(merged, [*active, *studies])
    for path in sorted(files - {PARAMS}):
        studyfiles.check_plain(path, texts[path])
    return validate(merged, schema, files)


def validate(params: dict, schema: dict, files: set[str] | None = None) -> dict:
    """Check what stands in `files` (all if None): the JSON schema, then names and combinations.

    Returns the settings with scaled studies written out.

    Raises:
        UserError: names the file, the key, the value and what is allowed, in one line.
    """
    part = studyfiles.part(params, files) if isinstance(params, dict) else params
    check_schema(part, schema, params)
    params = scaled.expand(params, files)
    for section, check in (
        ("models", _check_model),
        ("recipes", lambda params, name: check_recipe(params["recipes"][name], f"recipes.{name}")),
        ("teachers", _check_teacher),
        ("fits", _check_fit),
        ("students", _check_student),
        ("studies", _check_study),
    ):
        for name in part[section]:
            with of_file(file_of(params, f"{section}.{name}")):
                check(params, name)
    check_circles(params)
    for name in params["active"]:
        _known(params, "studies", name, "active")
    check_teacher_seeds(params)
    used = {name: params["studies"][name] for name in part["studies"]}
    names = dict.fromkeys([*part["datasets"], *graph.datasets_of(params, list(used))])
    check_counts({**params, "datasets": {n: params["datasets"][n] for n in names}, "studies": used})
    return params


def check_study(params: dict, name: str) -> None:
    """Check that `params.yaml` has the study `name`, as given on the command line.

    Raises:
        UserError: it has not.
    """
    known = params["studies"]
    if name not in known:
        shown = ", ".join(sorted(known)) if len(known) <= 8 else "see `attnprior study list`"
        raise UserError(f"no study {name!r} in {_files(params)}{nearest(name, known)}; known: {shown}")


def _files(params: dict) -> str:
    return f"{PARAMS} or {studyfiles.FOLDER}/*.yaml" if params.get(studyfiles.FILES) else PARAMS


def settings(params: dict, *keys: str) -> str:
    """Return the sub-trees at the dotted `keys` as one canonical JSON string.

    A rule passes this string and nothing else to its stage. Snakemake compares it as a whole
    (it would compare separate values as an unnamed set), and its keys are DVC's `params:` keys. With an entry
    of a scaled study goes what it is derived from, which is what DVC sees.
    """
    behind = (source for key in keys for source in studyfiles.sources(params, key))
    return canonical_json({key: subtree(params, key) for key in (*keys, *behind)})


def subtree(params: dict, key: str):
    """Return the value at a dotted key."""
    node = params
    for part in key.split("."):
        node = node[part]
    return node


def _known(params, section, name, where):
    if name not in params[section]:
        raise UserError(
            f"{PARAMS}: {where} is {name!r}, which {section} does not have{nearest(name, params[section])};"
            f" known: {studyfiles.known(params, section)}"
        )
    if where == "active":
        return
    own, other = (studyfiles.file_behind(params, key) for key in (where, f"{section}.{name}"))
    if other not in (own, PARAMS) and studyfiles.has_studies(params, other):
        raise UserError(
            f"{PARAMS}: {where} is {name!r}, which stands in {other}; it may stand in"
            f" {', '.join(dict.fromkeys([own, PARAMS]))} or a file without studies"
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


def _check_model(params, name):
    where = f"models.{name}"
    validate_model(config.build_model(params["models"][name], where), where)


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
        check_freeze(student.freeze, student.transfer, _model(params, values["model"]), where)


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
    if "paper" in values:
        _check_paper(params, where, values)


def _check_paper(params, where, study):
    """Check that published values are known, and stand beside arms of the study."""
    members = {s for p in study["panels"].values() for s in [*p["arms"], *p["controls"]]}
    beside = study["paper"]["values"]
    for dataset, students in beside.items():
        for name, known in ((dataset, set(study["datasets"])), *((s, members) for s in students)):
            if name not in known:
                raise UserError(
                    f"{PARAMS}: {where}.paper.values has {name!r}, which the study does not"
                    f"{nearest(name, known)}; known: {', '.join(sorted(known))}"
                )
    published_keys = published.keys()
    for key in (*(k for students in beside.values() for k in students.values()), *study["paper"]["stated"]):
        if key not in published_keys:
            raise UserError(
                f"{PARAMS}: {where}.paper: {key!r} is no published value{nearest(key, published_keys)};"
                " see src/attnprior/published"
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
