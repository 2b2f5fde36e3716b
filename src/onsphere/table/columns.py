"""Find out what the columns of a table hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from onsphere._internal.validation import check_unique_names, is_frame
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.table.cells import EPOCHS, import_pandas, parse_as, parse_dates
from onsphere.table.number_styles import (
    NumberStyle,
    find_doubt,
    find_number_style,
    make_number_style,
    parse_styled_numbers,
    share_in_brackets,
)

__all__ = [
    "KINDS",
    "Column",
    "check_any_feature",
    "check_frame",
    "check_has",
    "describe_column",
    "describe_columns",
    "force_kind",
    "is_column",
    "is_missing_word",
    "join_names",
    "parse_column",
    "select_columns",
    "suggest_name",
]

# The first four are learned from; keys name rows, and are written next to predictions.
KINDS = ("number", "boolean", "category", "date", "key", "unused")

# The last three are the names that pandas and our CSV reader give to an index without a name.
_KEY_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|index|nr|no|row)$|^(__index_level_\d+__|unnamed: 0|column_1)$", re.IGNORECASE
)
_DAYS = (
    *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_DATE_FORMATS = ("ISO8601", *(f"{day}{time}" for day in _DAYS for time in _TIMES), "%H:%M", "%H:%M:%S", "%I:%M %p")
_TIME_NAME = re.compile(r"date|time|stamp|epoch|created|updated|(^|_)(ts|at|day|when)$", re.IGNORECASE)
_MOSTLY = 0.95  # the share of values that decides what a column of text holds
_N_SAMPLED, _N_GLANCED = 10_000, 100  # values, to find out how dates are written
# Words for a missing value, beside those that a CSV reader knows.
_MISSING_WORDS = {
    *("unknown", "missing", "not available", "not known", "none", "n.a.", "n/a", "na", "nan", "null", "tbd", "nd"),
    *("n.d.", "no data", "undefined", "-", "--", "---", "–", "—", "?", ".", "..", "…", "*", "x"),
}
_CODE = r"0\d+"  # a number would lose its first digit


@dataclass(frozen=True)
class Column:
    """A column: its name, what it holds, and how it is written.

    Attributes
    ----------
    name : str
    kind : {"number", "boolean", "category", "date", "key", "unused"}
    note : str
        Why it was taken for this kind, where that needs saying.
    written_as_text : bool
        Whether numbers or booleans came as text.
    date_format : str or None
        The format of dates that came as text.
    mixed : bool
        Whether there was other text among numbers or dates at fit. If so, such text is read as missing; if not, it is
        an error.
    thousands, unit : str
        How numbers that came as text are written: see `NumberStyle`.
    """

    name: str
    kind: str
    note: str = ""
    written_as_text: bool = False
    date_format: str | None = None
    mixed: bool = False
    thousands: str = ""
    unit: str = ""

    @property
    def is_feature(self) -> bool:
        """Return whether it is learned from."""
        return self.kind in KINDS[:4]

    def explain(self) -> str:
        """Return the note in brackets, to follow the kind; "" without one."""
        return f" ({self.note})" if self.note else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, without a style of numbers where there is none, as older files have it."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("thousands", "unit")}


def is_column(column: Any) -> bool:
    """Return whether it is a Column with valid fields, whoever wrote it."""
    return (
        isinstance(column, Column)
        and column.kind in KINDS
        and type(column.name) is type(column.note) is str
        and type(column.written_as_text) is type(column.mixed) is bool
        and type(column.thousands) is type(column.unit) is str
        and _is_date_format(column.date_format)
    )


def parse_column(description: dict[str, Any]) -> Column | None:
    """Return the column that a dict describes, whoever wrote it, or None if it does not describe one."""
    try:
        column = Column(**description)
    except TypeError:
        return None
    return column if is_column(column) else None


def _is_date_format(date_format: Any) -> bool:
    if not isinstance(date_format, str) or date_format in EPOCHS:
        return date_format is None or date_format in EPOCHS
    try:
        parse_dates(import_pandas().Series(["no date"]), date_format)
    except (ValueError, re.error):
        return False
    return True


def describe_columns(frame: Any) -> list[Column]:
    """Describe what each column of a pandas DataFrame holds.

    Columns that cannot help are unused: constant ones, empty ones, free text. Columns that name rows are keys: text
    that is different in every row, and whole numbers that are different too and count up, or have a name like id.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"id": [7, 3, 5], "day": ["2024-01-31", "2024-02-01", None], "site": ["x", "x", "x"]})
    >>> [(column.kind, column.note) for column in describe_columns(frame)]
    [('key', 'different in every row'), ('date', ''), ('unused', 'constant')]
    """
    check_frame(frame)
    return [describe_column(name, frame[name]) for name in frame.columns]


def check_frame(frame: Any) -> None:
    """Check that this is a table whose columns have different names, all of them text."""
    if not is_frame(frame):
        raise InvalidTypeError(f"Expected a DataFrame. Got {type(frame).__name__}. Pass pandas.DataFrame(rows).")
    check_unique_names("the table", frame.columns)
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"Expected a table whose columns have text for names. Got {name!r}. Pass frame.rename(columns=str)."
            )


def select_columns(source: str, names: Sequence[str], columns: Sequence[Column]) -> list[Column]:
    """Return those of the columns that a table has; it must have all that are learned from, and no name twice."""
    check_unique_names(source, names)
    check_has(source, names, [column.name for column in columns if column.is_feature])
    return [column for column in columns if column.name in set(names)]


def check_has(source: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Check that a table has the columns that are needed."""
    missing = [name for name in needed if name not in set(names)]
    if missing:
        others = [name for name in names if name not in set(needed)]
        delimiter = " If the CSV file has them, pass its delimiter, which was not found." if len(names) == 1 else ""
        raise InvalidInputError(
            f"Expected the column(s) {join_names(missing)} in {source}. Got {join_names(names)}."
            f"{suggest_name(missing[0], others)} Pass a table that has them all.{delimiter}"
        )


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Return a question whether a name that is not there was meant to be one that is much like it; "" without one."""
    folded = {each.strip().lower(): each for each in names}
    near = get_close_matches(name.strip().lower(), list(folded), n=1)
    return f" Did you mean {folded[near[0]]}?" if near else ""


def check_any_feature(columns: Sequence[Column]) -> None:
    """Check that there is a column to learn from."""
    if not any(column.is_feature for column in columns):
        found = join_names([f"{column.name} ({column.kind}, {column.note})" for column in columns])
        raise InvalidInputError(
            f"Expected a column to learn from. Got {found or 'no columns'}. Add columns whose values differ."
        )


def join_names(names: Sequence[str]) -> str:
    """Return names as a list in a sentence, only the first of them where there are many."""
    return ", ".join(names[:20]) + (f" … ({len(names):,} in all)" if len(names) > 20 else "")


def describe_column(name: str, values: Any) -> Column:
    """Describe what one column holds."""
    present = values.dropna()
    if len(present) == 0:
        return Column(name, "unused", "every value is missing")
    try:
        n_different = present.nunique()
    except TypeError:
        return Column(name, "unused", f"holds a {type(present.iloc[0]).__name__} in each row")
    if n_different == 1 and 1 < len(values) == len(present):
        return Column(name, "unused", "constant")
    match values.dtype.kind:
        case "b":
            return Column(name, "boolean")
        case "M":
            return Column(name, "date")
        case "i" | "u" if n_different == len(values) and (_KEY_NAME.search(name) or _counts_up(values)):
            return Column(name, "key", "different in every row")
        case "i" | "u" | "f":
            return _describe_numbers(name, present)
        case _ if str(values.dtype) == "category":
            return Column(name, "category")
        case _:
            return _describe_text(name, present.astype(str), n_different, len(values))


def force_kind(name: str, values: Any, asked: str) -> Column:
    """Describe a column as the kind that a user says it has; other text in it is read as missing.

    Parameters
    ----------
    name : str
    values : pandas Series
    asked : str
        "number", "category" or "date"; by default numbers and dates are written as most of them are. "date=%d.%m.%Y" is
        a format of dates, "number=," or "number=." the decimal mark, and "number=M" a word that multiplies.
    """
    present = values.dropna()
    kind, _, written = asked.partition("=")
    if kind == "category":
        return Column(name, "category", "as asked")
    if values.dtype.kind == "M":
        return Column(name, "date", "as asked")
    if kind == "number":
        if values.dtype.kind in "biuf":
            return Column(name, "number", "as asked")
        texts = present.astype(str)
        style = make_number_style(texts, written) if written else find_number_style(texts) or NumberStyle()
        if style is None:
            raise InvalidInputError(
                f"Expected the decimal mark of the numbers in {name}, a comma or a point, or a word such as M. Got "
                f"{written!r}. Choose one of them."
            )
        column = _describe_styled(name, style)
        doubt = "" if written else find_doubt(texts, style, name)
        other = texts[parse_as(column, texts).isna()]
        _check_any_read(name, "numbers", other, texts)
        note = _join("as asked", column.note, doubt, _note_other_text(other))
        return replace(column, note=note, mixed=len(other) > 0)
    texts = present.astype(str)
    if values.dtype.kind in "iuf":
        texts = present.map("{:.0f}".format)
        written = written or _check_number_dates(name, present)
        if written in EPOCHS:
            return Column(name, "date", f"as asked; {EPOCHS[written]} since 1970", date_format=written)
    chosen = written or _find_date_format(texts)[0]
    if not _is_date_format(chosen):
        raise InvalidInputError(
            f"Expected a format such as %d.%m.%Y for the dates in {name}. Got {chosen!r}. See the formats of strftime."
        )
    other = texts[parse_dates(texts, chosen).isna()]
    _check_any_read(name, "dates", other, texts)
    note = _join("as asked", f"dates read as {chosen}", _note_other_text(other))
    return Column(name, "date", note, date_format=chosen, mixed=len(other) > 0)


def _check_any_read(name: str, what: str, other: Any, texts: Any) -> None:
    if len(other) == len(texts):
        raise InvalidInputError(
            f"Expected {what} in the column {name}, as asked. Got text such as {other.iloc[0]!r} in every row. Let it "
            "be a category."
        )


def _check_number_dates(name: str, present: Any) -> str:
    """Return how numbers stand for dates, as a user says they do, or raise an error if that is not certain."""
    found = _find_number_dates(present)
    if found is None:
        raise InvalidInputError(
            f"Expected to see how the numbers in {name} stand for dates. Got numbers such as {present.iloc[0]:g}, "
            f"which are not dates like 20240131, nor seconds since 1970. Say how they are written: {name}=%Y, or, for "
            f"any seconds, {name}='epoch s'."
        )
    return found


def _describe_numbers(name: str, present: Any) -> Column:
    found = _find_number_dates(present)
    if found is None:
        return Column(name, "number")
    meaning = f"{EPOCHS[found]} since 1970" if found in EPOCHS else f"dates read as {found}"
    if _TIME_NAME.search(name):
        return Column(name, "date", meaning, date_format=found)
    return Column(name, "number", f"could be {meaning}; say so if it is a date")


def _find_number_dates(present: Any) -> str | None:
    """Return how whole numbers stand for dates, if all lie between 2000 and 2040, or are like 20240131 since 1900."""
    numbers = np.asarray(present, dtype=np.float64)
    if bool(((numbers >= 19_000_101) & (numbers <= 21_001_231) & (numbers == np.floor(numbers))).all()):
        texts = import_pandas().Series([f"{number:.0f}" for number in np.unique(numbers)])
        return "%Y%m%d" if len(texts) > 1 and bool(parse_dates(texts, "%Y%m%d").notna().all()) else None
    is_whole = bool((numbers == np.floor(numbers)).all()) and len(np.unique(numbers)) > 1
    sizes = {"epoch s": 1.0, "epoch ms": 1e3}
    fits = (
        name for name, size in sizes.items() if bool(((numbers / size >= 9.46e8) & (numbers / size <= 2.21e9)).all())
    )
    return next(fits, None) if is_whole else None


def _counts_up(values: Any) -> bool:
    steps = np.diff(np.asarray(values, dtype=np.float64))
    return len(steps) > 1 and bool((steps == steps[0]).all())


def _describe_text(name: str, present: Any, n_different: int, n_rows: int) -> Column:
    if set(present.str.lower()) <= {"true", "false"}:
        return Column(name, "boolean", written_as_text=True)
    different = n_different == n_rows > 2
    is_key = different and _KEY_NAME.search(name)
    if present.str.fullmatch(_CODE).any() and present.str.fullmatch(r"\d+").mean() >= _MOSTLY:
        kind = "key" if different else "category"
        return Column(name, kind, "codes that begin with 0; say so if they are numbers")
    column = None if is_key else _find_numbers(name, present) or _find_dates(name, present)
    if column is not None:
        return column
    if different:
        return Column(name, "key", "different in every row")
    note = _note_numbers(present)
    if n_different > max(50, n_rows // 5):
        return Column(name, "unused", _join(f"text with {n_different:,} different values", note))
    return Column(name, "category", note)


def is_missing_word(texts: Any) -> Any:
    """Return which texts of a pandas Series are words for a missing value."""
    return texts.str.strip().str.lower().isin(_MISSING_WORDS)


def _find_numbers(name: str, present: Any) -> Column | None:
    """Return the column if it surely holds numbers, with words for missing values or little other text among them."""
    is_word = is_missing_word(present)
    texts = present[~is_word]
    in_brackets = share_in_brackets(texts)
    if len(texts) < len(present) / 2 or in_brackets >= _MOSTLY:
        return None
    style = find_number_style(texts)
    tried = [NumberStyle(), *([] if style is None else [style])]
    tried.sort(key=lambda each: not each.thousands)  # 1.234 can be read as plain too, even where it is thousands
    # The one that reads the most; a few texts with a unit are numbers too.
    unread = [parse_as(_describe_styled(name, each), texts).isna() for each in tried]
    best = min(range(len(tried)), key=lambda place: int(unread[place].sum()))
    other = texts[unread[best]]
    if not _is_few(other, texts):
        return None
    column, left = _describe_styled(name, tried[best]), import_pandas().concat([present[is_word], other])
    signs = "numbers in brackets are negative" if in_brackets else ""
    notes = [tried[best].describe(), signs, find_doubt(texts, tried[best], name), _note_other_text(left)]
    return replace(column, note=_join(*notes) or column.note, mixed=len(left) > 0)


def _describe_styled(name: str, style: NumberStyle) -> Column:
    note = style.describe() or "numbers written as text"
    return Column(name, "number", note, written_as_text=True, thousands=style.thousands, unit=style.unit)


def _note_numbers(present: Any) -> str:
    """Return a note on a column that might be numbers after all."""
    style = find_number_style(present) or NumberStyle()
    share = float(parse_styled_numbers(present, style).notna().mean())
    return f"{share:.0%} of the values are numbers; say so if it is a number" if share >= 0.5 else ""


def _find_dates(name: str, present: Any) -> Column | None:
    best, other_order = _find_date_format(present)
    if other_order is not None and _is_in_order(present, other_order) and not _is_in_order(present, best):
        best, other_order = other_order, None  # which file is in an order by chance?
    other = present[parse_dates(present, best).isna()]
    if not _is_few(other, present):
        return None
    order = (
        ""
        if other_order is None
        else f", {'month' if best.startswith('%m') else 'day'} first; it could be {other_order}"
    )
    notes = ["" if best == "ISO8601" else f"dates read as {best}{order}", _note_other_text(other)]
    return Column(name, "date", _join(*notes), date_format=best, mixed=len(other) > 0)


def _is_in_order(texts: Any, date_format: str) -> bool:
    moments = parse_dates(texts, date_format).dropna()
    return len(moments) > 2 and bool(moments.is_monotonic_increasing or moments.is_monotonic_decreasing)


def _find_date_format(present: Any) -> tuple[str, str | None]:
    """Return the format that most dates have, and the one with day and month exchanged if it fits as well."""
    few, some = (present.sample(min(len(present), size), random_state=0) for size in (_N_GLANCED, _N_SAMPLED))
    glances = {each: parse_dates(few, each).notna().mean() for each in _DATE_FORMATS}
    likely = [each for each in _DATE_FORMATS if glances[each] >= 0.5 * max(glances.values())]
    shares = {each: parse_dates(some, each).notna().mean() for each in likely}
    best = max(likely, key=lambda each: shares[each])
    swapped = best.translate(str.maketrans("md", "dm"))
    return best, swapped if swapped != best and shares.get(swapped) == shares[best] > 0 else None


def _is_few(other: Any, values: Any) -> bool:
    return len(other) <= (1 - _MOSTLY) * len(values)


def _note_other_text(other: Any) -> str:
    return f"text such as {other.iloc[0]!r} is read as missing" if len(other) else ""


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
