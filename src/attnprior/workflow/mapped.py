"""Which networks the stage `extract_maps` of a study looks into, and what it reads for that."""

from attnprior.analysis.saved_maps import MOST_ARMS, MOST_TEACHERS
from attnprior.workflow import graph


def mapped_arms(params: dict, study: str) -> list[graph.Arm]:
    """Return the arms whose attention the figures of a study show: the first of each data set."""
    arms, datasets = graph.study_arms(params, study), params["studies"][study]["datasets"]
    share = max(1, MOST_ARMS // len(datasets))
    return [a for d in datasets for a in [a for a in arms if a.dataset == d][:share]][:MOST_ARMS]


def rebuilt_teachers(params: dict, study: str) -> list[tuple[str, str, str]]:
    """Return (data set, teacher, weights) of the masked autoencoders whose reconstructions a study shows."""
    found = {}
    for arm in graph.study_arms(params, study):
        for part in ("init", "transfer"):
            teacher = graph.teacher_of(params, arm.student, part)
            if teacher is not None and params["teachers"][teacher]["source"] == "mae":
                (path,) = graph.teacher_file(params, arm.dataset, arm.student, arm.seeds[0], part)
                found[path] = (graph.made_on(params, teacher, arm.dataset), teacher, path)
    return list(found.values())[:MOST_TEACHERS]


def map_files(params: dict, study: str) -> tuple[list[str], list[str]]:
    """Return the data files and the weights (students, then teachers) that the maps of a study come from."""
    arms = mapped_arms(params, study)
    students = [f for a in arms for f in graph.seed_files(a.directory, a.seeds[:1], ["weights.safetensors"])]
    teachers = [f for a in arms for f in graph.teacher_weights(params, a.dataset, a.student, a.seeds[0])]
    rebuilt = rebuilt_teachers(params, study)
    behind = [graph.made_on(params, t, a.dataset) for a in arms for t in graph.teachers_of(params, a.student)]
    data = dict.fromkeys(
        graph.data_file(d) for d in [*(a.dataset for a in arms), *(d for d, _, _ in rebuilt), *behind]
    )
    return list(data), list(dict.fromkeys([*students, *teachers, *(path for _, _, path in rebuilt)]))


def map_keys(params: dict, study: str) -> list[str]:
    """Return the dotted keys of `params.yaml` that the maps of a study depend on.

    Teachers that are no masked autoencoders are among them: were one to become another kind, its key would
    go, and of a key that is no longer asked for DVC says nothing.
    """
    names = [t for a in graph.study_arms(params, study) for t in graph.teachers_of(params, a.student)]
    others = [t for t in names if params["teachers"][t]["source"] != "mae"]
    rebuilt = [name for _, name, _ in rebuilt_teachers(params, study)]
    return ["compute", *dict.fromkeys(f"teachers.{name}" for name in [*rebuilt, *others])]
