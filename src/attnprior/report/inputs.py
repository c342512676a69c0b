"""What figures and page are made from, read and checked: nothing of another study, nothing cut off."""

import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from attnprior.analysis.panels import (
    COMPARED,
    COMPARISON_COLUMNS,
    ROW_COLUMNS,
    TIDY_COLUMNS,
    Key,
    Row,
    members,
)
from attnprior.config import Study
from attnprior.errors import UserError
from attnprior.files import read_json
from attnprior.report.tables import read_csv


def read_results(path: str, name: str, study: Study) -> list[Row]:
    """Return the rows of results.csv.

    Raises:
        UserError: it is unreadable or not of `study`.
    """
    rows = read_csv(path, TIDY_COLUMNS)
    found = [
        (r["study"], r["dataset"], r["panel"], r["arm"], r["seed"])
        for r in rows
        if r["split"] == "test" and r["metric"] == "top1"
    ]
    _same(path, name, found, ((name, *place, k) for place in _places(study) for k in study.seeds))
    return rows


def read_table(path: str, name: str, study: Study) -> list[Row]:
    """Return the rows of table.csv.

    Raises:
        UserError: it is unreadable or not of `study`.
    """
    rows = read_csv(path, ROW_COLUMNS)
    _same(path, name, [(r["dataset"], r["panel"], r["arm"]) for r in rows], _places(study))
    return rows


def read_comparisons(path: str, name: str, study: Study) -> list[Row]:
    """Return the rows of comparisons.csv.

    Raises:
        UserError: it is unreadable or not of `study`.
    """
    rows = read_csv(path, COMPARISON_COLUMNS)
    found = [
        (r["dataset"], r["panel"], r["metric"], *sorted((str(r["arm"]), str(r["reference"])))) for r in rows
    ]
    wanted = (
        (d, p, metric, *sorted(pair))
        for d in study.datasets
        for p, panel in study.panels.items()
        for metric in COMPARED
        for pair in combinations(members(panel), 2)
    )
    _same(path, name, found, wanted)
    return rows


def read_captions(path: str, figures: Collection[str]) -> dict[str, Any]:
    """Return the content of captions.json.

    Raises:
        UserError: it is unreadable or does not have title and caption of every figure.
    """
    about = read_json(path)
    parts = [about.get(k) if isinstance(about, dict) else None for k in ("titles", "captions")]
    good = all(isinstance(p, dict) and all(isinstance(p.get(f), str) for f in figures) for p in parts)
    if not good or not isinstance(about.get("left_out"), list):
        raise UserError(
            f"{path}: no captions of {', '.join(figures)}; delete it and run the study's `draw` again"
        )
    return about


def read_svg(path: str) -> str:
    """Return the text of a figure.

    Raises:
        UserError: it is missing, or no whole SVG.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        good = ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from e
    except (ValueError, ET.ParseError) as e:
        raise UserError(f"{path}: no whole SVG ({e}); delete it and run the study's `draw` again") from e
    if not good:
        raise UserError(f"{path}: not an SVG; delete it and run the study's `draw` again")
    return text


def read_record(path: str | Path, key: Key) -> dict[str, Any]:
    """Return the run.json of the training of a student.

    Raises:
        UserError: it is unreadable or of another job.
    """
    record = read_json(path)
    job = "train_student/{}/{}/seed{}".format(*key)
    if not isinstance(record, dict) or record.get("job") != job:
        raise UserError(f"{path}: not the record of {job}; delete it and train again")
    return record


def _places(study: Study) -> list[tuple[str, str, str]]:
    return [
        (d, p, arm) for d in study.datasets for p, panel in study.panels.items() for arm in members(panel)
    ]


def _same(path: str, name: str, found: Sequence[tuple], wanted: Iterable[tuple]) -> None:
    wanted = list(wanted)
    missing = [k for k in wanted if k not in set(found)]
    foreign = [k for k in found if k not in set(wanted)]
    for what, keys in (("lacks", missing), ("has", foreign)):
        if keys:
            shown = "/".join(map(str, keys[0]))
            raise UserError(
                f"{path}: not of study {name} as params.yaml has it: it {what} {shown}; delete it and run"
                " the study's `compare` again"
            )
    if len(found) != len(wanted):
        raise UserError(f"{path}: has rows twice; delete it and run the study's `compare` again")
