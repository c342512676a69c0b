"""Tables of a study as CSV, Markdown and LaTeX; the same cells serve the HTML page."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnprior.analysis.panels import PanelResult, Row
from attnprior.config import Study
from attnprior.errors import UserError, one_line
from attnprior.report.words import ONE_SEED, scale, teachers

TEXTS = ("study", "dataset", "panel", "arm", "role", "split", "metric", "family", "reference")
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    DASH: "--",
    **{c: "\\" + c for c in "&%$#_"},
}
MARKDOWN = str.maketrans({c: "\\" + c for c in r"\`*_[]<>|#~"})


@dataclass(frozen=True)
class Table:
    """One panel ready to print: plain-text cells, the first column left, all others right aligned."""

    title: str
    header: list[str]
    cells: list[list[str]]


def rounded(value: Any) -> Any:
    """Return a float with 10 significant digits, anything else unchanged."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def csv_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows with the keys `columns` as CSV with Unix line ends; None is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: repr(rounded(v)) if isinstance(v, float) else v for k, v in row.items()})
    return out.getvalue()


def read_csv(path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a file written from `csv_text`: numbers as numbers, empty cells as None.

    Raises:
        UserError: the file is missing, truncated, or not a table with these columns.
    """
    again = "delete it and run the study's `compare` again"
    try:
        with open(path, newline="", encoding="utf-8") as f:
            text = f.read()
        header, *lines = csv.reader(io.StringIO(text, newline=""))
        rows = [{k: _parsed(v) for k, v in zip(header, line, strict=True)} for line in lines]
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: cannot be read as a table ({one_line(e)}); {again}") from e
    if header != list(columns):
        raise UserError(f"{path}: has other columns than {', '.join(columns[:4])}, ...; {again}")
    bad = [k for row in rows for k, v in row.items() if isinstance(v, str) and k not in TEXTS]
    if bad or not text.endswith("\n"):
        what = f"{bad[0]} is no number" if bad else "the last line is cut off"
        raise UserError(f"{path}: {what}; {again}")
    return rows


def _parsed(text: str) -> str | float | int | None:
    if text[:1] not in set("-0123456789"):  # an arm may be named nan or inf
        return text or None
    try:
        return int(text)
    except ValueError:
        return float(text)


def make_table(title: str, baseline: str, rows: Sequence[Row], confidence: float) -> Table:
    """Return the printed table of one panel; accuracies and their differences are in per cent and points."""
    percent = f"{100 * confidence:g} % interval"
    header = [
        "arm",
        "test top-1 (%)",
        percent,
        "NLL",
        "ECE (%)",
        f"difference to {baseline} (points)",
        percent,
    ]
    header += ["p (Holm)", "training GFLOP: own", "teacher + fit"]
    cells = []
    for row in ({k: rounded(v) for k, v in row.items()} for row in rows):  # as table.csv has them
        note = " (baseline)" if row["arm"] == baseline else " (control)" if row["role"] == "control" else ""
        own = [row["arm"] + note, _spread(row, "top1", 100, 1), _interval(row, "top1_low", "top1_high")]
        own += [_spread(row, "nll", 1, 3, n=False), _spread(row, "ece", 100, 1, n=False)]
        against = [
            _signed(row["difference"]),
            _interval(row, "difference_low", "difference_high", signed=True),
        ]
        against += [p_value(row["difference_p_holm"])]
        behind = row["gflop_teacher"] + row["gflop_fit"]
        cells.append(own + against + [_short(row["gflop_own"]), _short(behind)])
    return Table(one_line(title), header, cells)


def notes(study: Study, datasets: dict[str, int]) -> list[str]:
    """Return the sentences below the tables; `datasets` maps names to their number of test images."""
    seeds = len(study.seeds)
    sizes = ", ".join(f"{name}: {n} test images" for name, n in datasets.items())
    spread = (
        f"mean ± sample standard deviation over n = {seeds} seeds (n in brackets); intervals are Student t"
        " intervals over seeds, differences are paired by seed, p values are those of paired t tests with"
        " Holm's correction over the comparisons of a panel with its baseline."
        if seeds > 1
        else f"{ONE_SEED} (n = 1)."
    )
    out = [
        f"Protocol: test measured once after the last epoch; validation for monitoring only ({sizes}).",
        f"Numbers: {spread}",
        "Compute: training of one student, and of the teacher and impulse fit behind it, in GFLOP"
        " (a multiply-add counts 2).",
    ]
    return [*([scale(study.scaled)] if study.scaled else []), *out, teachers(study)]


def markdown(tables: Sequence[Table], foot: Sequence[str]) -> str:
    """Return tables and notes as Markdown."""
    parts = []
    for t in tables:
        lines = [f"**{_md(t.title)}**", "", _md_line(t.header), "|" + "|".join(_rule(len(t.header))) + "|"]
        parts.append("\n".join(lines + [_md_line(c) for c in t.cells]))
    return "\n\n".join([*parts, *map(_md, foot)]) + "\n"


def latex(tables: Sequence[Table], foot: Sequence[str]) -> str:
    r"""Return tables and notes as LaTeX for `\input`; needs the package booktabs."""
    parts = ["% needs \\usepackage{booktabs}"]
    for t in tables:
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{tex(t.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(t.header) - 1)}}}", r"\toprule", _tex_line(t.header)]
        lines += [r"\midrule", *(_tex_line(c) for c in t.cells), r"\bottomrule", r"\end{tabular}"]
        parts.append("\n".join([*lines, r"\end{table}"]))
    return "\n\n".join([*parts, *(tex(n) + r"\par" for n in foot)]) + "\n"


def metrics_tree(results: Sequence[PanelResult]) -> dict:
    """Return panel → arm → numbers for `dvc metrics`, 10 significant digits, without what is unknown."""
    left_out = ("dataset", "panel", "arm", "role")
    return {
        r.key: {
            row["arm"]: {k: rounded(v) for k, v in row.items() if k not in left_out and v is not None}
            for row in r.rows
        }
        for r in results
    }


def tex(text: str) -> str:
    """Return plain text with every character that LaTeX treats specially escaped."""
    return "".join(TEX.get(c, c) for c in text)


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(tex, cells)) + r" \\"


def _md(text: str) -> str:
    return text.translate(MARKDOWN)


def _md_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_md, cells)) + " |"


def _rule(columns: int) -> list[str]:
    return ["---", *["--:"] * (columns - 1)]


def number(value: float, digits: int, signed: bool = False) -> str:
    """Return a number with fixed digits and a true minus sign; a rounded zero has no sign."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        return text.lstrip("-")
    return text.replace("-", MINUS) if value < 0 else ("+" if signed else "") + text


def _spread(row: Row, key: str, factor: float, digits: int, n: bool = True) -> str:
    mean, std = row[f"{key}_mean"], row[f"{key}_std"]
    text = number(factor * mean, digits)
    if std is not None:
        text += f" ± {number(factor * std, digits)}"
    return f"{text} ({row['seeds']})" if n else text


def _interval(row: Row, low: str, high: str, signed: bool = False) -> str:
    if row[low] is None or row[high] is None:
        return DASH
    return f"{number(100 * row[low], 1, signed)} to {number(100 * row[high], 1, signed)}"


def _signed(value: float | None) -> str:
    return DASH if value is None else number(100 * value, 1, signed=True)


def p_value(value: float | None) -> str:
    return DASH if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
