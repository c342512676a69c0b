"""Teachers that are made of students and files: checks of their settings before anything runs."""

from pathlib import PurePosixPath

from attnprior.errors import UserError, nearest
from attnprior.workflow import graph, studyfiles


def check_source(params: dict, name: str) -> None:
    """Check what the teacher `name` is made of.

    Raises:
        UserError: the student is unknown, of another model or copies attention, or the path leaves the
            checkout.
    """
    where, values = f"params.yaml: teachers.{name}", params["teachers"][name]
    if path := values.get("path"):
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or str(parts) != path:
            raise UserError(f"{where}.path is {path!r}, must be relative to the checkout and lie in it")
        made = ("data", "teachers", "fits", "runs", "results")
        if parts.parts[0] in made:
            raise UserError(
                f"{where}.path is {path!r}; {parts.parts[0]}/ is for what jobs make: put the file elsewhere,"
                " or use source: student"
            )
    student = values.get("student")
    if student is None:
        return
    if student not in params["students"]:
        raise UserError(
            f"{where}.student is {student!r}, which students does not have"
            f"{nearest(student, params['students'])}; known: {studyfiles.known(params, 'students')}"
        )
    found = params["students"][student]
    if found["model"] != values["model"]:
        raise UserError(
            f"{where}.model is {values['model']!r}, must be {found['model']!r}, that of student {student!r}"
        )
    if found["transfer"]["method"] == "copy":
        raise UserError(
            f"{where}.student is {student!r}, which copies attention, so that its own is not trained;"
            " choose a student that does not copy"
        )


def check_circles(params: dict) -> None:
    """Check that no teacher is made of a student that learns from it, through however many others.

    Raises:
        UserError: names the circle.
    """
    done: set[str] = set()

    def follow(teacher: str, path: list[str]) -> None:
        if teacher in path:
            circle = " <- ".join([*path[path.index(teacher) :], teacher])
            file = studyfiles.file_of(params, f"teachers.{teacher}")
            raise UserError(
                f"{file}: teachers.{teacher}.student: teachers that are made of each other ({circle});"
                " make one of them in another way"
            )
        if teacher in done or "student" not in params["teachers"][teacher]:
            return
        for other in graph.teachers_of(params, params["teachers"][teacher]["student"]):
            follow(other, [*path, teacher])
        done.add(teacher)

    for name in params["teachers"]:
        follow(name, [])
