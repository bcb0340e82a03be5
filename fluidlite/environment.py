"""What environment variables say: each kind of value is read in one way, and what is none is refused with what would be."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import Final

from fluidlite.errors import SettingError

#: words for yes and no, in any case
YES: Final = ("1", "true", "yes", "on")
NO: Final = ("0", "false", "no", "off", "none")


def setting(variable: str) -> str | None:
    """What a variable says, without blanks around it; None where it is not set or empty."""
    return os.environ.get(variable, "").strip() or None


def switch(text: str) -> bool | None:
    """What a word for yes or no means; None for any other.

    >>> switch("On"), switch("none"), switch("fc")
    (True, False, None)
    """
    word = text.strip().lower()
    return word in YES if word in YES + NO else None


def one_of(variable: str, accepted: Collection[str], default: str) -> str:
    """One of some words, in any case. Raises SettingError."""
    text = setting(variable)
    if text is None:
        return default
    if text.lower() not in accepted:
        raise refusal(variable, f"be one of {', '.join(accepted)}", text)
    return text.lower()


def seconds(variable: str, default: float) -> float:
    """A duration in seconds, 0 or more. Raises SettingError."""
    text = setting(variable)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise refusal(variable, "be a number of seconds", text)
    return value


def whole_number(variable: str, default: int) -> int:
    """A whole number, 0 or more. Raises SettingError."""
    text = setting(variable)
    if text is None:
        return default
    if not text.isdecimal():
        raise refusal(variable, "be a whole number", text)
    return int(text)


def refusal(variable: str, wanted: str, text: str) -> SettingError:
    """The error for a variable that says something else than it must."""
    return SettingError(f"the environment variable {variable} must {wanted}, not {text!r}")
