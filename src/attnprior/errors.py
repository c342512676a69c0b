"""Errors that a user can act on, and how they are told."""

import sys


class UserError(Exception):
    """A problem in the user's input, parameters or files.

    The message is one line: the key or file, the value, what is allowed, what to do next.
    Entry points print it without a traceback and exit with status 1; tracebacks go to the log.
    """


class BusyError(UserError):
    """Another process works on the same job; its files, its event log included, must be left alone."""


def one_line(text: object) -> str:
    """Return `text` with every run of white space, line ends included, as one blank."""
    return " ".join(str(text).split())


def tell(line: str) -> None:
    """Write a line to stderr in one piece, so that processes that share it never mix their lines."""
    sys.stderr.write(f"{line}\n")  # `print` writes the line end by itself where Python is unbuffered


def nearest(word: str, allowed) -> str:
    """Return ", did you mean 'x'?" for the allowed name closest to `word`, or nothing."""
    import difflib

    match = difflib.get_close_matches(word, [str(a) for a in allowed], n=1)
    return f", did you mean '{match[0]}'?" if match else ""
