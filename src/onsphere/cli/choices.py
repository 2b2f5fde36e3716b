"""Rules, limits, columns and levels that the options of the command line stand for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsphere._internal.validation import check_number, check_option
from onsphere.decision import AcceptShare, MaxErrorRate, Novelty, Tolerance
from onsphere.errors import InvalidInputError
from onsphere.table import Column
from onsphere.table.files import SUFFIXES
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


def check_options(command: str, task: str, coverage: float, seed: int) -> None:
    check_option(command, "--task", task, TASKS)
    check_number(command, "--coverage", coverage, above=0, below=1)
    check_number(command, "--seed", seed, above=0, below=2**32, closed="left", whole=True)


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
            check_number("fit", name, share, above=0, below=1)
    if tolerance is not None:
        check_number("fit", "--tolerance", tolerance, above=0)
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
    novelty = Novelty(max=largest, false_alarm=false_alarm)
    if largest is not None:
        check_number("fit", "--max-novelty", largest, above=0, below=1, closed="left")
    else:
        check_number("fit", "--novelty-false-alarm", false_alarm, above=0, below=1)
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


def find_columns(frame: Any, targets: list[str], kinds: dict[str, str]) -> list[Column]:
    """Return the columns that a second table is to be read by: those of the first; wrong names are found by the fit."""
    named = [name for name in targets if name in frame.columns]
    return choose_columns(frame, named, kinds={name: kind for name, kind in kinds.items() if name in frame.columns})


def check_no_table(path: Path, example: str) -> None:
    """Check that a file which is no table does not get the name of one, and so take its place."""
    if any(suffix.lower() in (*SUFFIXES, ".xlsx", ".zip") for suffix in path.suffixes[-2:]):
        raise InvalidInputError(
            f"Expected a name that is not that of a table, which would be overwritten. Got {path}. Choose another "
            f"name, for example {example}."
        )
