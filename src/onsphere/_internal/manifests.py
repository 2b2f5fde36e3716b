"""The description of a model in its file, which anybody may have written: what each part of it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onsphere._internal.validation import is_number

__all__ = ["CALIBRATED_BY", "find_wrong_parts", "is_count", "is_list_of", "is_text"]

CALIBRATED_BY = ("held-out rows", "cross-validation")


def find_wrong_parts(manifest: Any) -> list[str]:
    """Return the names of the parts of a manifest that are missing or not what they must be.

    Examples
    --------
    >>> find_wrong_parts([])[:3]
    ['format', 'onsphere', 'libraries']
    """
    found = manifest if isinstance(manifest, dict) else {}
    wrong = [name for name, is_right in _CHECKS.items() if name not in found or not is_right(found[name])]
    later = [name for name, is_right in _LATER_CHECKS.items() if not is_right(found.get(name))]
    summary = found.get("summary")
    has_reference = not isinstance(summary, dict) or isinstance(summary.get("reference"), dict | None)
    return wrong + later + ([] if has_reference else ["reference"])


def is_text(value: Any) -> bool:
    """Return whether it is text."""
    return isinstance(value, str)


def is_list_of(values: Any, is_right: Callable[[Any], bool]) -> bool:
    """Return whether it is a list of at least one value, all of them right."""
    return isinstance(values, list) and len(values) > 0 and all(is_right(value) for value in values)


def is_count(value: Any) -> bool:
    """Return whether it is a whole number above 0."""
    return type(value) is int and value > 0


def _is_summary(value: Any) -> bool:
    """Return whether the parts of a summary that are used without its columns are what they must be."""
    return (
        isinstance(value, dict)
        and ("targets" not in value or is_list_of(value["targets"], is_text))
        and ("coverage" not in value or (is_number(value["coverage"]) and 0 < value["coverage"] < 1))
        and ("notes" not in value or value["notes"] == [] or is_list_of(value["notes"], is_text))
        and isinstance(value.get("figures", {}), dict)
        and isinstance(value.get("backbone"), str | None)
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "format": is_count,
    "onsphere": is_text,
    "libraries": lambda value: isinstance(value, dict) and all(map(is_text, value.values())),
    "model": is_text,
    "n_features": lambda value: value is None or (type(value) is int and value >= 0),
    "columns": lambda value: value is None or is_list_of(value, is_text),
    "classes": lambda value: value is None or is_list_of(value, lambda each: isinstance(each, str | int | float)),
    "calibration_rows": lambda value: value is None or is_count(value),
    "threshold": lambda value: value is None or value == "inf" or is_number(value),
    "rule": lambda value: value is None or is_text(value),
    "summary": _is_summary,
}
# Older files do not have these.
_LATER_CHECKS: dict[str, Callable[[Any], bool]] = {
    "calibrated_by": lambda value: value is None or value in CALIBRATED_BY,
    "frames": lambda value: value is None or is_list_of(value, is_text),
    "novelty_threshold": lambda value: value is None or is_number(value),
    "novelty_rule": lambda value: value is None or is_text(value),
}
