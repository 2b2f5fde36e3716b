"""The one result type: everything that one pass over a model gives for each row."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError, InvalidTypeError, MissingExtraError

__all__ = ["Assessment"]

_N_SHOWN = 10  # rows in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class Assessment:
    """The prediction of each row, and how far to trust it.

    Attributes that a model cannot give (no anchor, not yet calibrated) are None.

    Attributes
    ----------
    value : array of shape (n,) or (n, D)
        The prediction.
    uncertainty : array of shape (n,)
        The chosen score; higher means less trustworthy.
    direction_norm : array of shape (n,) or None
        ‖d‖: below 1 the target is ambiguous, above 1 the model extrapolates.
    magnitude : array of shape (n,) or None
        R, in standardised units.
    sigma : array like value, or None
        Standard deviation of the whole error, in the unit of the target: of the noise and, where a row is novel, of the
        target itself. Intervals are multiples of it.
    noise : array like value, or of shape (n,) for classes, or None
        How far similar rows disagree: the standard deviation of errors among them, or for classes 1 − ‖d‖. More rows
        like this one do not help; better measurements do.
    novelty : array of shape (n,) or None
        How unlike all training rows a row is: 0 for 98 % of rows like them, 1 for one that has nothing in common with
        any. More rows like this one help.
    novelty_p_value : array of shape (n,) or None
        The share of calibration rows that were at least as novel.
    missed : array of shape (n,) or None
        How far the landmarks of the training rows fall short of each row, in [0, 1]. Novelty and its p-value follow
        from it, and a `DriftMonitor` watches it.
    anchor_residual : array of shape (n,) or None
        The error that can be seen without a label.
    lower, upper : arrays like value, or None
        Ends of the conformal interval.
    confidence : array of shape (n,) or None
        In [0, 1]: the share of calibration rows that were at least as uncertain.
    expected_error : array of shape (n,) or None
        The mean error of calibration rows as uncertain as this.
    accepted : bool array of shape (n,) or None
        Whether the uncertainty is at or below the threshold, and the novelty too if that has one.
    reason : str array of shape (n,) or None
        Why a row is not accepted: "uncertain", "novel" or "uncertain and novel"; "" if it is.
    probabilities : array of shape (n, C) or None
        Of each class.
    prediction_set : bool array of shape (n, C) or None
        Which classes belong to the conformal set.
    output_names : tuple of str, or None
        Names of the outputs or, for probabilities, of the classes.
    index : pandas Index or None
        The labels of the rows, if they came in a DataFrame; `to_frame` keeps them.

    Examples
    --------
    >>> import numpy as np
    >>> result = Assessment(value=np.array([1.0]), uncertainty=np.array([0.2]),
    ...                     direction_norm=np.array([0.9]), magnitude=np.array([2.0]))
    >>> result.to_dict()
    {'value': [1.0], 'uncertainty': [0.2], 'direction_norm': [0.9], 'magnitude': [2.0]}
    """

    value: NDArray[Any]
    uncertainty: NDArray[np.float64]
    direction_norm: NDArray[np.float64] | None = None
    magnitude: NDArray[np.float64] | None = None
    sigma: NDArray[np.float64] | None = None
    noise: NDArray[np.float64] | None = None
    novelty: NDArray[np.float64] | None = None
    novelty_p_value: NDArray[np.float64] | None = None
    missed: NDArray[np.float64] | None = None
    anchor_residual: NDArray[np.float64] | None = None
    lower: NDArray[np.float64] | None = None
    upper: NDArray[np.float64] | None = None
    confidence: NDArray[np.float64] | None = None
    expected_error: NDArray[np.float64] | None = None
    accepted: NDArray[np.bool_] | None = None
    reason: NDArray[np.str_] | None = None
    probabilities: NDArray[np.float64] | None = None
    prediction_set: NDArray[np.bool_] | None = None
    output_names: tuple[str, ...] | None = None
    index: Any = None

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, rows: Any) -> Assessment:
        """Return the assessment of some rows: an index (one row), a slice, a mask or a list of indices."""
        if isinstance(rows, int | np.integer) and not -len(self) <= rows < len(self):  # where a loop over rows ends
            raise IndexError(f"Expected a row of an Assessment of {len(self)} rows. Got {rows}.")
        try:
            if rows is None or isinstance(rows, bool | np.bool_ | tuple):
                raise IndexError("it chooses no rows")
            mask: Any = rows
            if hasattr(mask, "iloc"):  # of pandas
                if self.index is not None and not mask.index.equals(self.index):
                    raise IndexError("its index is not that of the rows. Pass mask.reindex(result.index)")
                rows = mask.to_numpy()
            chosen = np.atleast_1d(np.arange(len(self))[rows])
        except IndexError as error:
            raise InvalidTypeError(
                f"Expected rows of an Assessment of {len(self)} rows: an index, a slice, a mask or a list of indices. "
                f"Got {reprlib.repr(rows)}: {error}. For one output of several, index a field: result.value[:, 0]."
            ) from None
        index = None if self.index is None else self.index[chosen]
        return replace(self, index=index, **{name: values[chosen] for name, values in self._arrays()})

    def __repr__(self) -> str:
        """Return the number of rows, and the first values of each attribute."""
        with np.printoptions(precision=4, threshold=3, edgeitems=2):
            parts = [f"{name}={values}" for name, values in self._arrays() if values.ndim == 1]
            parts += [f"{name}: shape {values.shape}" for name, values in self._arrays() if values.ndim > 1]
        return f"Assessment({len(self)} rows, {', '.join(parts)})"

    def to_dict(self) -> dict[str, list[Any]]:
        """Return plain lists under the names of the attributes, without those that are None."""
        names = {} if self.output_names is None else {"output_names": list(self.output_names)}
        return {name: values.tolist() for name, values in self._arrays()} | names

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per prediction; an array of several columns becomes as many."""
        try:
            import pandas as pd
        except ImportError:
            raise missing_extra_error("Assessment.to_frame", "pandas", "report") from None
        return pd.DataFrame(self._list_columns(), index=self.index)

    def to_polars(self) -> Any:
        """Return a polars DataFrame with the same columns as `to_frame`, without an index."""
        try:
            import polars
        except ImportError:
            raise MissingExtraError("Assessment.to_polars needs polars. Install it with: pip install polars") from None
        return polars.DataFrame(self._list_columns())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the columns of `to_frame` as an Arrow stream, which DuckDB, polars and others read. Needs pyarrow."""
        try:
            import pyarrow
        except ImportError:
            raise missing_extra_error("An Arrow stream of an Assessment", "pyarrow", "cli") from None
        return pyarrow.table(self._list_columns()).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """Return the first rows as a table for notebooks."""
        try:
            frame = self.to_frame()
        except (MissingExtraError, InvalidInputError):
            return f"<pre>{html.escape(repr(self))}</pre>"
        return f"<p>Assessment of {len(self):,} rows</p>" + frame.head(_N_SHOWN).to_html(float_format="{:.4g}".format)

    def _list_columns(self) -> dict[str, NDArray[Any]]:
        """Return each array by name; one with several columns becomes as many."""
        if self.uncertainty.ndim > 1:
            raise InvalidInputError(
                f"Expected one row per prediction, for a table. Got maps of {self.uncertainty.shape[1:]} pixels. Take "
                "the fields themselves, such as result.value."
            )
        columns: dict[str, NDArray[Any]] = {}
        for name, values in self._arrays():
            if values.ndim == 1:
                columns[name] = values
            else:
                names = self.output_names or [str(index) for index in range(values.shape[1])]
                columns |= {f"{name}_{output}": column for output, column in zip(names, values.T, strict=True)}
        return columns

    def _arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, np.ndarray):
                yield field.name, values
