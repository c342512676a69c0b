"""history.csv: one row per epoch."""

from typing import Any

from attnprior.files import write_text


def write_history(path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    """Write rows of numbers under `columns`; floats are written so that they read back exactly."""
    lines = [",".join(columns), *(",".join(repr(row[c]) for c in columns) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")
