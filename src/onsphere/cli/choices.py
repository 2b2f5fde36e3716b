"""Rules, limits, columns and levels that the options of the command line stand for."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsphere._internal.validation import check_choice, check_share
from onsphere.decision import AcceptShare, MaxErrorRate, Novelty, Tolerance
from onsphere.errors import InvalidInputError
from onsphere.table import Column
from onsphere.table.files import SUFFIXES
from onsphere.table.local_files import COPIED
from onsphere.table.prepare import TASKS, choose_columns

__all__ = [
    "check_no_table",
    "check_options",
    "choose_domain",
    "choose_novelty",
    "choose_rule",
    "find_columns",
    "format_rule",
    "join_kinds",
    "name_options",
    "read_numbers",
]

_Rule = AcceptShare | MaxErrorRate | Tolerance
_MAX_NOVELTY = 0.5


def check_options(task: str, coverage: float, seed: int) -> None:
    """Check the options that `fit` and `compare` share."""
    check_choice("--task", task, TASKS)
    check_share("--coverage", coverage)
    if not 0 <= seed < 2**32:
        raise InvalidInputError(f"Expected --seed from 0 to {2**32 - 1}. Got {seed}.")


def read_numbers(text: str) -> list[float] | None:
    """Return the numbers in a text, separated by commas; None if a part of it is none."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return None


def choose_domain(text: str) -> Any:
    if text in ("auto", "positive", "count"):
        return text
    if text == "none":
        return None
    ends = read_numbers(text)
    if ends is None or len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidInputError(
            f"Expected auto, none, positive, count, or two numbers LOW,HIGH as --domain. Got {text!r}. A percentage is "
            "--domain 0,100; an open end is inf."
        )
    return tuple(ends)


def choose_rule(accept: float | None, tolerance: float | None, risk: float | None) -> _Rule:
    for name, share in (("--accept", accept), ("--risk", risk)):
        if share is not None:
            check_share(name, share)
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise InvalidInputError(
            f"Expected a --tolerance above 0, in the unit of the target. Got {tolerance:g}. Choose the largest error "
            "that you can live with."
        )
    if accept is not None and risk is not None:
        raise InvalidInputError("Expected --accept or --risk. Got both. Choose how rows are to be accepted.")
    if risk is not None:
        return MaxErrorRate(risk, tolerance=tolerance)
    if accept is not None and tolerance is not None:
        raise InvalidInputError("Expected --accept or --tolerance. Got both. Choose how rows are to be accepted.")
    if tolerance is not None:
        return Tolerance(tolerance)
    return AcceptShare() if accept is None else AcceptShare(accept)


def choose_novelty(largest: float | None, false_alarm: float | None, frames: str) -> Novelty | None:
    if largest is None and false_alarm is None:
        return None if frames == "target" else Novelty(max=_MAX_NOVELTY)
    if largest is not None and false_alarm is not None:
        raise InvalidInputError(
            "Expected --max-novelty or --novelty-false-alarm. Got both. Choose how novel rows are to be rejected."
        )
    for option, share, zero in (("--max-novelty", largest, True), ("--novelty-false-alarm", false_alarm, False)):
        if share is not None:
            check_share(option, share, zero=zero)
    novelty = Novelty(max=largest, false_alarm=false_alarm)
    if frames == "target":
        raise InvalidInputError(
            f"Expected no {_format_novelty(novelty)} with --frames target, which knows no novelty. Got both. "
            "Leave one out."
        )
    return novelty


def _format_novelty(novelty: Novelty) -> str:
    """Return the option that stands for a limit on novelty."""
    if novelty.max is not None:
        return f"--max-novelty {novelty.max:g}"
    return f"--novelty-false-alarm {novelty.false_alarm:g}"


def format_rule(rule: _Rule) -> str:
    """Return the options that stand for a rule."""
    match rule:
        case Tolerance():
            return f"--tolerance {rule.epsilon:g}"
        case MaxErrorRate():
            return f"--risk {rule.max_error:g}" + ("" if rule.tolerance is None else f" --tolerance {rule.tolerance:g}")
        case _:
            return f"--accept {rule.share:g}"


@contextmanager
def name_options(rule: _Rule, novelty: Novelty | None) -> Generator[None]:
    """Let an error about a rule name the options that it came from."""
    try:
        yield
    except InvalidInputError as error:
        message = str(error).replace(str(rule), format_rule(rule))
        if novelty is not None:
            message = message.replace(str(novelty), _format_novelty(novelty))
        if isinstance(rule, AcceptShare):
            message = message.replace(f"A coverage of {rule.share:g}", format_rule(rule))
        raise InvalidInputError(message) from None


def join_kinds(numbers: list[str] | None, categories: list[str] | None, dates: list[str] | None) -> dict[str, str]:
    """Return what each column is to be read as."""
    named = [(name, "category") for name in categories or ()]
    for kind, given in (("number", numbers), ("date", dates)):
        for each in given or ():
            name, mark, written = each.partition("=")
            named.append((name, f"{kind}{mark}{written}"))
    kinds = dict(named)
    if len(kinds) < len(named):
        repeated = next(name for name in kinds if sum(each == name for each, _ in named) > 1)
        raise InvalidInputError(
            f"Expected {repeated} once among --number, --category and --date. Got it more than once. Choose one."
        )
    return kinds


def find_columns(
    frame: Any,
    targets: Sequence[str],
    *,
    keys: Sequence[str] = (),
    ignore: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
) -> list[Column]:
    """Return the columns that a second table is to be read by: those of the first; wrong names are found by the fit."""
    named = [name for name in targets if name in frame.columns]
    known = {name: kind for name, kind in (kinds or {}).items() if name in frame.columns}
    return choose_columns(frame, named, keys=keys, ignore=ignore, kinds=known)


def check_no_table(path: Path, example: str) -> None:
    """Check that a file which is no table does not get the name of one, and so take its place."""
    name = Path(path.stem if path.suffix.lower() == ".gz" else path.name)
    if name.suffix.lower() in (*SUFFIXES, *COPIED):
        raise InvalidInputError(
            f"Expected a name that is not that of a table. Got {path}. Choose another name, for example {example}."
        )
