"""Keeps a study's table in the README equal to the generated one.

python -m attnprior.report.readme README.md results/digits/table.md [--check]
"""

import argparse
import sys
from pathlib import Path

from attnprior.errors import UserError
from attnprior.files import write_text


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


def main(argv: list[str] | None = None) -> int:
    """Update the file, or with `--check` return 1 when it would change."""
    parser = argparse.ArgumentParser(prog="python -m attnprior.report.readme", allow_abbrev=False)
    parser.add_argument("readme", metavar="README.md")
    parser.add_argument("table", metavar="results/STUDY/table.md")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when the table differs")
    args = parser.parse_args(argv)
    try:
        text, table = (_read(p) for p in (args.readme, args.table))
        new = with_table(text, table, Path(args.table).resolve().parent.name)
        if new == text:
            return 0
        if args.check:
            raise UserError(
                f"{args.readme}: not the table of {args.table};"
                f" run: python -m attnprior.report.readme {args.readme} {args.table}"
            )
        write_text(args.readme, new)
        return 0
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: cannot be read ({e})") from e


if __name__ == "__main__":
    sys.exit(main())
