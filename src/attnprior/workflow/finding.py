"""One line of `attnprior doctor`."""

from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """What a check found; `text` says what to do unless `level` is "ok"."""

    check: str
    level: str
    text: str


def ok(check: str, text: str) -> Finding:
    return Finding(check, OK, text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, WARNING, text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, PROBLEM, text)
