"""Families of arms that differ in nothing but their number of labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprior.config import Study
from attnprior.files import canonical_json


@dataclass(frozen=True)
class Family:
    """Arms of equal settings: `arms` has the name of each by its number of labels, in rising order."""

    name: str  # what the names of its arms have in common
    arms: dict[int, str]


def families(students: Mapping[str, Mapping[str, Any]], first: Sequence[str] = ()) -> list[Family]:
    """Return the families with at least two numbers of labels among `students`, settings by name.

    They come in the order of their first arms, those with an arm in `first` (the baselines) before all
    others. Of two arms with the same settings and number of labels the first counts.
    """
    groups: dict[str, dict[int, str]] = {}
    for name, settings in students.items():
        alike = canonical_json({k: v for k, v in settings.items() if k != "labels"})
        groups.setdefault(alike, {}).setdefault(settings["labels"], name)
    several = [dict(sorted(arms.items())) for arms in groups.values() if len(arms) > 1]
    several.sort(key=lambda arms: not set(arms.values()) & set(first))
    common = [_common(list(arms.values())) for arms in several]
    return [
        Family(name if name and common.count(name) == 1 else next(iter(arms.values())), arms)
        for name, arms in zip(common, several, strict=True)
    ]


def _common(names: list[str]) -> str:
    """Return the first parts between underscores that all names share, such as `random` of `random_50`."""
    shared = []
    for parts in zip(*(n.split("_") for n in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "_".join(shared)


def study_families(study: Study, students: Mapping[str, Mapping[str, Any]]) -> list[Family]:
    """Return the families among the arms (not the controls) of a study; `students` has their settings."""
    panels = study.panels.values()
    arms = dict.fromkeys(a for p in panels for a in p.arms)
    return families({a: students[a] for a in arms}, [p.baseline for p in panels])
