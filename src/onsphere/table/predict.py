"""Assess a file in batches, so that memory stays the same however long the file is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.validation import Floats, check_number, check_option
from onsphere.calibration import TAILS
from onsphere.calibration.distribution import check_levels
from onsphere.errors import InvalidInputError
from onsphere.models import HCMRegressor
from onsphere.models.base import REASONS
from onsphere.table.cells import read_features
from onsphere.table.columns import Column
from onsphere.table.encoder import OrdinaryValues, UnusualValues, describe_rows
from onsphere.table.files import SUFFIXES, read_batches, to_frame

__all__ = [
    "KEPT",
    "FilePrediction",
    "check_suffix",
    "open_writer",
    "predict_file",
    "read_feature_batches",
    "tabulate_assessment",
]


KEPT = ("keys", "all")


class FilePrediction(NamedTuple):
    """The result of `predict_file`.

    `counts` says how many rows there were, how many were accepted and, with a limit on novelty, how many were rejected
    as uncertain, as novel, and as both; `unusual` which columns have values that no training row had.
    """

    counts: dict[str, int]
    unusual: list[UnusualValues]


def predict_file(
    model: Any,
    columns: Sequence[Column],
    path: str | Path,
    out: str | Path | BinaryIO,
    *,
    targets: Sequence[str] = ("value",),
    coverage: float = 0.9,
    tails: str = "symmetric",
    quantiles: Sequence[float] = (),
    delimiter: str | None = None,
    ordinary: OrdinaryValues | None = None,
    keep: str = "keys",
    probabilities: bool = False,
    explain: bool = False,
    on_progress: Callable[[int], None] = lambda n_rows: None,
) -> FilePrediction:
    """Assess every row of a file.

    The output has the key columns of the input (where there are none, the number of each row, counted from 0), then
    value, uncertainty, noise, novelty and novelty_p_value, lower and upper (for classes the set, its members separated
    by |), confidence, accepted and the reason if a row is not; as far as the model gives them; then the quantiles that
    are asked for, as quantile_0.05 and so on. A key with the name of one of these is written as key_NAME.

    Parameters
    ----------
    model : fitted model of `fit_table`
    columns : sequence of Column
        The columns of the table that it was fitted on.
    path : path
    out : path or file open for bytes
        A named file appears when all rows are written; an open file gets CSV, batch by batch.
    targets : sequence of str
        With several, value, noise, lower and upper become value_NAME and so on; lower and upper hold all targets of a
        row at once, and lower_alone_NAME and upper_alone_NAME each by itself.
    coverage : float in (0, 1), default 0.9
    tails : {"symmetric", "equal", "shortest"}
        Where the misses of intervals lie; see `PredictiveDistribution.interval`.
    quantiles : sequence of float in (0, 1), optional
        Levels of quantiles to write, of a model that predicts numbers.
    delimiter : str, optional
        The delimiter of a CSV file.
    ordinary : OrdinaryValues, optional
        The values that columns had in training, to count what lies beyond them.
    keep : {"keys", "all"}
        Which columns of the input to write: those that name rows, or all that the model was fitted on, and the targets.
    probabilities : bool, default False
        Write the probability of every class, as probability_NAME, and not that of the likeliest one alone.
    explain : bool, default False
        Write what no training row had about a row, as unusual, and for a rejected row the columns whose ordinary values
        would make it least uncertain, as driven_by; needs `ordinary`.
    on_progress : function of an int, optional
        Called after each batch with the number of rows done.
    """
    check_number("predict_file", "coverage", coverage, above=0, below=1)
    check_option("predict_file", "tails", tails, TAILS)
    levels = check_levels("predict_file", quantiles) if len(quantiles) else []
    if len(levels) and not isinstance(model, HCMRegressor):
        raise InvalidInputError("Expected a model that predicts numbers, for quantiles. Got one that predicts classes.")
    check_option("predict_file", "keep", keep, KEPT)
    if explain and ordinary is None:
        raise InvalidInputError(
            "Expected a model file that keeps a summary of its training rows, to explain answers. Got one without. Fit "
            "the model again."
        )
    wanted = [column for column in columns if column.is_feature or column.kind == "key"]
    if keep == "all":  # Others are copied as they are, like keys.
        others = [column.name for column in columns if column.kind == "unused"]
        wanted += [Column(name, "key") for name in [*others, *targets]]
    n_rows = n_accepted = 0
    rejected = Counter[str]()
    with open_writer(out) as writer:
        for table, features in read_feature_batches(path, wanted, delimiter=delimiter):
            result: Any = model.assess(features, coverage=coverage, tails=tails)
            answers = tabulate_assessment(result, targets)
            if len(targets) > 1:
                answers |= _tabulate_alone(
                    model.predict_interval(features, coverage=coverage, simultaneous=False), targets
                )
            for level, values in zip(levels, _predict_quantiles(model, features, levels), strict=True):
                answers |= _name_outputs(f"quantile_{level:g}", values, targets)
            if probabilities and result.probabilities is not None:
                named = zip(result.output_names, result.probabilities.T, strict=True)
                answers |= {f"probability_{name}": column for name, column in named}
            if ordinary is not None:
                unusual = ordinary.find(features)
                if explain:
                    answers["unusual"] = describe_rows(unusual, len(features))
                    answers["driven_by"] = ordinary.find_drivers(model, features, result)
            inputs = [name for name in table.column_names if keep == "all" or name not in features.columns]
            # As they were in the file: pandas would turn whole numbers into floats.
            named = {f"key_{name}" if name in answers else name: table[name] for name in inputs}
            writer.add((named or {"row": np.asarray(features.index)}) | answers)
            n_rows += len(features)
            n_accepted += 0 if result.accepted is None else int(result.accepted.sum())
            rejected.update([] if result.reason is None else result.reason.tolist())
            on_progress(n_rows)
    reasons = [] if model.novelty_threshold_ is None else REASONS[1:].tolist()
    counts = {"rows": n_rows, "accepted": n_accepted} | {name: rejected[name] for name in reasons}
    return FilePrediction(counts, [] if ordinary is None else ordinary.summarize())


def _predict_quantiles(model: Any, features: Any, levels: Sequence[float] | Floats) -> Any:
    """Return the quantiles level by level, (Q, n) or (Q, n, D)."""
    return np.moveaxis(model.predict_quantiles(features, levels), -1, 0) if len(levels) else []


def read_feature_batches(
    path: str | Path, columns: Sequence[Column], *, delimiter: str | None = None
) -> Iterator[tuple[Any, Any]]:
    """Yield a file batch by batch: an Arrow table, and its features as values in a DataFrame whose index counts on."""
    features = [column.name for column in columns if column.is_feature]
    n_rows = 0
    for table in read_batches(path, columns, delimiter=delimiter):
        frame = to_frame(table.select(features))
        frame.index += n_rows
        n_rows += len(frame)
        yield table, read_features(frame, columns, source=str(path))


def tabulate_assessment(result: Any, targets: Sequence[str]) -> dict[str, Any]:
    """Return the columns of an assessment that are written, by name."""
    table: dict[str, Any] = _name_outputs("value", result.value, targets)
    if result.probabilities is not None:
        table["probability"] = result.probabilities.max(axis=1)
    table["uncertainty"] = result.uncertainty
    if result.noise is not None:
        table |= _name_outputs("noise", result.noise, targets)
    table |= _list_known(result, ("novelty", "novelty_p_value"))
    if result.prediction_set is not None:
        names = np.asarray(result.output_names, dtype=object)
        table["set"] = ["|".join(names[members]) for members in result.prediction_set]
    if result.lower is not None:
        table |= _name_outputs("lower", result.lower, targets) | _name_outputs("upper", result.upper, targets)
    return table | _list_known(result, ("confidence", "accepted", "reason"))


def _tabulate_alone(interval: Any, targets: Sequence[str]) -> dict[str, Any]:
    lower, upper = interval[..., 0], interval[..., 1]
    return _name_outputs("lower_alone", lower, targets) | _name_outputs("upper_alone", upper, targets)


def _list_known(result: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: values for name in names if (values := getattr(result, name)) is not None}


def _name_outputs(name: str, values: Any, targets: Sequence[str]) -> dict[str, Any]:
    if values.ndim == 1:
        return {name: values}
    return {f"{name}_{target}": column for target, column in zip(targets, values.T, strict=True)}


class TableWriter:
    """A file that tables are added to, one after the other.

    Parameters
    ----------
    sink : str or file open for bytes
    kind : {"csv", "parquet", "arrow"}
    delimiter : str, default ","
        The delimiter of a CSV file.
    """

    def __init__(self, sink: str | BinaryIO, kind: str, *, delimiter: str = ",") -> None:
        self._sink, self._kind, self._delimiter, self._writer = sink, kind, delimiter, None

    def add(self, columns: dict[str, Any]) -> None:
        """Write rows; every call has the same columns."""
        import pyarrow as pa

        try:
            table = pa.table(columns)
            if self._writer is None:
                self._writer = self._open(table.schema)
            self._writer.write_table(table)
        except pa.ArrowException as error:
            message = " ".join(str(error).split())
            raise InvalidInputError(
                f"Expected key columns that can be written as {self._kind}. Got: {message}. Write .parquet or .arrow, "
                "or fit the model with other keys."
            ) from None

    def _open(self, schema: Any) -> Any:
        import pyarrow as pa

        if self._kind == "parquet":
            import pyarrow.parquet as parquet

            return parquet.ParquetWriter(self._sink, schema)
        if self._kind == "arrow":
            return pa.ipc.new_file(self._sink, schema)
        import pyarrow.csv as arrow_csv

        options = arrow_csv.WriteOptions(quoting_style="needed", delimiter=self._delimiter)
        return arrow_csv.CSVWriter(self._sink, schema, write_options=options)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def check_suffix(path: Path) -> str:
    """Return the format that the ending of a name stands for, or raise an error where it stands for none."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise InvalidInputError(
            f"Expected a file to write whose name ends in {', '.join(SUFFIXES)}. Got {path.name}. Choose another name."
        )
    return kind


@contextmanager
def open_writer(out: str | Path | BinaryIO) -> Generator[TableWriter]:
    """Open a file for tables: CSV, Parquet or Arrow by the ending of its name, or CSV for a stream of bytes.

    A named file appears when all is written; a stream gets each table as soon as it is added.
    """
    if not isinstance(out, str | Path):
        with closing(TableWriter(out, "csv")) as writer:
            yield writer
        return
    path = Path(out)
    kind, delimiter = check_suffix(path), "\t" if path.suffix.lower() == ".tsv" else ","
    with write_atomically(path) as part, closing(TableWriter(str(part), kind, delimiter=delimiter)) as writer:
        yield writer
