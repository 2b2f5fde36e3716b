"""Fit and calibrate on a folder of files: sums and sketches of each, added up, on all cores or on a Ray cluster."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from onsphere._internal.validation import check_unique_names, parameter_error
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.models import FrozenHead
from onsphere.scale.engines import check_engine, connect, run_jobs
from onsphere.scale.folders import Folder, StoredFile
from onsphere.scale.sketch import CalibrationSketch
from onsphere.table.cells import read_features
from onsphere.table.columns import Column, check_has
from onsphere.table.files import read_batches, read_schema, to_frame

__all__ = ["calibrate_dataset", "fit_head"]

Model = TypeVar("Model")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Part:
    """A file to learn from."""

    file: StoredFile
    source: Folder
    features: list[str]
    targets: list[str]
    is_class: bool

    def __str__(self) -> str:
        return self.file.path

    def read_rows(self) -> Iterator[tuple[Any, Any]]:
        """Yield features and targets, some ten thousand rows at a time."""
        kind = "category" if self.is_class else "number"
        features = [Column(name, "number") for name in self.features]
        columns, n_rows = [*features, *(Column(name, kind) for name in self.targets)], 0
        with self.source.open_copy(self.file.path) as path:
            for table in read_batches(path, columns, allow_empty=True):
                frame = to_frame(table)
                read = frame[self.features]
                if any(each.kind not in "iuf" for each in read.dtypes):
                    read.index += n_rows
                    read = read_features(read, features)  # which names the row and the column that hold no number
                n_rows += len(frame)
                yield read, frame[self.targets[0]].to_numpy() if len(self.targets) == 1 else frame[self.targets]


def fit_head(
    head: FrozenHead,
    source: str | Path,
    targets: str | Sequence[str],
    *,
    features: Sequence[str] | None = None,
    engine: str = "local",
    n_workers: int | None = None,
    address: str | None = None,
) -> FrozenHead:
    """Fit a FrozenHead of any kind on every row of a folder with CSV, Parquet or Arrow files.

    The result is that of `head.fit` on all rows at once, however they are spread over files, up to rounding: heads are
    solved from sums over rows, and landmarks and the rows behind the novelty frame are drawn by what they hold. Each
    file is read twice: for the scale of the target and the landmarks, and for the sums.

    Parameters
    ----------
    head : FrozenHead
        The parameters; it is left as it is. Set its `task` for CSV files, which have no types.
    source : path or address
        A folder on this disk, or in an object store.
    targets : str or list of str
        The column with labels or values, or several with values.
    features : list of str, optional
        By default all other columns of the first file, without the index of pandas. Folders such as year=2024 are no
        columns here.
    engine, n_workers, address :
        As in `assess_dataset`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in range(3):
    ...     rows = pd.DataFrame(rng.normal(size=(100, 2)), columns=["a", "b"])
    ...     rows.assign(y=rows["a"] + rows["b"]).to_parquet(folder / f"{part}.parquet")
    >>> fit_head(FrozenHead("linear", random_state=0), folder, "y", n_workers=1).n_rows_
    300
    """
    check_engine("fit_head", engine, n_workers, address)
    given: Any = head
    if not isinstance(given, FrozenHead):
        raise parameter_error("fit_head", "head", "a FrozenHead", head)
    parts = _list_parts("fit_head", source, targets, features, is_class=head.task == "classification")
    if head.task == "auto" and any(part.file.format == "csv" for part in parts):
        raise InvalidInputError(
            "Expected a FrozenHead with a task of 'classification' or 'regression' for CSV files, which have no types. "
            "Got 'auto'. Set its task."
        )
    if head.calibration is not None:
        raise InvalidInputError(
            f"Expected a FrozenHead without a calibration of its own. Got calibration={head.calibration!r}. Leave it "
            "out, and call calibrate_dataset on other files."
        )
    fitted: Any = clone(head)
    fitted._check_parameters()
    fitted._check_rows(_make_zeros(parts[0].features, n_rows=2), fitting=True)  # which fixes the names of the columns
    with connect(address, n_cores=n_workers) if engine == "ray" else nullcontext():  # once for both readings
        run = partial(_run, engine=engine, n_workers=n_workers, address=None)
        survey = _add_up(operator.add, run(_survey_file, parts, (fitted, fitted._draw_seed())), source)
        one, several = np.empty(0), _make_zeros(parts[0].targets, n_rows=0)  # which say what the outputs are called
        fitted._begin_from(survey, one if len(parts[0].targets) == 1 else several)
        for _, found in run(_sum_file, parts, FrozenHead.like(fitted)):
            fitted.merge(found)
    if fitted.n_rows_ == 1:
        raise InvalidInputError(f"Expected files with at least two rows. Got one in {source}. Add rows.")
    fitted._solve()
    return fitted


def calibrate_dataset(
    model: Model,
    source: str | Path,
    targets: str | Sequence[str],
    *,
    engine: str = "local",
    n_workers: int | None = None,
    address: str | None = None,
) -> Model:
    """Calibrate a fitted model on every row of a folder, and return it.

    Of up to about 4,000 rows the calibration is that of `model.calibrate`. Of more it has 10,000 rows, which a
    `CalibrationSketch` chose from all: a coverage of 90 % for new rows is kept, whatever the error of the sketch.
    Intervals of single outputs, and those with unequal tails, are as good as with 10,000 rows. A threshold that was set
    before is fitted again to these rows, as in `model.calibrate`.

    Parameters
    ----------
    model : HCMRegressor, HCMClassifier, FrozenHead
        Fitted on a DataFrame; its columns are read from the files.
    source, targets, engine, n_workers, address :
        As in `fit_head`. The files must hold rows that the model was not fitted on.
    """
    check_engine("calibrate_dataset", engine, n_workers, address)
    known: Any = model
    names = getattr(known, "feature_names_in_", None)
    if names is None:
        raise InvalidInputError(
            "Expected a fitted model that knows the names of its features. Got one fitted on an array, or not at all. "
            "Fit it on a DataFrame."
        )
    classes = getattr(known, "classes_", None)
    is_class = classes is not None and classes.dtype.kind not in "iuf"  # numbers are compared as such
    parts = _list_parts("calibrate_dataset", source, targets, [str(name) for name in names], is_class=is_class)
    found = _run(_sketch_file, parts, model, engine=engine, n_workers=n_workers, address=address)
    known._set_calibration(_add_up(CalibrationSketch.merge, found, source).make_calibration())
    known._fit_rule_again(known._rule, known._novelty_rule)
    return model


def _list_parts(
    owner: str, source: str | Path, targets: Any, features: Sequence[str] | None, *, is_class: bool
) -> list[_Part]:
    folder = Folder(source)
    wanted = [targets] if isinstance(targets, str) else _list_names(owner, "targets", targets)
    given = None if features is None else _list_names(owner, "features", features)
    files = folder.list_inputs()
    with folder.open_copy(files[0].path) as path:
        schema = read_schema(path)
    names, index = schema.names, (schema.pandas_metadata or {}).get("index_columns", [])
    others = [name for name in names if name not in wanted and name not in index]
    chosen = others if given is None else given
    if not chosen:
        raise InvalidInputError(f"Expected columns beside {', '.join(wanted)} in {files[0].path}. Got none.")
    check_unique_names("features and targets", [*chosen, *wanted])
    check_has(files[0].path, names, [*chosen, *wanted])
    return [_Part(file, folder, chosen, wanted, is_class) for file in files]


def _list_names(owner: str, parameter: str, names: Any) -> list[str]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not names or not all(isinstance(name, str) for name in names):
        raise parameter_error(owner, parameter, "a list of names of columns", names)
    return list(names)


def _make_zeros(names: Sequence[str], *, n_rows: int) -> Any:
    import pandas as pd

    return pd.DataFrame(np.zeros((n_rows, len(names))), columns=list(names))


def _run(
    work: Callable[[_Part, Any], Answer], parts: Sequence[_Part], shared: Any, **where: Any
) -> Iterator[tuple[_Part, Answer]]:
    """Yield each part with what the work makes of it, in order, so that sums are always added in the same order."""
    found, waiting = run_jobs(partial(_explain, work), parts, shared, **where), dict[str, Any]()
    for part in parts:
        while str(part) not in waiting:
            done, answer = next(found)
            waiting[str(done)] = answer
        answer, error = waiting.pop(str(part))
        if error is not None:
            raise InvalidInputError(error)
        yield part, answer


def _add_up(
    add: Callable[[Answer, Answer], Answer], found: Iterator[tuple[_Part, Answer | None]], source: str | Path
) -> Answer:
    """Return the sum over files, without those that have no rows."""
    total = None
    for part, each in found:
        try:
            total = each if total is None else total if each is None else add(total, each)
        except OnsphereError as error:
            raise InvalidInputError(f"{part}: {error}") from None
    if total is None:
        raise InvalidInputError(f"Expected files with rows. Got {source}, without any.")
    return total


def _explain(work: Callable[[_Part, Any], Answer], part: _Part, shared: Any) -> tuple[Answer | None, str | None]:
    """Return what the work makes of a part, or the error in words."""
    try:
        return work(part, shared), None
    except (OnsphereError, OSError) as error:
        return None, f"{part}: {' '.join(str(error).split())}"


def _survey_file(part: _Part, shared: tuple[Any, int]) -> Any:
    head, seed = shared
    surveys = [head._survey(head._check_rows(X), y, seed) for X, y in part.read_rows()]
    return reduce(operator.add, surveys) if surveys else None


def _sum_file(part: _Part, head: FrozenHead) -> FrozenHead:
    found = FrozenHead.like(head)
    for X, y in part.read_rows():
        found.partial_fit(X, y)
    return found


def _sketch_file(part: _Part, model: Any) -> CalibrationSketch | None:
    found = None
    for X, y in part.read_rows():
        calibration = model._predict(X).calibrate(model, y)
        found = CalibrationSketch(calibration) if found is None else found.add(calibration)
    return found
