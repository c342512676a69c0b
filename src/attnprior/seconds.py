"""Seconds that environment variables give."""

import math
import os
from typing import overload

from attnprior.errors import UserError


@overload
def seconds(name: str, otherwise: float, *, least: float | None = None) -> float: ...
@overload
def seconds(name: str, otherwise: None = None) -> float | None: ...
def seconds(name: str, otherwise: float | None = None, *, least: float | None = None) -> float | None:
    """Return the seconds that the variable `name` gives, `otherwise` where it is unset or empty.

    Raises:
        UserError: it is no finite number from `least`, or above 0 where that is not given.
    """
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 if least is None else value >= least) or value == math.inf:
        allowed = "above 0" if least is None else f"from {least:g}"
        raise UserError(f"{name}: {text!r} is no number of seconds {allowed}; correct it or unset it")
    return value
