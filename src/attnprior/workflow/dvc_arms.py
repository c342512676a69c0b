"""`workflow/arms.yaml`: the stages of the active studies, as the templates of `dvc.yaml` read them."""

from attnprior.workflow import graph
from attnprior.workflow.studyfiles import file_of, sources


def dvc_structure(params: dict) -> dict:
    """Return the content of `workflow/arms.yaml`: the stages of the active studies.

    Structure only (names, paths, seeds, and where settings stand). An entry that needs no fit, teacher,
    source, recipe or scale names its data file or settings again, since a DVC template cannot leave out a
    dependency. DVC depends on the folder of a teacher or fit; `sources`, the files in it that an arm reads,
    stand in the command, so that another `teacher_seed` is a change to DVC, too.
    """
    arms = graph.all_arms(params)
    datasets = {
        d: {
            "source": graph.dataset_source(params, d),
            "targets": " ".join(graph.data_files(d)),
            **_place(params, "dataset", f"datasets.{d}"),
            **_scale(params, f"datasets.{d}"),
        }
        for d in graph.datasets_of(params)
    }
    teachers = {}
    for (dataset, teacher), seeds in graph.teacher_seeds(params).items():
        directory = f"teachers/{dataset}/{teacher}"
        values = params["teachers"][teacher]
        teachers[f"{dataset}-{teacher}"] = {
            "directory": directory,
            "data": graph.data_file(dataset),
            "source": _source_directory(params, dataset, teacher) or graph.data_file(dataset),
            **_place(params, "teacher", f"teachers.{teacher}"),
            **_place(params, "model", f"models.{values['model']}"),
            **_place(params, "recipe", f"recipes.{values['recipe']}" if "recipe" in values else "compute"),
            **_scale(params, f"teachers.{teacher}"),
            "targets": " ".join(graph.seed_files(directory, seeds, ["weights.safetensors"])),
        }
    fits = {
        name: {
            "directory": f"fits/{name}",
            **_place(params, "fit", f"fits.{name}"),
            **_place(params, "model", f"models.{params['fits'][name]['model']}"),
            **_scale(params, f"fits.{name}"),
            "targets": " ".join(graph.seed_files(f"fits/{name}", seeds, ["fit.safetensors"])),
        }
        for (name,), seeds in graph.fit_seeds(params).items()
    }
    entries = {}
    for arm in arms:
        values = params["students"][arm.student]
        fit, data = graph.fit_of(params, arm.student), graph.data_file(arm.dataset)
        start, teacher = (
            graph.teacher_directory(params, name, arm.dataset) if name else data
            for name in (graph.teacher_of(params, arm.student, part) for part in ("init", "transfer"))
        )
        entries[arm.key] = {
            "directory": arm.directory,
            "data": data,
            "init_teacher": start,
            "teacher": teacher,
            "fit": f"fits/{fit}" if fit else data,
            **_place(params, "student", f"students.{arm.student}"),
            **_place(params, "model", f"models.{values['model']}"),
            **_place(params, "recipe", f"recipes.{values['recipe']}"),
            **_scale(params, f"students.{arm.student}"),
            "sources": " ".join(graph.arm_sources(params, arm)) or "no teacher or fit",
            "targets": " ".join(
                graph.seed_files(arm.directory, arm.seeds, ["weights.safetensors", "metrics.json"])
            ),
        }
    return {"graph": {"data": datasets, "teachers": teachers, "fits": fits, "arms": entries}}


def _source_directory(params: dict, dataset: str, teacher: str) -> str | None:
    """Return the folder of the student that a teacher is made of, or the file; None for other teachers."""
    values = params["teachers"][teacher]
    return f"runs/{dataset}/{values['student']}" if "student" in values else values.get("path")


def _place(params: dict, name: str, key: str) -> dict[str, str]:
    """Return the dotted key of an entry, or of what it is derived from, and the file in which that stands."""
    key = sources(params, key)[0]
    return {f"{name}_file": file_of(params, key), f"{name}_key": key}


def _scale(params: dict, key: str) -> dict[str, str]:
    """Return the key and file of the scale that an entry is derived with, or its own again."""
    return _place(params, "scale", sources(params, key)[-1])
