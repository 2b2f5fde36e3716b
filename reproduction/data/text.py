"""Text sets of the paper, one Parquet or CSV file each with a column `text` and, where there are classes, `label`."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.arguments import check_option, import_package
from reproduction.data.files import advise, broken_file_error, missing_file_error, resolve_folder

__all__ = ["TEXT_NAMES", "load_text"]

# With the names under which the Hugging Face hub has them.
_SOURCES = {
    "ag_news": "ag_news",
    "dbpedia": "dbpedia_14",
    "emotion": "emotion",
    "imdb": "imdb",
    "yelp": "yelp_polarity",
}
TEXT_NAMES = tuple(_SOURCES)
# Of the files of the set's authors, with or without a line of names; their classes count from 1.
_AG_NEWS_COLUMNS = ["Class Index", "Title", "Description"]


def load_text(
    name: str, split: str = "test", *, folder: str | Path | None = None, whole: bool = False
) -> tuple[list[str], NDArray[np.int64] | None]:
    """Read one text set.

    Parameters
    ----------
    name : {"ag_news", "dbpedia", "emotion", "imdb", "yelp"}
    split : {"train", "test"}, default "test"
    folder : path, optional
        Holds `text/NAME_SPLIT.parquet` or `.csv`, or as they come from the Hugging Face hub or the authors of AG News
        `text/NAME/SPLIT-00000-of-00001.parquet` or `text/NAME/SPLIT.csv`; by default `data_folder()`. Where there is
        none, a part of it is read, `NAME_SPLIT_subset`, or for "test" a sample of the set, `NAME_5k`.
    whole : bool, default False
        Whether a part of the set is not enough.

    Returns
    -------
    texts : list of str
    labels : int64 array of shape (n,), or None
        None if the file has no column `label`.
    """
    check_option("load_text", "name", name, TEXT_NAMES)
    check_option("load_text", "split", split, ("train", "test"))
    path = _find_file(folder, name, split, whole)
    texts, labels = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise broken_file_error(path, "a text in every row", f"{len(texts)} rows, not all of them texts")
    if labels is None:
        return texts, None
    try:
        return texts, np.array([_read_label(label) for label in labels], dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise broken_file_error(path, "a whole number of at least 0 as label in every row", str(error)) from None


def _read_label(given: Any) -> int:
    number = int(given)
    if number < 0 or number != float(given):
        raise ValueError(f"the label {given}")
    return number


def _find_file(folder: str | Path | None, name: str, split: str, whole: bool) -> Path:
    base = resolve_folder(folder) / "text"
    stems = [f"{name}_{split}", f"{name}/{split}-00000-of-00001", f"{name}/{split}"]
    if not whole:
        stems += [f"{name}_{split}_subset", *([f"{name}_5k"] if split == "test" else [])]
    for stem in stems:
        for ending in (".parquet", ".csv"):
            if (base / f"{stem}{ending}").is_file():
                return base / f"{stem}{ending}"
    source = (
        f"the {'whole ' if whole else ''}split {split!r} of {_SOURCES[name]!r} from the Hugging Face hub "
        f"(https://huggingface.co/datasets/{_SOURCES[name]}), with the columns 'text' and 'label',"
    )
    raise missing_file_error(f"{base / stems[0]}.parquet or .csv", advise(source, folder))


def _read_parquet(path: Path) -> tuple[list[Any], list[Any] | None]:
    pyarrow = import_package("pyarrow", needed_by="load_text")
    parquet = import_package("pyarrow.parquet", needed_by="load_text")
    try:
        table: Any = parquet.read_table(path)
        labels = table["label"].to_pylist() if "label" in table.column_names else None
        # DBPedia has its texts under another name.
        return table["content" if "content" in table.column_names else "text"].to_pylist(), labels
    except (pyarrow.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise broken_file_error(path, "a Parquet file with a column 'text'", error) from None


def _read_csv(path: Path) -> tuple[list[Any], list[Any] | None]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            is_without_names = re.match(r'"?\d+"?,"', file.readline()) is not None
            file.seek(0)
            rows = csv.DictReader(file, _AG_NEWS_COLUMNS if is_without_names else None, strict=True)
            names = list(rows.fieldnames or [])
            table = list(rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise broken_file_error(path, "a CSV file in UTF-8", error) from None
    if "text" not in names and names != _AG_NEWS_COLUMNS:
        raise broken_file_error(path, "a CSV file with a column 'text'", f"the columns {names}")
    if len(set(names)) != len(names) or any(None in row for row in table):
        raise broken_file_error(path, "a CSV file with as many columns as different names", f"the columns {names}")
    if names == _AG_NEWS_COLUMNS:
        return [f"{row['Title']} {row['Description']}" for row in table], [
            _count_from_0(row["Class Index"]) for row in table
        ]
    return [row["text"] for row in table], [row["label"] for row in table] if "label" in names else None


def _count_from_0(label: str) -> str:
    return str(int(label) - 1) if label.isdecimal() else label
