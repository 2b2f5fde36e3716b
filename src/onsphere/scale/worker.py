"""Assess one file: what a worker of any engine does with it."""

from __future__ import annotations

import errno
import hashlib
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.scale.assessor import Assessor
from onsphere.scale.folders import Folder, StoredFile
from onsphere.table.columns import Column
from onsphere.table.files import read_batches, read_schema

__all__ = ["Job", "assess_file", "keep_assessor", "list_columns"]

_TEXT = ("string", "large_string", "string_view")
_loaded: dict[tuple[Any, ...], Assessor] = {}  # the last one


@dataclass(frozen=True)
class Job:
    """A file to assess, and all that a worker must know besides the model."""

    file: StoredFile
    source: Folder
    out: Folder
    output: str  # the path of its answers
    record: str
    model: str  # the hash of its file, with the ending of that
    coverage: float | None
    kept: Any  # a pyarrow.Schema, that of the columns which stay beside the answers
    absent: tuple[str, ...]  # keys of the model that the first file does not have

    def __str__(self) -> str:
        return self.file.path


def assess_file(job: Job, model: bytes) -> dict[str, Any]:
    """Assess a file, write the answers and then their record, and return it, or the error in words.

    The model is the content of its file, which another node may not have.
    """
    try:
        assessor = _load_assessor(model, job)
        monitor, counts = assessor.make_monitor(), Counter[str]()
        with _use_one_core(), job.source.open_copy(job.file.path) as path, job.out.replace(job.output) as part:
            _check_absent(job, path)
            _write_answers(assessor, job, path, part, monitor, counts)
            n_bytes = part.stat().st_size
        record = {
            **asdict(job.file),
            "output": job.output,
            "output_size": n_bytes,
            "rows": counts.pop("rows", 0),
            "accepted": counts.pop("accepted", 0),
            "rejected": dict(counts),
            "log_e_value": None if monitor is None else monitor.log_capital,
        }
        job.out.write_record(job.record, record)
    except Exception as error:  # whatever one file holds, the others go on
        name = "" if isinstance(error, OnsphereError | OSError) else f"{type(error).__name__}: "
        message = f"{job.file.path}: {name}{' '.join(str(error).split())}"
        return {"error": message, "is_disk_full": _is_disk_full(error)}
    return record


def _is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one behind it, is that of a full disk."""
    found = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    return found or (error is not None and _is_disk_full(error.__context__))


def keep_assessor(assessor: Assessor, job: Job) -> None:
    """Let jobs like this one, in this process, use a model that is loaded already."""
    assessor.keep = job.kept.names
    _loaded.clear()
    _loaded[_make_key(job)] = assessor


def _make_key(job: Job) -> tuple[Any, ...]:
    return (job.model, job.coverage, *job.kept.names)


def _load_assessor(content: bytes, job: Job) -> Assessor:
    """Return the model that the run began with, which is loaded once."""
    key = _make_key(job)
    if key not in _loaded:
        if hashlib.sha256(content).hexdigest() != Path(job.model).stem:
            raise InvalidInputError(
                "Expected the model that this run began with. Got another one under its name. Run this again, into "
                "another folder."
            )
        _loaded.clear()
        _loaded[key] = Assessor(job.model, coverage=job.coverage, keep=job.kept.names, content=content)
    return _loaded[key]


@contextmanager
def _use_one_core() -> Generator[None]:
    """Keep pyarrow to one thread, because there is a process on every core."""
    import pyarrow as pa

    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


def list_columns(assessor: Assessor, keep: Sequence[str], file: StoredFile) -> list[Column]:
    """List the columns to read of a file: those that the model needs or that are kept, and its folder does not say."""
    features = [column for column in assessor.columns if column.is_feature]
    names = {column.name for column in features}
    others = [Column(name, "key") for name in keep if name not in names]
    return [column for column in [*features, *others] if column.name not in file.partition]


def _check_absent(job: Job, path: Path) -> None:
    """Check that a file has no key that the first one lacks, which would be dropped silently."""
    found = [name for name in job.absent if name in read_schema(path).names]
    if found:
        raise InvalidInputError(
            f"Expected no column {found[0]} in {job.file.path}, since the first file has none. Got one. Write all "
            "files with the same columns, or say which ones to keep."
        )


def _write_answers(assessor: Assessor, job: Job, path: Path, part: Path, monitor: Any, counts: Counter[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kept = [field.with_name(assessor.rename_kept(field.name)) for field in job.kept]
    schema = pa.schema([*kept, *assessor.answer_schema])
    with parquet.ParquetWriter(part, schema) as writer:
        for table in read_batches(path, list_columns(assessor, job.kept.names, job.file), allow_empty=True):
            for name, text in job.file.partition.items():
                table = table.append_column(name, pa.array([text] * table.num_rows, pa.string()))
            answers = assessor(table, source=job.file.path, first_row=counts["rows"], monitor=monitor)
            for place, wanted in enumerate(kept):
                answers = answers.set_column(place, wanted, _cast(answers[place], wanted, job.file.path))
            writer.write_table(answers)
            counts["rows"] += answers.num_rows
            if "accepted" in answers.column_names:  # the model has a threshold
                found = answers["reason"].filter(pa.array(~answers["accepted"].to_numpy())).value_counts().to_pylist()
                rejected = {each["values"]: each["counts"] for each in found}
                counts.update(rejected, accepted=answers.num_rows - sum(rejected.values()))


def _cast(cells: Any, wanted: Any, path: str) -> Any:
    import pyarrow as pa

    if _can_hold(wanted.type, cells.type):
        with suppress(pa.ArrowException):
            return cells.cast(wanted.type)
    raise InvalidInputError(
        f"Expected the column {wanted.name} to hold {wanted.type}, as in the first file. Got {cells.type} in "
        f"{path}. Write all files with the same types, or keep other columns."
    )


def _can_hold(wanted: Any, found: Any) -> bool:
    """Return whether cells of one type keep their meaning in another, unless the cast finds one too large."""
    from pyarrow import types

    wanted, found = (each.value_type if types.is_dictionary(each) else each for each in (wanted, found))
    for is_kind in (types.is_integer, types.is_timestamp, lambda each: str(each) in _TEXT):
        if is_kind(wanted) and is_kind(found):
            return getattr(wanted, "tz", None) == getattr(found, "tz", None)
    if types.is_floating(wanted) and types.is_floating(found):
        return wanted.bit_width >= found.bit_width
    return wanted == found or types.is_null(found)
