"""Check the few arguments that people give to the data readers, to the baselines and to `reproduce`.

A message says what was expected, what came and what to do next.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from onsphere import InvalidInputError, MissingExtraError

__all__ = [
    "Floats",
    "argument_error",
    "check_count",
    "check_option",
    "check_positive",
    "import_package",
    "make_random_state",
]

Floats = NDArray[np.float64]


def argument_error(function: str, name: str, expected: str, got: object) -> InvalidInputError:
    """Return the error for an argument that cannot be used."""
    return InvalidInputError(f"The {name!r} parameter of {function} must be {expected}. Got {got!r} instead.")


def check_option(function: str, name: str, value: object, options: Sequence[str]) -> None:
    """Raise unless the value is one of several words."""
    if value not in options:
        raise argument_error(function, name, "one of " + ", ".join(map(repr, options)), value)


def check_count(function: str, name: str, value: object) -> None:
    """Raise unless the value is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise argument_error(function, name, "an int in [1, inf)", value)


def check_positive(function: str, name: str, value: object, *, or_zero: bool = False) -> None:
    """Raise unless the value is a finite number above 0, or 0 where that is allowed."""
    number = float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    if not (0 < number < math.inf or (or_zero and number == 0)):
        raise argument_error(function, name, f"a float in {'[' if or_zero else '('}0, inf)", value)


def make_random_state(function: str, random_state: Any) -> np.random.RandomState:
    """Return the generator that an int, a RandomState or None stands for."""
    try:
        return check_random_state(random_state)
    except ValueError:
        raise argument_error(function, "random_state", "an int, a RandomState or None", random_state) from None


def import_package(name: str, *, needed_by: str, install_as: str | None = None) -> Any:
    """Import a package that not everybody has installed, or say how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtraError(
            f"{needed_by} needs {install_as or name}. Install it from a clone of onsphere with: "
            "pip install -e '.[reproduction]'"
        ) from None
