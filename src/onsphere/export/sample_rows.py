"""Rows to compare on where nobody gives any: drawn from what a model file says of its columns, each by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onsphere._internal.validation import Floats
from onsphere.drift.reference import MISSING, OTHER, Reference, is_reference
from onsphere.errors import InvalidInputError
from onsphere.table.columns import pandas

__all__ = ["DRAWN", "drawn_rows"]

DRAWN = "rows drawn column by column from what the model file says of its columns, some values missing or unknown"

_N_ROWS = 1_000
_SHARE = 0.05  # of values that are missing, and of categories that are unknown, whatever the file says
_DATES = (-62_135_596_800.0, 253_402_300_799.0)  # the years 1 to 9999, in seconds since 1970


def drawn_rows(described: list[dict[str, Any]], summary: dict[str, Any] | None) -> Any:
    """A table of rows as there might be, were columns independent of each other; the same ones every time."""
    kinds = {each["column"]["name"]: each["kind"] for each in described if "column" in each}
    reference: Any = (summary or {}).get("reference")
    if not kinds or not is_reference(reference) or not all(_says(reference, *column) for column in kinds.items()):
        raise InvalidInputError(
            "Expected rows to compare the graph and the model on. Got none, and nothing that says what the columns "
            "hold. Pass real rows (X=, on the command line --rows), or summary= of fit_table."
        )
    rng = np.random.default_rng(0)
    return pandas().DataFrame({name: _drawn(kind, reference[name], rng) for name, kind in kinds.items()})


def _says(reference: Reference, name: str, kind: str) -> bool:
    return name in reference and ("shares" in reference[name]) == (kind == "category")


def _drawn(kind: str, summary: dict[str, Any], rng: np.random.Generator) -> Any:
    match kind:
        case "category":
            return _categories(summary["shares"], rng)
        case "date":
            return _dates(_numbers(summary["sample"], rng))
        case _:
            return _numbers(summary["sample"], rng)


def _numbers(sample: list[float | None], rng: np.random.Generator) -> Floats:
    """Anywhere between neighbours of the sample, but whole where all of it is."""
    known = np.sort([number for number in sample if number is not None])
    if len(known) == 0:
        return np.full(_N_ROWS, math.nan)
    places = rng.uniform(0, len(known) - 1, _N_ROWS)
    numbers = 2 * np.interp(places, np.arange(len(known)), known / 2)  # halves differ by no more than a float can hold
    numbers = np.clip(numbers, known[0], known[-1])
    numbers = np.round(numbers) if np.array_equal(known, np.round(known)) else numbers
    return np.where(rng.random(_N_ROWS) < max(_SHARE, 1.0 - len(known) / len(sample)), math.nan, numbers)


def _dates(seconds: Floats) -> Any:
    moments = (np.nan_to_num(np.clip(seconds, *_DATES)) * 1e6).astype(np.int64).astype("datetime64[us]")
    return np.where(np.isnan(seconds), np.datetime64("NaT"), moments)


def _categories(shares: dict[str, float], rng: np.random.Generator) -> Any:
    rare = max(_SHARE, 1.0 - sum(shares.values()))
    weights = shares | {MISSING: max(_SHARE, shares.get(MISSING, 0.0)), OTHER: rare}
    texts = np.array([*weights], dtype=object)
    drawn = texts[rng.choice(len(texts), _N_ROWS, p=np.array([*weights.values()]) / sum(weights.values()))]
    drawn[drawn == MISSING] = None
    return drawn
