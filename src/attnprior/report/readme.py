"""Keeps tables, claims and figures of studies in the README equal to the generated ones.

python -m attnprior.report.readme README.md results/digits results/digits_labels [--check]
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from attnprior.analysis.panels import COMPARISON_COLUMNS, Row
from attnprior.errors import UserError, tell
from attnprior.files import atomic, read_json, write_text
from attnprior.report.findings import is_shown, pair
from attnprior.report.tables import number, read_csv

CLAIM = re.compile(r"<!-- claim:(\w+) (\w+) (\w+) -->.*?<!-- /claim -->")
FIGURE = re.compile(r"\((docs/(\w+)-(\w+)\.png)\)")


def with_table(text: str, table: str, study: str) -> str:
    """Return `text` with `table` between the markers `<!-- results:STUDY -->` and `<!-- /results:STUDY -->`.

    Raises:
        UserError: a marker is missing, doubled or the closing one comes first.
    """
    begin, end = f"<!-- results:{study} -->", f"<!-- /results:{study} -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise UserError(
                f"{marker} stands {text.count(marker)} times in the text; it must stand there once"
            )
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise UserError(f"{end} stands before {begin}; exchange them")
    return f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"


def with_claims(text: str, study: str, comparisons: Sequence[Row], confidence: float) -> str:
    """Return `text` with the answer in each `<!-- claim:STUDY ARM REFERENCE -->…<!-- /claim -->`.

    Raises:
        UserError: the study compares no such arms.
    """

    def answer(match: re.Match[str]) -> str:
        if match[1] != study:
            return match[0]
        try:
            row = pair(comparisons, match[2], match[3])
        except KeyError:
            raise UserError(f"{match[0]}: study {study} does not compare these arms") from None
        return f"<!-- claim:{study} {match[2]} {match[3]} -->{claim(row, confidence)}<!-- /claim -->"

    return CLAIM.sub(answer, text)


def claim(row: Row, confidence: float) -> str:
    """Return whether and how far an arm is ahead of another, in points of test accuracy."""
    size, *interval = (number(100 * row[k], 1, signed=True) for k in ("difference", "low", "high"))
    points = f"{size} points ({' to '.join(interval)})"
    if not is_shown(row, confidence):
        return f"not shown: {points}"
    return f"**{'yes' if row['difference'] > 0 else 'no, the reverse'}**: {points}"


def figures(text: str, study: str) -> list[tuple[str, str]]:
    """Return (path in the README, name) of each figure of a study that the text shows from docs/."""
    return list(dict.fromkeys((path, name) for path, s, name in FIGURE.findall(text) if s == study))


def updated(text: str, folder: Path) -> tuple[str, dict[str, bytes]]:
    """Return `text` with all that it shows of the study in `folder`, and the files it shows by path.

    Raises:
        UserError: a result is missing, or the text shows nothing of this study.
    """
    study = folder.resolve().name
    shown = figures(text, study)
    changes: list[Callable[[str], str]] = []
    if f"results:{study} -->" in text:
        table = _read(folder / "table.md").decode()
        changes.append(lambda t: with_table(t, table, study))
    if f"<!-- claim:{study} " in text:
        settings = json.loads(read_json(folder / "run.json")["params"])
        confidence = settings[f"studies.{study}"]["confidence"]
        comparisons = read_csv(folder / "comparisons.csv", COMPARISON_COLUMNS)
        changes.append(lambda t: with_claims(t, study, comparisons, confidence))
    if not changes and not shown:
        raise UserError(
            f"nothing of study {study} stands in the text; set <!-- results:{study} --> and its end"
        )
    for change in changes:
        text = change(text)
    return text, {path: _read(folder / "figures" / f"{name}.png") for path, name in shown}


def main(argv: list[str] | None = None) -> int:
    """Update the file and docs/ beside it, or with `--check` return 1 when something would change."""
    parser = argparse.ArgumentParser(prog="python -m attnprior.report.readme", allow_abbrev=False)
    parser.add_argument("readme", metavar="README.md", type=Path)
    parser.add_argument("studies", metavar="results/STUDY", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when something differs")
    args = parser.parse_args(argv)
    try:
        old = text = _read(args.readme).decode()
        pictures: dict[str, bytes] = {}
        for folder in args.studies:
            text, shown = updated(text, folder)
            pictures |= shown
        stale = [p for p, made in pictures.items() if _old(args.readme.parent / p) != made]
        if args.check and (text != old or stale):
            what = ", ".join([*([str(args.readme)] if text != old else []), *stale])
            redo = " ".join(map(str, [args.readme, *args.studies]))
            raise UserError(
                f"{what}: not what the studies show; run: python -m attnprior.report.readme {redo}"
            )
        if text != old:
            write_text(args.readme, text)
        for path in stale:
            with atomic(args.readme.parent / path) as temporary:
                temporary.write_bytes(pictures[path])
        return 0
    except UserError as e:
        tell(f"error: {e}")
        return 1


def _old(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e})") from e


if __name__ == "__main__":
    sys.exit(main())
