"""The exceptions of onsphere, as a tree.

OnsphereError
├── InvalidInputError    a value cannot be used: wrong shape, NaN, out of range (also a ValueError)
├── InvalidTypeError     an object of the wrong kind was given (also a TypeError)
├── NotFittedError       a method was called before ``fit`` (also scikit-learn's NotFittedError)
│   └── NotCalibratedError   an answer was asked for that only a calibrated model can give
└── MissingExtraError    an optional package is not installed (also an ImportError)

OnsphereWarning          the answer stands, but something about it deserves a look (a UserWarning)
"""

from __future__ import annotations

import sklearn.exceptions

__all__ = [
    "InvalidInputError",
    "InvalidTypeError",
    "MissingExtraError",
    "NotCalibratedError",
    "NotFittedError",
    "OnsphereError",
    "OnsphereWarning",
]


class OnsphereError(Exception):
    """Every error that onsphere raises on purpose."""


class InvalidInputError(OnsphereError, ValueError):
    """A value cannot be used; the message says what was expected, what came and what to do."""


class InvalidTypeError(OnsphereError, TypeError):
    """An object of the wrong kind was given."""


class NotFittedError(OnsphereError, sklearn.exceptions.NotFittedError):
    """A method was called before ``fit``."""


class NotCalibratedError(NotFittedError):
    """An interval, a confidence or a decision was asked of a model that was never calibrated."""


class MissingExtraError(OnsphereError, ImportError):
    """An optional package is missing; the message names the extra that installs it."""


class OnsphereWarning(UserWarning):
    """The answer stands, but something about it deserves a look."""
