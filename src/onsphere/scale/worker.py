"""Assess one file: what a worker of any engine does with it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onsphere._internal.atomic_files import write_atomically
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.scale.assessor import Assessor
from onsphere.scale.folders import Folder, StoredFile
from onsphere.table.columns import Column
from onsphere.table.files import read_batches, read_schema

__all__ = ["Job", "assess_file", "assess_on_node", "list_columns"]


@dataclass(frozen=True)
class Job:
    """A file to assess, and all that a worker must know besides the model."""

    file: StoredFile
    source: Folder
    out: Folder
    output: str
    record: str
    coverage: float | None
    kept: Any  # a pyarrow.Schema, that of the columns which stay beside the answers
    absent: tuple[str, ...]  # keys of the model that the first file does not have

    def __str__(self) -> str:
        return self.file.path


def assess_file(model: Path, job: Job) -> dict[str, Any]:
    """Assess a file, write the answers and then the record of it, and return that; or the error, in words."""
    try:
        assessor = _load_assessor(model, job.coverage, tuple(job.kept.names))
        monitor, counts = assessor.make_monitor(), Counter[str]()
        with job.source.open_copy(job.file.path) as path, job.out.replace(job.output) as part:
            _check_absent(job, path)
            _write_answers(assessor, job, path, part, monitor, counts)
        record = {
            **asdict(job.file),
            "output": job.output,
            "record": job.record,
            "rows": counts.pop("rows", 0),
            "accepted": counts.pop("accepted", 0),
            "rejected": dict(counts),
            "log_e_value": None if monitor is None else monitor.log_capital,
        }
        job.out.write_record(job.record, record)
    except (OnsphereError, OSError) as error:
        return {"error": f"{job.file.path}: {' '.join(str(error).split())}"}
    return record


def assess_on_node(job: Job, shared: tuple[str, str, bytes]) -> dict[str, Any]:
    """Assess a file on a node that may not have the model: it is written to a file there, once."""
    digest, suffix, content = shared
    path = Path(tempfile.gettempdir()) / f"onsphere-{digest}{suffix}"
    if not path.exists():
        with write_atomically(path) as part:
            part.write_bytes(content)
    return assess_file(path, job)


@lru_cache(maxsize=1)
def _load_assessor(model: Path, coverage: float | None, keep: tuple[str, ...]) -> Assessor:
    import pyarrow as pa

    pa.set_cpu_count(1)  # there is a process on every core
    return Assessor(model, coverage=coverage, keep=keep)


def list_columns(assessor: Assessor, keep: Sequence[str], file: StoredFile) -> list[Column]:
    """List the columns to read of a file: those that the model needs or that are kept, and its folder does not say."""
    features = [column for column in assessor.columns if column.is_feature]
    names = {column.name for column in features}
    others = [Column(name, "key") for name in keep if name not in names]
    return [column for column in [*features, *others] if column.name not in file.partition]


def _check_absent(job: Job, path: Path) -> None:
    """Check that a file has no key that the first one lacks, and that would be lost without a word."""
    found = [name for name in job.absent if name in read_schema(path).names]
    if found:
        raise InvalidInputError(
            f"Expected no column {found[0]} in {job.file.path}, since the first file has none. Got one. Write all "
            "files with the same columns, or say which ones to keep."
        )


def _write_answers(assessor: Assessor, job: Job, path: Path, part: Path, monitor: Any, counts: Counter[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([*job.kept, *assessor.answer_schema])
    with parquet.ParquetWriter(part, schema) as writer:
        for table in read_batches(path, list_columns(assessor, job.kept.names, job.file), allow_empty=True):
            for name, text in job.file.partition.items():
                table = table.append_column(name, pa.array([text] * table.num_rows, pa.string()))
            answers = assessor(table, source=job.file.path, first_row=counts["rows"], monitor=monitor)
            for place, wanted in enumerate(job.kept):
                answers = answers.set_column(place, wanted, _cast(answers[wanted.name], wanted, job.file.path))
            writer.write_table(answers)
            counts["rows"] += answers.num_rows
            if "accepted" in answers.column_names:  # the model has a threshold
                found = answers["reason"].value_counts().to_pylist()
                counts.update({each["values"] or "accepted": each["counts"] for each in found})


def _cast(cells: Any, wanted: Any, path: str) -> Any:
    import pyarrow as pa

    try:
        return cells.cast(wanted.type)
    except pa.ArrowException:
        raise InvalidInputError(
            f"Expected the column {wanted.name} to hold {wanted.type}, as in the first file. Got {cells.type} in "
            f"{path}. Write all files with the same types, or keep other columns."
        ) from None
