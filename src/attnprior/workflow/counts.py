"""Numbers of images and labels, checked before any job runs where a source's size is known."""

from attnprior.data.rules import check_classes, check_keys, known_numbers
from attnprior.errors import UserError
from attnprior.workflow import graph
from attnprior.workflow.studyfiles import file_behind, of_file


def check_counts(params: dict) -> None:
    """Check that every data set leaves images to train on, and that no arm wants more labels than those.

    What runs on a data set follows from the studies, active or not.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    for name in params["datasets"]:
        training_images(params, name)
    for arm in graph.all_arms(params, params["studies"]):
        values, count = params["students"][arm.student], training_images(params, arm.dataset)
        _check(params, f"students.{arm.student}.labels", values, values["model"], arm.dataset, count)
        for teacher in graph.teachers_of(params, arm.student):
            dataset, found = graph.made_on(params, teacher, arm.dataset), params["teachers"][teacher]
            where, count = f"teachers.{teacher}.probe.labels", training_images(params, dataset)
            _check(params, where, found["probe"], found["model"], dataset, count)


def training_images(params: dict, dataset: str) -> int | None:
    """Return how many images of a data set are left to train on; None where its source's size is unknown.

    Raises:
        UserError: keys do not fit the source, or a part is larger than what it is taken from.
    """
    values, where = params["datasets"][dataset], f"datasets.{dataset}"
    with of_file(file_behind(params, where)):
        check_keys(values, where)
        found = known_numbers(values, where)
    return found.train if found else None


def _check(params: dict, where: str, values: dict, model: str, dataset: str, count: int | None) -> None:
    classes, labels = params["models"][model]["num_classes"], values["labels"]
    with of_file(file_behind(params, f"datasets.{dataset}")):  # what the model says of a folder's classes
        check_classes(params["datasets"][dataset], classes, f"datasets.{dataset}")
    if labels < classes or (count is not None and labels > count):
        most = "" if count is None else f" to {count} (training images of {dataset})"
        path = file_behind(params, where)
        raise UserError(
            f"{path}: {where} is {labels}; allowed on data set {dataset!r}: {classes} (one per class)"
            f"{most or ' or more'}"
        )
