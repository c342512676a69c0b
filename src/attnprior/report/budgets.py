"""Sentences on a study of label budgets: where a difference to the baseline's family is shown."""

from collections.abc import Iterator, Sequence

from attnprior.analysis.families import Family
from attnprior.analysis.panels import Row, by_panel
from attnprior.config import Study
from attnprior.report.findings import is_shown, pair
from attnprior.report.words import ONE_SEED

APART = "Each number of labels is a family of tests of its own: Holm's correction does not run over them."


def budget_findings(study: Study, found: Sequence[Family], comparisons: Sequence[Row]) -> list[str]:
    """Return a summary, a sentence per family, and a caution; nothing where no panels compare families.

    A family is compared with the baseline's family at every number of labels at which a panel holds both.
    """
    compared = list(_compared(study, found, comparisons))
    if not compared:
        return []
    if len(study.seeds) == 1:
        return [f"{ONE_SEED.capitalize()}; no difference is shown at any number of labels."]
    references = dict.fromkeys(reference for _, reference, _ in compared)
    out = []
    for reference in references:
        last = {
            name: max((n for n, sign in signs.items() if sign), default=None)
            for name, other, signs in compared
            if other == reference
        }
        where = ", ".join(f"{name} {n or 'none'}" for name, n in last.items())
        out.append(f"Largest number of labels at which a difference to {reference} is shown: {where}.")
    return [*out, *(_sentence(*c) for c in compared), APART]


def _compared(
    study: Study, found: Sequence[Family], comparisons: Sequence[Row]
) -> Iterator[tuple[str, str, dict[int, int]]]:
    """Yield names of a family and its reference, and at each number of labels 1, -1 or 0 (not shown)."""
    baselines = {p.baseline for p in study.panels.values()}
    several, grouped = len(study.datasets) > 1, by_panel(comparisons)
    for dataset in study.datasets:
        for reference in (f for f in found if baselines & set(f.arms.values())):
            for family in found:
                signs = {}
                for n, arm in family.arms.items():
                    for name, panel in study.panels.items():
                        if arm in panel.arms and panel.baseline == reference.arms.get(n) != arm:
                            row = pair(grouped[dataset, name], arm, panel.baseline)
                            positive = 1 if row["difference"] > 0 else -1
                            signs[n] = positive if is_shown(row, study.confidence) else 0
                if signs:
                    yield f"{family.name} on {dataset}" if several else family.name, reference.name, signs


def _sentence(name: str, reference: str, signs: dict[int, int]) -> str:
    beats, behind, none = ([n for n, s in signs.items() if s == k] for k in (1, -1, 0))
    if not beats and not behind:
        return f"{name}: no difference to {reference} is shown at any number of labels ({_list(none)})."
    parts = [
        f"{verb} {reference} with {_list(numbers)} labels"
        for verb, numbers in (("beats", beats), ("falls behind", behind))
        if numbers
    ]
    text = f"{name} {' and '.join(parts)}"
    if not none:
        return f"{text}, at every number of labels."
    if min(none) > max(beats + behind):
        return f"{text}; from {min(none):,} labels on no difference is shown."
    return f"{text}; no difference is shown with {_list(none)} labels."


def _list(numbers: Sequence[int]) -> str:
    *most, last = (f"{n:,}" for n in numbers)
    return f"{', '.join(most)} and {last}" if most else last
