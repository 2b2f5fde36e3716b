"""Assess a folder of files, each into a file of its own, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import fcntl
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from onsphere._internal.validation import check_option
from onsphere.errors import InvalidInputError
from onsphere.export.deployed import read_content
from onsphere.scale.assessor import Assessor
from onsphere.scale.engines import check_engine, run_jobs
from onsphere.scale.folders import RECORDS, RUN, Folder, StoredFile
from onsphere.scale.worker import Job, assess_file, keep_assessor, list_columns
from onsphere.table.columns import check_has
from onsphere.table.files import read_schema

__all__ = ["ON_ERROR", "DatasetSummary", "assess_dataset"]

ON_ERROR = ("stop", "skip")
_LONGEST_STEM = 150  # bytes of the name of a file that its answers have too
_RUN_AGAIN = "run this again to go on, or skip such files"
_SUMMARY = f"{RECORDS}/summary.json"


@dataclass(frozen=True)
class DatasetSummary:
    """The outcome of a run over a data set.

    Attributes
    ----------
    files, rows, accepted : int
    rejected : dict of int
        How many rows were rejected for each reason.
    failures : dict of str
        Why files could not be assessed, by their paths; only with `on_error="skip"`.
    log_e_value : float or None
        The evidence that these rows are not like the calibration rows: the logarithm of the mean, over files, of the
        capital of a game against that, which sees at most 4,096 evenly spread rows of every 65,536. If nothing has
        changed, it exceeds log(1/alpha) with a probability of at most alpha, however the files depend on each other.
        None for a model that was calibrated by cross-validation.
    """

    files: int
    rows: int
    accepted: int
    rejected: dict[str, int]
    failures: dict[str, str]
    log_e_value: float | None


def assess_dataset(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    coverage: float | None = None,
    keep: Sequence[str] | None = None,
    engine: str = "local",
    n_workers: int | None = None,
    address: str | None = None,
    on_error: str = "stop",
    on_progress: Callable[[int, float], None] = lambda n_rows, share: None,
) -> DatasetSummary:
    """Assess every file of a folder with CSV, Parquet or Arrow files, on all cores or on a Ray cluster.

    Each file becomes a Parquet file in the same folder inside `out`, with its rows in their order: the columns that are
    kept, then the answers. It appears when it is complete, and is then entered in `out`/_onsphere. If a run is stopped
    or killed, the same call goes on with the files that are not there yet, and the result is the same, byte by byte.

    Parameters
    ----------
    model : path
        A model of `onsphere fit --save`, or an ONNX graph of `onsphere export`.
    source, out : path or address
        Folders on this disk, or in an object store (s3://bucket/in). Folders such as year=2024 count as columns.
    coverage, keep :
        As in `Assessor`.
    engine : {"local", "ray"}
        Processes on this machine, or tasks on a Ray cluster whose nodes can reach both folders.
    n_workers : int, optional
        How many files are assessed at once; by default one on each core. One of them is assessed in this process,
        unless the work is done on a cluster that others have started.
    address : str, optional
        Of the Ray cluster; by default a new one on this machine.
    on_error : {"stop", "skip"}
        Whether a file that cannot be assessed ends the run, or is reported at the end; what is done is kept either way.
    on_progress : function of an int and a float, optional
        Called first and after each file, with the number of rows and the share of bytes that are done.
    """
    where: Any = {"engine": engine, "n_workers": n_workers, "address": address}
    check_engine("assess_dataset", **where)
    check_option("assess_dataset", "on_error", on_error, ON_ERROR)
    model, inside, outside = Path(model), Folder(source), Folder(out)
    content = read_content(model)
    assessor = Assessor(model, coverage=coverage, keep=keep, content=content)
    files = _list_inputs(inside, outside)
    with _lock(outside):
        digest = f"{hashlib.sha256(content).hexdigest()}{model.suffix}"
        options = {"model": digest, "coverage": assessor.coverage, "keep": assessor.keep}
        options["source"] = str(inside).split("?")[0]
        is_new = _check_same_run(outside, options)
        wanted = assessor.list_kept([column.name for column in assessor.columns])  # of files with all columns
        kept = _find_kept(assessor, wanted, inside, files, skip=on_error == "skip")
        if is_new:  # only now, so that another try may have other options
            outside.write_record(RUN, options)
        shared = digest, coverage, kept, tuple(name for name in wanted if name not in kept.names)
        jobs = [Job(file, inside, outside, *_name_answers(file, digest), *shared) for file in files]
        keep_assessor(assessor, jobs[0])
        done = _find_done(outside, jobs)
        outside.remove(_SUMMARY)  # of a former run
        total, failures = _Totals(sum(file.size for file in files)), dict[str, str]()
        for record in done.values():
            total.add(record)
        on_progress(total.n_rows, total.share)
        left = [job for job in jobs if job.record not in done]
        for job, record in run_jobs(assess_file, left, content, **where):
            if "error" in record:
                failures[job.file.path] = record["error"]
                if on_error == "stop" or record["is_disk_full"]:  # where every other file would fail too
                    again = "make room, and run this again to go on" if record["is_disk_full"] else _RUN_AGAIN
                    n_done = f"{total.n_files:,} of {len(files):,} files are done and kept"
                    raise InvalidInputError(f"{record['error']} {n_done}; {again}.")
            else:
                total.add(record)
            on_progress(total.n_rows, total.share)
        summary = total.summarize(failures)
        outside.write_record(_SUMMARY, asdict(summary))
    return summary


class _Totals:
    """The sums over the files that are done."""

    def __init__(self, n_bytes: int) -> None:
        self.n_files = self.n_rows = self._n_accepted = self._n_bytes_done = 0
        self._n_bytes, self._rejected, self._log_e_values = n_bytes, Counter[str](), list[float | None]()

    def add(self, record: dict[str, Any]) -> None:
        self.n_files += 1
        self.n_rows += record["rows"]
        self._n_accepted += record["accepted"]
        self._n_bytes_done += record["size"]
        self._rejected.update(record["rejected"])
        self._log_e_values.append(record["log_e_value"])

    @property
    def share(self) -> float:
        return self._n_bytes_done / self._n_bytes if self._n_bytes else 1.0

    def summarize(self, failures: dict[str, str]) -> DatasetSummary:
        # In order, so that the mean does not depend on which file was done first.
        values = sorted(value for value in self._log_e_values if value is not None)
        mean = float(np.logaddexp.reduce(values)) - math.log(len(values)) if values else None
        return DatasetSummary(self.n_files, self.n_rows, self._n_accepted, dict(self._rejected), failures, mean)


# --- before the work ---


def _list_inputs(source: Folder, out: Folder) -> list[StoredFile]:
    """List the files to assess, none of which may lie in the folder for the answers."""
    place = out.find_path_in(source)
    files = [] if place == "" else source.list_inputs()
    if place == "" or (place and any(file.path.startswith(f"{place}/") for file in files)):
        raise InvalidInputError(
            f"Expected another folder for the answers than one with files to assess. Got {out}. Choose a new folder."
        )
    return files


@contextmanager
def _lock(out: Folder) -> Generator[None]:
    """Keep other runs out of a folder on this disk, and leave no file in it that is half written.

    Two runs into one object store write the same bytes.
    """
    if not out.is_local:
        yield
        return
    path = out.root / RECORDS / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise InvalidInputError(
            f"Expected a folder to write to. Got {out}: {error.strerror}. Choose another folder, or check its "
            "permissions and the free space on the disk."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which ends with the process, however it ends
        except OSError:
            raise InvalidInputError(
                f"Expected a folder that no other run writes to. Got {out}, which another one uses now. Wait for "
                "it, or choose another folder."
            ) from None
        out.remove_leftovers()  # of a process that was killed
        try:
            yield
        finally:
            out.remove_leftovers()  # of workers and lost nodes


def _check_same_run(out: Folder, options: dict[str, Any]) -> bool:
    """Check that a former run into this folder had the same options; return whether there was none."""
    former = out.read_record(RUN)
    if former not in (None, options):
        names = " and ".join(name for name in options if former.get(name) != options[name])
        how = f"begun with another {names}" if former else f"whose {RUN} is damaged"
        raise InvalidInputError(
            f"Expected a folder that is empty, or was begun with the same source, model and options. Got {out}, {how}. "
            "Choose another folder."
        )
    return former is None


def _find_kept(
    assessor: Assessor, wanted: Sequence[str], source: Folder, files: Sequence[StoredFile], *, skip: bool
) -> Any:
    """Return the schema of the columns that are kept, as the first file has them.

    With `skip` it is the first that can be read. A column without any cell has the type of a later file.
    """
    import pyarrow as pa

    kept, first_error = None, None
    for file in files:
        try:
            found = _read_kept(assessor, wanted, source, file)
        except Exception as error:  # whatever keeps a file from being read
            if not skip:
                raise
            first_error = first_error or error
            continue
        types = {each.name: each.type for each in found}
        found = found if kept is None else kept
        kept = pa.schema(
            [each.with_type(types.get(each.name, each.type)) if pa.types.is_null(each.type) else each for each in found]
        )
        if not any(pa.types.is_null(each.type) for each in kept):
            return kept
    if kept is None and first_error is not None:
        raise first_error
    return kept


def _read_kept(assessor: Assessor, wanted: Sequence[str], source: Folder, file: StoredFile) -> Any:
    """Return the schema of the columns that are kept of a file, without those that its folder says."""
    import pyarrow as pa

    with source.open_copy(file.path) as path:
        found = {each.name: each for each in read_schema(path, list_columns(assessor, wanted, file))}
        names = [*read_schema(path).names, *file.partition]
    kept = assessor.list_kept(names)
    check_has(file.path, names, kept)
    return pa.schema([found[name] for name in kept if name not in file.partition])


def _name_answers(file: StoredFile, model: str) -> tuple[str, str]:
    """Name the answers of a file, and their record, after the file, its size and time, and the model."""
    words = f"{file.path}\n{file.size}\n{file.modified}\n{model}".encode(errors="surrogateescape")
    digest, place = hashlib.sha256(words).hexdigest()[:16], PurePosixPath(file.path)
    stem = place.name.split(".")[0].encode(errors="surrogateescape")[:_LONGEST_STEM].decode(errors="ignore")
    return str(place.with_name(f"{stem}-{digest}.parquet")), f"{RECORDS}/files/{digest}.json"


def _find_done(out: Folder, jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Return the records of jobs that are done, and remove the answers of files that have changed or gone.

    No record decides what is removed: answers are found by the hash in their names.
    """
    by_record = {job.record: job for job in jobs}
    sizes = {file.path: file.size for file in out.list_files()}
    by_digest = {path.rpartition("-")[2].removesuffix(".parquet"): path for path in sizes}
    done: dict[str, dict[str, Any]] = {}
    for path, record in out.read_records(f"{RECORDS}/files").items():
        job = by_record.get(path)
        if job and _is_whole(record) and sizes.get(job.output) == record["output_size"]:
            done[path] = record
            continue
        answers = by_digest.get(PurePosixPath(path).stem)
        if answers is not None:
            out.remove(answers)
        out.remove(path)
    return done


def _is_whole(record: dict[str, Any]) -> bool:
    numbers = [record.get(name) for name in ("size", "output_size", "rows", "accepted")]
    rejected, value = record.get("rejected"), record.get("log_e_value")
    return (
        isinstance(rejected, dict)
        and all(type(number) is int for number in [*numbers, *rejected.values()])
        and isinstance(value, float | None)
    )
