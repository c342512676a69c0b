"""How the files of a study name its figures and what belongs to an arm."""

from collections.abc import Sequence

TITLES = {
    "accuracy": "Test accuracy by arm",
    "labels": "Test accuracy over the number of labels",
    "curves": "Learning curves",
    "impulse": "Impulse maps before and after training",
    "attention": "Where the networks look",
    "reconstruction": "What the masked autoencoders rebuild",
    "redundancy": "Ranks of tokens and the redundancy condition",
    "confusion": "Confusion matrices",
}  # of the figures, in the order of the page


def column(datasets: Sequence[str], dataset: str, arm: str) -> str:
    """Return the column of an arm: its name, after that of the data set where a study has several."""
    return arm if len(datasets) == 1 else f"{dataset}/{arm}"
