"""Sentences that tables, figures and page share."""

from attnprior.config import Study

ONE_SEED = "one seed: no interval, no test"


def teachers(study: Study) -> str:
    """Return the sentence on the teacher and fit of a student seed, where an arm has one."""
    each = study.teacher_seed is None
    text = (
        "Teacher and fit seed = student seed"
        if each
        else f"One teacher: all student seeds share the teacher and the fit of seed {study.teacher_seed}"
    )
    if len(study.seeds) == 1:
        return f"{text}."
    return f"{text}, so spread and intervals {'include' if each else 'leave out'} how teachers differ."
