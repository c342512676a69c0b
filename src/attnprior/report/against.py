"""Published values beside ours: rows for paper.csv, and the table that shows them."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprior.config import Paper, Study
from attnprior.errors import UserError, one_line
from attnprior.report.tables import DASH, Table, number, rounded
from attnprior.report.words import scale

Row = dict[str, Any]
NOT_RECOVERED = "not recovered"
COLUMNS = (
    *("dataset", "panel", "arm", "paper", "table", "paper_dataset", "paper_model", "paper_arm", "metric"),
    *(
        "published",
        "status",
        "source",
        "ours",
        "ours_low",
        "ours_high",
        "seeds",
        "difference",
        "inside",
        "key",
    ),
)
PERCENT = 100.0  # ours are shares, papers print per cent


def against_rows(study: Study, paper: Paper, table: Sequence[Row], published: Mapping[str, Row]) -> list[Row]:
    """Return a row for each published value that the study names: ours beside it where we have an arm.

    `table` holds the rows of table.csv. `inside` tells whether the published value lies in the interval of
    our mean; it is None with one seed, or where nothing is published.

    Raises:
        UserError: a key names no published value, or no test accuracy where an arm is set beside it.
    """
    rows = []
    for dataset, keys in paper.values.items():
        for mine in (r for r in table if r["dataset"] == dataset and r["arm"] in keys):
            entry = _entry(published, keys[mine["arm"]])
            if entry["metric"] != "top1":
                raise UserError(f"{entry['key']}: is {entry['metric']}; only top1 can stand beside an arm")
            rows.append(_row(entry, mine))
    return rows + [_row(_entry(published, key), None) for key in paper.stated]


def _entry(published: Mapping[str, Row], key: str) -> Row:
    if key not in published:
        raise UserError(f"params.yaml: paper: {key!r} is no published value; see src/attnprior/published")
    return published[key]


def _row(entry: Row, mine: Row | None) -> Row:
    row: Row = {
        "dataset": mine["dataset"] if mine else "",
        "panel": mine["panel"] if mine else "",
        "arm": mine["arm"] if mine else "",
        "paper": entry["paper"],
        "table": entry["table"],
        "paper_dataset": entry["dataset"],
        "paper_model": entry["model"],
        "paper_arm": entry["arm"] + (f" minus {entry['reference']}" if entry["reference"] else ""),
        "metric": entry["metric"],
        "published": entry["value"],
        "status": entry["status"],
        "source": entry["source"],
        "seeds": mine["seeds"] if mine else None,
        "key": entry["key"],
    }
    if not mine:
        return row
    ours, low, high = (
        None if mine[k] is None else rounded(PERCENT * mine[k])
        for k in ("top1_mean", "top1_low", "top1_high")
    )
    row |= {"ours": ours, "ours_low": low, "ours_high": high}
    if entry["value"] is not None and ours is not None:
        row["difference"] = rounded(ours - entry["value"])
        if low is not None and high is not None:
            row["inside"] = "yes" if low <= entry["value"] <= high else "no"
    return row


def against_table(study: Study, paper: Paper, rows: Sequence[Row]) -> Table:
    """Return the printed table: published, ours with interval, difference, inside our interval or not."""
    percent = f"{100 * study.confidence:g} % interval"
    header = ["arm", "published as", "published", "status", "ours: top-1 (%)", percent]
    header += ["ours minus published", "published value in our interval"]
    cells = []
    several = len(study.datasets) > 1
    for r in rows:
        arm = f"{r['arm']}, {r['dataset']}" if several and r["arm"] else r["arm"] or DASH
        name = f"{r['paper_dataset']}, {r['paper_model']}, {r['paper_arm']}"
        name += "" if r["metric"] == "top1" else f", {r['metric']}"
        value = NOT_RECOVERED if r["published"] is None else f"{r['published']:g}"
        ours = DASH if r.get("ours") is None else f"{number(r['ours'], 1)} ({r['seeds']})"
        interval = DASH
        if r.get("ours_low") is not None and r.get("ours_high") is not None:
            interval = f"{number(r['ours_low'], 1)} to {number(r['ours_high'], 1)}"
        gap = DASH if r.get("difference") is None else number(r["difference"], 1, signed=True)
        status = str(r["status"]).replace("_", " ")
        cells.append([arm, name, value, status, ours, interval, gap, r.get("inside") or DASH])
    return Table(one_line(f"Paper against ours: {paper.table}"), header, cells)


def against_notes(study: Study, paper: Paper) -> list[str]:
    """Return the sentences below the table: what was run, and whether it may be called a reproduction."""
    notes = []
    if study.scaled is not None:
        notes.append(scale(study.scaled))
    if paper.differs is not None:
        notes.append(f"Differs from the paper: {paper.differs}")
    if notes:
        notes.append(
            "So this is no reproduction of the published numbers: compare the order of the arms, not values."
        )
    return [
        *notes,
        "Not recovered: the paper has the number, but no readable copy of it was found. Published values are"
        " single numbers; whether they lie in our interval over seeds says nothing of their own spread.",
    ]


NUMBERS = ("published", "ours", "ours_low", "ours_high", "difference")


def read_against(path: str) -> list[Row]:
    """Return the rows of paper.csv as `against_rows` made them.

    Raises:
        UserError: it is unreadable or no such table.
    """
    again = "delete it and run the study's `against_paper` again"
    try:
        reader = csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8"), newline=""))
        rows: list[Row] = list(reader)
        for row in rows:
            row |= {k: float(row[k]) if row[k] else None for k in NUMBERS}
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise UserError(f"{path}: cannot be read as a table ({one_line(e)}); {again}") from e
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise UserError(f"{path}: has other columns than {', '.join(COLUMNS[:4])}, ...; {again}")
    return rows
