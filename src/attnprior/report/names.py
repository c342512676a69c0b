"""How the files of a study name what belongs to an arm."""

from collections.abc import Sequence


def column(datasets: Sequence[str], dataset: str, arm: str) -> str:
    """Return the column of an arm: its name, after that of the data set where a study has several."""
    return arm if len(datasets) == 1 else f"{dataset}/{arm}"
