"""What the settings ask for: arms, and the files of every job.

Both engines take their work from here: `workflow/rules` through `targets` and the input functions,
`dvc.yaml` through `workflow/arms.yaml` (dvc_arms.py).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from attnprior.data.rules import source_files
from attnprior.ranks import wanted
from attnprior.report.names import TITLES
from attnprior.workflow.studyfiles import file_of, sources

TEACHER_FILES = ("weights.safetensors", "metrics.json", "history.csv", "run.json")
FIT_FILES = ("fit.safetensors", "metrics.json", "history.csv", "run.json")
TRAIN_FILES = ("weights.safetensors", "history.csv", "predictions.safetensors", "run.json")
EVALUATE_FILES = ("metrics.json", "evaluate.run.json")
RUN_FILES = TRAIN_FILES + EVALUATE_FILES
TABLE_FILES = (
    "results.csv",
    "comparisons.csv",
    "table.csv",
    "table.md",
    "table.tex",
    "metrics.json",
    "run.json",
)
MAPS_FILES = ("maps.safetensors", "maps.run.json")
FIGURES = tuple(TITLES)
FIGURE_FILES = (
    *(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")),
    "captions.json",
    "val_top1.csv",
    "val_loss.csv",
    "labels.csv",
    "confusion.csv",
    "redundancy.csv",
)
DRAW_FILES = (*(f"figures/{name}" for name in FIGURE_FILES), "draw.run.json")
REPORT_FILES = ("report.html", "report.run.json")
STUDY_FILES = TABLE_FILES + MAPS_FILES + DRAW_FILES + REPORT_FILES
PAPER_FILES = ("paper.csv", "paper.md", "paper.tex", "paper.run.json")  # where published values are named
STUDY_RULES = ("compare", "extract_maps", "draw", "report")


@dataclass(frozen=True)
class Arm:
    """A student on a data set, with the seeds that the given studies ask for."""

    dataset: str
    student: str
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.dataset}-{self.student}"

    @property
    def directory(self) -> str:
        return f"runs/{self.dataset}/{self.student}"


def teacher_of(params: dict, student: str, part: str) -> str | None:
    """Return the name of the teacher of a student's first weights ("init") or of its "transfer", if any."""
    return params["students"][student][part].get("teacher")


def teachers_of(params: dict, student: str) -> list[str]:
    """Return the names of a student's teachers, each once."""
    found = dict.fromkeys(teacher_of(params, student, part) for part in ("init", "transfer"))
    return [name for name in found if name is not None]


def made_on(params: dict, teacher: str, dataset: str) -> str:
    """Return the data set that a teacher of an arm on `dataset` is made on."""
    return params["teachers"][teacher].get("dataset") or dataset


def fit_of(params: dict, student: str) -> str | None:
    """Return the name of a student's impulse fit, if it has one."""
    return params["students"][student]["init"].get("fit")


def panels(params: dict, study: str) -> list[tuple[str, dict]]:
    """Return the panels of one study by name.

    Not in the order of `params.yaml`: stages get their settings with sorted keys, and the order of keys
    must not decide which arm comes first.
    """
    return sorted(params["studies"][study]["panels"].items())


def study_arms(params: dict, study: str) -> list[Arm]:
    """Return the arms of one study in the order of its panels, controls after arms, each once."""
    values = params["studies"][study]
    students = dict.fromkeys(
        s for _, panel in panels(params, study) for s in [*panel["arms"], *panel["controls"]]
    )
    return [Arm(d, s, tuple(values["seeds"])) for d in values["datasets"] for s in students]


def all_arms(params: dict, studies=None) -> list[Arm]:
    """Return the arms of the named studies (the active ones by default), shared ones merged.

    Students that are the teachers of others come with them, whether a study shows them or not.
    """
    merged: dict[tuple[str, str], dict[int, None]] = {}
    for study in studies or params["active"]:
        for arm in study_arms(params, study):
            merged.setdefault((arm.dataset, arm.student), {}).update(dict.fromkeys(arm.seeds))
    todo = [(*arm, seed) for arm, seeds in merged.items() for seed in seeds]
    while todo:
        dataset, student, seed = todo.pop()
        for teacher in teachers_of(params, student):
            if behind := params["teachers"][teacher].get("student"):
                k = source_seed(params, dataset, student, seed, studies)
                known = merged.setdefault((made_on(params, teacher, dataset), behind), {})
                if k not in known:
                    known[k] = None
                    todo.append((made_on(params, teacher, dataset), behind, k))
    return [Arm(d, s, tuple(sorted(seeds))) for (d, s), seeds in merged.items()]


def source_seed(params: dict, dataset: str, student: str, seed: int, studies=None) -> int:
    """Return the seed of the teacher and fit that seed `seed` of an arm uses.

    The first study that has the arm decides: of the given ones, then of the active ones, then of all. An
    arm of no study, a teacher's, has the seeds of its own.
    """
    for study in [*(studies or ()), *params["active"], *params["studies"]]:
        if _has_arm(params["studies"][study], dataset, student):
            fixed = params["studies"][study]["teacher_seed"]
            return seed if fixed is None else fixed
    return seed


def _has_arm(study: dict, dataset: str, student: str) -> bool:
    """Return whether a study has an arm; asked once per job, so that nothing may be built for it."""
    return dataset in study["datasets"] and any(
        student in panel["arms"] or student in panel["controls"] for panel in study["panels"].values()
    )


def teacher_seeds(params: dict, studies=None) -> dict[tuple[str, str], list[int]]:
    """Return {(dataset, teacher): seeds} that the arms need; the data set is that of the teacher."""
    return _sources(
        params,
        lambda a: [(made_on(params, t, a.dataset), t) for t in teachers_of(params, a.student)],
        studies,
    )


def fit_seeds(params: dict, studies=None) -> dict[tuple[str], list[int]]:
    """Return {(fit,): seeds} that the arms need."""
    return _sources(params, lambda a: [(f,) for f in [fit_of(params, a.student)] if f], studies)


def _sources(params, keys_of, studies):
    found: dict[tuple, set[int]] = {}
    for arm in all_arms(params, studies):
        seeds = {source_seed(params, arm.dataset, arm.student, k, studies) for k in arm.seeds}
        for key in keys_of(arm):
            found.setdefault(key, set()).update(seeds)
    return {k: sorted(v) for k, v in found.items()}


def data_file(dataset: str) -> str:
    return f"data/{dataset}.safetensors"


def data_files(dataset: str) -> list[str]:
    return [data_file(dataset), f"data/{dataset}.run.json"]


def dataset_source(params: dict, dataset: str) -> str:
    """Return the local archive, or the folder with the archives, that a data set is made of.

    A data set without one names the rules that decide that: a DVC template cannot leave out a dependency.
    """
    values = params["datasets"][dataset]
    files = source_files(values)
    if not files:
        return "src/attnprior/data/rules.py"
    return files[0] if len(files) == 1 else os.path.dirname(files[0])


def seed_files(directory: str, seeds, names) -> list[str]:
    """Return `directory`/seed{k}/name for every seed and name."""
    return [f"{directory}/seed{k}/{name}" for k in seeds for name in names]


def teacher_file(params: dict, dataset: str, student: str, seed: int, part: str) -> list[str]:
    """Return the teacher's weights that a training job reads for "init" or for "transfer", or nothing."""
    teacher = teacher_of(params, student, part)
    if teacher is None:
        return []
    k = source_seed(params, dataset, student, seed)
    return [f"{teacher_directory(params, teacher, dataset)}/seed{k}/weights.safetensors"]


def teacher_weights(params: dict, dataset: str, student: str, seed: int) -> list[str]:
    """Return the weights of all teachers that a training job reads, each once."""
    files = [teacher_file(params, dataset, student, seed, part) for part in ("init", "transfer")]
    return list(dict.fromkeys(f for found in files for f in found))


def teacher_directory(params: dict, teacher: str, dataset: str) -> str:
    """Return the folder of a teacher of an arm on `dataset`."""
    return f"teachers/{made_on(params, teacher, dataset)}/{teacher}"


def teacher_source(params: dict, dataset: str, teacher: str, seed: int) -> list[str]:
    """Return the file that a teacher of a data set is made of: a student's weights, a local one, or none."""
    values = params["teachers"][teacher]
    if student := values.get("student"):
        return [f"runs/{dataset}/{student}/seed{seed}/weights.safetensors"]
    return [values["path"]] if "path" in values else []


def local_files(params: dict, studies=None) -> list[str]:
    """Return the files, made by no job, that teachers of the arms are read from."""
    paths = (params["teachers"][teacher].get("path") for _, teacher in teacher_seeds(params, studies))
    return list(dict.fromkeys(p for p in paths if p))


def fit_file(params: dict, dataset: str, student: str, seed: int) -> list[str]:
    """Return the impulse fit that a training job reads, or nothing."""
    fit = fit_of(params, student)
    k = source_seed(params, dataset, student, seed)
    return [f"fits/{fit}/seed{k}/fit.safetensors"] if fit else []


def arm_sources(params: dict, arm: Arm) -> list[str]:
    """Return the teachers' weights and fits that the seeds of an arm read, in their order."""
    dataset, student = arm.dataset, arm.student
    files = [
        (teacher_weights(params, dataset, student, k), fit_file(params, dataset, student, k))
        for k in arm.seeds
    ]
    return list(dict.fromkeys(f for teacher, fit in files for f in [*teacher, *fit]))


def study_runs(params: dict, study: str, name: str) -> list[str]:
    """Return the file `name` of every run of a study."""
    return [f for arm in study_arms(params, study) for f in seed_files(arm.directory, arm.seeds, [name])]


def study_impulse(params: dict, study: str) -> tuple[Arm, str] | None:
    """Return the arm whose maps the figures of a study show, and its fit; None without such an arm.

    It is the first that starts from an impulse fit.
    """
    for arm in study_arms(params, study):
        if fit := fit_of(params, arm.student):
            return arm, fit
    return None


def impulse_files(params: dict, study: str) -> tuple[list[str], list[str]]:
    """Return the fit and the student's weights whose maps the figures of a study show, or nothing."""
    found = study_impulse(params, study)
    if found is None:
        return [], []
    arm, seed = found[0], found[0].seeds[0]
    weights = seed_files(arm.directory, [seed], ["weights.safetensors"])
    return fit_file(params, arm.dataset, arm.student, seed), weights


def datasets_of(params: dict, studies=None) -> list[str]:
    """Return the data sets of the arms and of their teachers."""
    arms = [a.dataset for a in all_arms(params, studies)]
    return list(dict.fromkeys([*arms, *(d for d, _ in teacher_seeds(params, studies))]))


def study_rules(params: dict, study: str) -> list[str]:
    """Return the rules that make the results of a study."""
    return [*STUDY_RULES, *(["against_paper"] if "paper" in params["studies"][study] else [])]


def study_files(params: dict, study: str) -> list[str]:
    """Return the files below `results/{study}`."""
    return [*STUDY_FILES, *(PAPER_FILES if "paper" in params["studies"][study] else ())]


def paper_table(params: dict, study: str) -> list[str]:
    """Return the table of published values that the page of a study shows, or nothing."""
    return [f"results/{study}/paper.csv"] if "paper" in params["studies"][study] else []


def targets(params: dict, studies=None) -> list[str]:
    """Return every artifact of the named studies (the active ones by default).

    All of them, not only the last: Snakemake does not remake a missing intermediate of an existing target.
    """
    studies = studies or params["active"]
    arms = all_arms(params, studies)
    files = [f for d in datasets_of(params, studies) for f in data_files(d)]
    for (dataset, teacher), seeds in teacher_seeds(params, studies).items():
        files += seed_files(f"teachers/{dataset}/{teacher}", seeds, TEACHER_FILES)
    for (fit,), seeds in fit_seeds(params, studies).items():
        files += seed_files(f"fits/{fit}", seeds, FIT_FILES)
    for arm in arms:
        files += seed_files(arm.directory, arm.seeds, RUN_FILES)
    for study in studies:
        files += [f"results/{study}/{name}" for name in study_files(params, study)]
    return files


def teacher_keys(params: dict, teacher: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that a teacher depends on."""
    values = params["teachers"][teacher]
    keys = ["compute", f"teachers.{teacher}", f"models.{values['model']}"]
    return keys + ([f"recipes.{values['recipe']}"] if "recipe" in values else [])


def processes(params: dict, keys: Iterable[str]) -> int:
    """Return how many processes share a job that depends on the dotted `keys` of `params.yaml`."""
    own = {}
    for key in keys:
        section, _, name = key.partition(".")
        if section in ("students", "recipes"):
            own[key] = params[section][name]
    return wanted(own)


def fit_keys(params: dict, fit: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that an impulse fit depends on."""
    return ["compute", f"fits.{fit}", f"models.{params['fits'][fit]['model']}"]


def student_keys(params: dict, student: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that the training of a student depends on."""
    values = params["students"][student]
    return ["compute", f"students.{student}", f"models.{values['model']}", f"recipes.{values['recipe']}"]


def study_keys(params: dict, study: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that the page of a study depends on."""
    students = dict.fromkeys(a.student for a in study_arms(params, study))
    return [f"studies.{study}", *(f"students.{s}" for s in students)]


def figure_keys(params: dict, study: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that the figures of a study depend on.

    Besides those of the study, what says how large filters are: impulse fits, and models of ConvMixers.
    """
    found: dict[str, None] = {}
    for arm in study_arms(params, study):
        values = params["students"][arm.student]
        if fit := values["init"].get("fit"):
            found[f"fits.{fit}"] = None
        if values["init"]["source"] == "filters":
            found[f"models.{values['model']}"] = None
    return [*study_keys(params, study), *found]


def tracked(params: dict, keys: Iterable[str]) -> dict[str, list[str]]:
    """Return {file: keys} that DVC tracks for the dotted `keys` of a job, without doubles."""
    found: dict[str, dict[str, None]] = {}
    for key in keys:
        for source in sources(params, key):
            found.setdefault(file_of(params, source), {})[source] = None
    return {path: list(own) for path, own in found.items()}
