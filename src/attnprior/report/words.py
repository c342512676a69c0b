"""Sentences that tables, figures and page share."""

from collections.abc import Mapping

from attnprior.config import Scaled, Study

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


def images_of(counts: Mapping[str, int], split: Mapping[str, str]) -> str:
    """Return how many images of which data sets are looked at; `split` is val or train by data set."""
    parts = [
        f"{count} {'validation' if split[dataset] == 'val' else 'training'} images of {dataset}"
        for dataset, count in counts.items()
    ]
    why = " (without a validation split training images, never test images)"
    return ", ".join(parts) + (why if "train" in split.values() else "")


def scale(scaled: Scaled) -> str:
    """Return the sentence that every table and caption of a study at a smaller scale carries."""
    return (
        f"Scaled: study {scaled.of} with at most {scaled.images:,} images for training, validation and test"
        f" each, {scaled.epochs} epochs, at most {scaled.steps:,} steps of an impulse fit and"
        f" {scaled.seeds} seeds; not the setting of that study, nor of a paper."
    )
