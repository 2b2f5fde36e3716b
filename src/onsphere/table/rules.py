"""How rows are accepted by a rule, in the words of the command line."""

from __future__ import annotations

import warnings
from typing import Any

from onsphere.calibration import Calibration, rows_needed
from onsphere.decision import AcceptShare, MaxErrorRate, Rule, Tolerance
from onsphere.errors import InvalidInputError, OnsphereWarning

__all__ = ["apply_rule", "check_rule"]


def check_rule(rule: Rule | None, *, classes: bool) -> None:
    """That a risk can be told for such a target."""
    if isinstance(rule, MaxErrorRate) and classes and rule.tolerance is not None:
        raise InvalidInputError(
            "Expected --risk without --tolerance for classes, which are right or wrong. Got both. Drop --tolerance."
        )
    if isinstance(rule, MaxErrorRate) and not classes and rule.tolerance is None:
        raise InvalidInputError(
            "Expected --tolerance beside --risk for numbers, to know which errors count as wrong. Got --risk alone. "
            "Add --tolerance, in the unit of the target."
        )


def apply_rule(model: Any, rule: Rule) -> list[str]:
    """Give a calibrated model its threshold, and say what deserves a look."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.set_threshold(rule)
        except InvalidInputError as error:
            raise InvalidInputError(_refused(rule, model.calibration_) or str(error)) from None
    ours = [str(each.message).removesuffix(".") for each in caught if issubclass(each.category, OnsphereWarning)]
    if ours and isinstance(rule, Tolerance):
        told = _compared(model.calibration_)
        return [f"--tolerance {rule.epsilon:g} accepts all of {told}; check that it is in the unit of the target"]
    return ours


def _refused(rule: Rule, calibration: Calibration) -> str | None:
    n = len(calibration)
    match rule:
        case Tolerance():
            return (
                f"--tolerance {rule.epsilon:g} accepts none of {_compared(calibration)}. Give it in the unit of "
                "the target, or allow more."
            )
        case AcceptShare():
            return (
                f"--accept {rule.share:g} needs at least {rows_needed(rule.share):,} calibration rows. Got {n:,}. "
                "Accept a smaller share, or fit on more rows."
            )
        case MaxErrorRate():
            return (
                f"--risk {rule.max_error:g} can be kept by no threshold on the {n:,} calibration rows. Allow more "
                "--risk or --tolerance, or fit on more rows."
            )
        case _:
            return None


def _compared(calibration: Calibration) -> str:
    low, high = float(calibration.uncertainty.min()), float(calibration.uncertainty.max())
    return f"the {len(calibration):,} calibration rows, whose uncertainty runs from {low:g} to {high:g}"
