"""One callable that loads a model once and maps Arrow tables to Arrow tables, for every engine alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.validation import check_number, check_unique_names, missing_extra_error, parameter_error
from onsphere.calibration import Calibration
from onsphere.drift import DriftMonitor
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.export.deployed import open_deployed
from onsphere.table.cells import LARGEST, read_features
from onsphere.table.columns import Column, check_has
from onsphere.table.files import to_frame
from onsphere.table.predict import tabulate_assessment

__all__ = ["Assessor"]

_ROWS_AT_ONCE = 65_536
_ROWS_WATCHED = 4_096  # of these, evenly spread, since watching a row takes as long as a fast model takes to assess it


class Assessor:
    """A model that maps Arrow tables to Arrow tables, with the same schema for every table, also for one without rows.

    It is loaded once, when it is made, and computes in one thread, so that an engine can run one on each core.

    Parameters
    ----------
    path : path
        A model of `onsphere fit --save`, or an ONNX graph of `onsphere export`.
    coverage : float in (0, 1), optional
        Of intervals or sets; by default that of the fit. That of a graph is fixed.
    keep : sequence of str, optional
        The columns of a table that stay beside the answers; by default the keys of the model that the table has. One
        with the name of an answer becomes key_NAME.
    content : bytes, optional
        What the file holds, if it has been read already.

    Attributes
    ----------
    columns : list of Column
        Of the table that the model was fitted on.
    coverage : float
    answer_schema : pyarrow.Schema
        Of the answers, without the columns that are kept.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, pandas as pd, pyarrow as pa
    >>> from onsphere.table import fit_table
    >>> rows = pd.DataFrame({"size": np.arange(60.0), "price": np.sqrt(np.arange(60.0))})
    >>> path = Path(tempfile.mkdtemp()) / "model.onsphere"
    >>> found = fit_table(rows, ["price"], backbone="kernel")
    >>> path = found.model.save(path, summary=found.summary())
    >>> assessor = Assessor(path, keep=["size"])
    >>> assessor(pa.table({"size": [1.0, 2.0]})).column_names[:3]
    ['size', 'value', 'uncertainty']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        coverage: float | None = None,
        keep: Sequence[str] | None = None,
        content: bytes | None = None,
    ) -> None:
        from threadpoolctl import ThreadpoolController

        try:
            import pyarrow as pa
        except ImportError:
            raise missing_extra_error("Assessor", "pyarrow", "scale") from None
        if coverage is not None:
            check_number("Assessor", "coverage", coverage, above=0, below=1)
        names: Any = keep or ()
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise parameter_error("Assessor", "keep", "a list of names of columns", keep)
        check_unique_names("keep", names)
        self._model = open_deployed(path, content)
        facts = self._model.facts
        if not facts.is_table:
            raise InvalidInputError(
                f"Expected a model that was fitted on a table. Got {path}, which does not say what its columns hold. "
                "Fit it with `onsphere fit`, or load it in Python."
            )
        self.columns: list[Column] = list(facts.columns)
        self.keep = None if keep is None else list(keep)
        self.coverage: float = coverage or facts.coverage
        features = [column for column in self.columns if column.is_feature]
        self._features = [column.name for column in features]
        self._are_numbers = all(column.kind in ("number", "boolean") for column in features)
        self._threads = ThreadpoolController()
        empty = pa.table({name: pa.nulls(1, pa.string()) for name in self._features})
        self.answer_schema = self._answer(self._read(empty, "the table", 0)).schema

    def __call__(
        self, table: Any, *, source: str = "the table", first_row: int = 0, monitor: DriftMonitor | None = None
    ) -> Any:
        """Assess each row of an Arrow table.

        Parameters
        ----------
        table : pyarrow.Table
        source : str, optional
            How errors call the table.
        first_row : int, default 0
            The number that errors give its first row.
        monitor : DriftMonitor, optional
            One of `make_monitor`, which is to see the rows as well.

        Returns
        -------
        pyarrow.Table
            The columns that are kept, then the answers; the rows in their order.
        """
        import pyarrow as pa

        if not isinstance(table, pa.Table):
            raise InvalidTypeError(
                f"Expected a pyarrow.Table. Got {type(table).__name__}. Convert it with pyarrow.Table.from_pandas or "
                "pyarrow.Table.from_batches."
            )
        check_unique_names(source, table.column_names)
        kept = self.list_kept(table.column_names)
        check_has(source, table.column_names, [*self._features, *kept])
        features, parts = table.select(self._features), list[Any]()
        for start in range(0, table.num_rows, _ROWS_AT_ONCE):
            read = self._read(features.slice(start, _ROWS_AT_ONCE), source, first_row + start)
            parts.append(self._answer(read, monitor))
        if len(parts) != 1:  # otherwise this would copy all of it
            parts = [pa.concat_tables([self.answer_schema.empty_table(), *parts]).combine_chunks()]
        [answers] = parts
        for place, name in enumerate(kept):
            answers = answers.add_column(place, table.schema.field(name).with_name(self.rename_kept(name)), table[name])
        return answers

    def list_kept(self, names: Sequence[str]) -> list[str]:
        """Return the columns that are kept of a table with these columns."""
        if self.keep is not None:
            return self.keep
        return [column.name for column in self.columns if column.kind == "key" and column.name in names]

    def rename_kept(self, name: str) -> str:
        """Return the name that a column which is kept has beside the answers."""
        return f"key_{name}" if name in self.answer_schema.names else name

    def make_monitor(self) -> DriftMonitor | None:
        """Return a drift monitor that has seen the calibration rows; None after a cross-validation.

        The scores of the latter come from other models, so that a monitor would not keep its promise.
        """
        facts = self._model.facts
        if facts.calibration is None or facts.calibrated_by != "held-out rows":
            return None
        return DriftMonitor(Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed))

    def _read(self, table: Any, source: str, first_row: int) -> Any:
        """Return the features as `read_features` does; plain numbers in one step, since that reads cells many times."""
        if self._are_numbers:
            numbers = _read_plain_numbers(table)
            if numbers is not None:
                import pandas as pd

                index = pd.RangeIndex(first_row, first_row + table.num_rows)
                return pd.DataFrame(numbers.T, index, self._features, copy=False)
        frame = to_frame(table)
        frame.index += first_row
        return read_features(frame, self.columns, source=source)

    def _answer(self, features: Any, monitor: DriftMonitor | None = None) -> Any:
        import pyarrow as pa

        with self._threads.limit(limits=1), np.errstate(all="ignore"):  # rows far away may overflow
            result = self._model.assess(features, coverage=self.coverage)
        if monitor is not None:
            monitor.update(result[:: math.ceil(len(result) / _ROWS_WATCHED)])
        answers = tabulate_assessment(result, self._model.facts.targets)
        if result.reason is not None:
            answers["reason"] = _encode_reasons(result.reason, result.accepted)
        return pa.table(answers)


def _read_plain_numbers(table: Any) -> Any:
    """Return columns of finite numbers as float64, shape (p, n); None if any is something else, or has gaps."""
    from pyarrow import types

    if not all(types.is_integer(column.type) or types.is_floating(column.type) for column in table.columns):
        return None
    if any(column.null_count for column in table.columns):
        return None
    numbers = np.array([column.to_numpy() for column in table.columns], dtype=np.float64)
    return numbers if np.abs(numbers).max() <= LARGEST else None  # NaN is not


def _encode_reasons(reasons: Any, accepted: Any) -> Any:
    """Return the reasons as Arrow text, each of the few different ones converted once and not in every row."""
    import pyarrow as pa

    codes, words = np.zeros(len(reasons), dtype=np.int8), [""]
    left = np.flatnonzero(~accepted)
    while len(left):
        word = reasons[left[0]]
        same = reasons[left] == word
        codes[left[same]] = len(words)
        words.append(str(word))
        left = left[~same]
    return pa.DictionaryArray.from_arrays(codes, words).cast(pa.string())
