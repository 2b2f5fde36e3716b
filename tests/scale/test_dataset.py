import copy
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from onsphere.errors import InvalidInputError
from onsphere.scale import Assessor, assess_dataset, assessor
from onsphere.scale.dataset import DatasetSummary, _name_answers
from onsphere.scale.folders import Folder
from onsphere.scale.worker import Job, _can_hold, assess_file
from onsphere.table import fit_table
from tests.scale.conftest import make_rows, read_bytes, to_frame


def test_every_row_is_answered_in_the_folder_of_its_file(model_path, source, tmp_path):
    seen = []
    summary = assess_dataset(
        model_path,
        source,
        tmp_path / "out",
        n_workers=1,
        on_progress=lambda *done: seen.append(done),
    )
    assert (summary.files, summary.rows, summary.failures) == (4, 150, {})
    assert summary.accepted + sum(summary.rejected.values()) == 150
    assert seen[-1] == (150, 1.0)
    assert seen == sorted(seen)
    found = sorted(path.relative_to(tmp_path / "out").parts[0] for path in (tmp_path / "out").rglob("*.parquet"))
    assert found == ["year=2023", "year=2023", "year=2024", "year=2024"]
    # An independent way: one table, one call.
    rows = pa.concat_tables(make_rows(50, seed=ord(name)) for name in "abd")
    expected = Assessor(model_path)(rows).to_pandas()
    answers = to_frame(tmp_path / "out")
    assert answers["id"].tolist() == expected["id"].tolist()
    np.testing.assert_allclose(answers["upper"], expected["upper"], rtol=1e-9)
    record = json.loads((tmp_path / "out/_onsphere/summary.json").read_text())
    assert DatasetSummary(**record) == summary


def test_all_files_have_one_schema_also_the_empty_one(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    schemas = {parquet.read_schema(path).remove_metadata() for path in (tmp_path / "out").rglob("*.parquet")}
    assert len(schemas) == 1


# A run that is killed while it writes the answers of the third file.
KILLED = """
import os, signal, sys
from pyarrow import parquet
from onsphere.scale import assess_dataset

write, files = parquet.ParquetWriter.write_table, []

def kill_in_the_third(writer, table):
    write(writer, table)
    files.append(writer)
    if len(files) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

parquet.ParquetWriter.write_table = kill_in_the_third
assess_dataset(*sys.argv[1:], n_workers=1)
"""


def test_a_killed_run_goes_on_and_ends_like_an_undisturbed_one(model_path, tmp_path):
    source, out = tmp_path / "in", tmp_path / "killed"
    source.mkdir()
    for number in range(6):
        parquet.write_table(make_rows(500, seed=number), source / f"{number}.parquet")
    killed = subprocess.run([sys.executable, "-c", KILLED, model_path, source, out], check=False)
    assert killed.returncode == -signal.SIGKILL
    records = [json.loads(path.read_text()) for path in (out / "_onsphere/files").iterdir()]
    written = {out / record["output"]: (out / record["output"]).stat().st_mtime_ns for record in records}
    assert sorted(record["path"] for record in records) == ["0.parquet", "1.parquet"]
    assert len(list(out.glob(".2-*.part"))) == 1  # half of the third
    resumed = assess_dataset(model_path, source, out, n_workers=2)
    assert {path: path.stat().st_mtime_ns for path in written} == written  # not again
    assert resumed == assess_dataset(model_path, source, tmp_path / "calm", n_workers=1)
    assert read_bytes(out) == read_bytes(tmp_path / "calm")


def test_a_second_run_into_a_folder_waits_for_nothing_and_says_so(model_path, source, tmp_path):
    def start_another(n_rows, share):
        with pytest.raises(InvalidInputError, match="Expected a folder that no other run writes to"):
            assess_dataset(model_path, source, tmp_path / "out")

    assess_dataset(model_path, source, tmp_path / "out", n_workers=1, on_progress=start_another)


def test_another_model_or_option_needs_another_folder(model_path, graph_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    before = read_bytes(tmp_path / "out")
    with pytest.raises(InvalidInputError, match="begun with another model"):
        assess_dataset(graph_path, source, tmp_path / "out")
    with pytest.raises(InvalidInputError, match="begun with another coverage and keep"):
        assess_dataset(model_path, source, tmp_path / "out", coverage=0.5, keep=["city"])
    assert read_bytes(tmp_path / "out") == before
    assert assess_dataset(model_path, source, tmp_path / "out", coverage=0.9, n_workers=1).rows == 150  # of the fit


def test_files_that_change_or_go_are_followed(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    parquet.write_table(make_rows(7, seed=1), source / "year=2023/a.parquet")
    (source / "year=2024/d.parquet").unlink()
    summary = assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert (summary.files, summary.rows) == (3, 57)
    assert len(to_frame(tmp_path / "out")) == 57
    assert len(list((tmp_path / "out/_onsphere/files").iterdir())) == 3


def test_answers_that_somebody_removed_are_written_again(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    before = read_bytes(tmp_path / "out")
    next((tmp_path / "out/year=2023").iterdir()).unlink()
    assert assess_dataset(model_path, source, tmp_path / "out", n_workers=1).rows == 150
    assert read_bytes(tmp_path / "out") == before


@pytest.fixture
def poisoned(source):
    rows = make_rows(50, seed=9)
    sizes = [str(size) for size in rows["size"].to_pylist()]
    sizes[41] = "broken"
    parquet.write_table(rows.set_column(1, "size", [sizes]), source / "year=2023/b.parquet")
    (source / "year=2024/c.parquet").write_bytes(b"PAR1 and then nothing")
    return source


def test_a_file_that_cannot_be_read_is_named_with_its_row_and_the_others_are_kept(model_path, poisoned, tmp_path):
    summary = assess_dataset(model_path, poisoned, tmp_path / "out", on_error="skip", n_workers=1)
    assert (summary.files, summary.rows) == (2, 100)
    assert list(summary.failures) == ["year=2023/b.parquet", "year=2024/c.parquet"]
    assert "broken" in summary.failures["year=2023/b.parquet"]
    assert "41" in summary.failures["year=2023/b.parquet"] or "42" in summary.failures["year=2023/b.parquet"]
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2
    parquet.write_table(make_rows(50, seed=9), poisoned / "year=2023/b.parquet")
    assert assess_dataset(model_path, poisoned, tmp_path / "out", on_error="skip", n_workers=1).rows == 150


def test_a_run_can_stop_at_such_a_file_and_go_on(model_path, poisoned, tmp_path):
    with pytest.raises(InvalidInputError, match=r"year=2023/b\.parquet.*broken.*1 of 4 files are done and kept"):
        assess_dataset(model_path, poisoned, tmp_path / "out", n_workers=1)


def test_types_that_change_between_files_are_named_with_file_and_column(model_path, source, tmp_path):
    rows = make_rows(5)
    lots = [pa.array(np.arange(50)), pa.array([f"lot {row}" for row in range(50)])]
    for path, lot in zip(("year=2023/a.parquet", "year=2023/b.parquet"), lots, strict=True):
        parquet.write_table(make_rows(50).append_column("lot", lot), source / path)
    for path in ("year=2024/c.parquet", "year=2024/d.parquet"):
        parquet.write_table(rows.append_column("lot", pa.array(np.arange(5, dtype=np.int32))), source / path)
    summary = assess_dataset(model_path, source, tmp_path / "out", keep=["lot"], on_error="skip", n_workers=1)
    assert list(summary.failures) == ["year=2023/b.parquet"]
    assert "Expected the column lot to hold int64, as in the first file. Got string" in " ".join(
        summary.failures.values()
    )
    assert to_frame(tmp_path / "out")["lot"].dtype == np.int64


def test_keys_that_the_first_file_lacks_are_not_lost_without_a_word(model_path, source, tmp_path):
    parquet.write_table(make_rows(50).drop_columns(["id"]), source / "year=2023/a.parquet")
    with pytest.raises(InvalidInputError, match=r"Expected no column id in year=2023/b\.parquet, since the first file"):
        assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert assess_dataset(model_path, source, tmp_path / "without", keep=["city"], n_workers=1).rows == 150
    for path in source.rglob("[bcd].parquet"):
        parquet.write_table(parquet.read_table(path, partitioning=None).drop_columns(["id"]), path)
    assert assess_dataset(model_path, source, tmp_path / "no-keys", n_workers=1).rows == 150


def test_csv_arrow_and_compressed_files_are_read(model_path, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    rows = make_rows(20)
    csv.write_csv(rows, source / "a.csv")
    with pa.CompressedOutputStream(str(source / "b.csv.gz"), "gzip") as stream:
        csv.write_csv(rows, stream)
    feather.write_feather(rows, source / "c.arrow", compression="uncompressed")
    rows.to_pandas().to_csv(source / "0.csv.zip", index=False)  # the first file, which is looked at before the others
    for name in ("_skipped.csv", ".hidden.csv", "notes.md"):
        (source / name).write_text("not a table")
    summary = assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert (summary.files, summary.rows) == (4, 80)
    answers = to_frame(tmp_path / "out")
    assert answers["id"].tolist() == rows["id"].to_pylist() * 4


def test_folders_count_as_columns(table_fit, model_path, tmp_path):
    source = tmp_path / "in"
    for city in ("Rome", "Oslo", "__HIVE_DEFAULT_PARTITION__"):
        (source / f"city={city}").mkdir(parents=True)
        parquet.write_table(make_rows(10).drop_columns(["city"]), source / f"city={city}" / "a.parquet")
    assess_dataset(model_path, source, tmp_path / "out", keep=["id", "city"], n_workers=1)
    for city in ("Rome", "Oslo"):
        rows = make_rows(10).to_pandas().assign(city=city)
        expected = table_fit.model.predict(rows.drop(columns="id"))
        np.testing.assert_allclose(to_frame(tmp_path / f"out/city={city}")["value"], expected)
    without = make_rows(10).to_pandas().assign(city=None).drop(columns="id")
    found = to_frame(tmp_path / "out/city=__HIVE_DEFAULT_PARTITION__")["value"]
    np.testing.assert_allclose(found, table_fit.model.predict(without))


def test_drift_is_found_over_files_and_false_alarms_are_rare(model_path, tmp_path):
    alike, moved = tmp_path / "alike", tmp_path / "moved"
    for folder, scale in ((alike, 1.0), (moved, 3.0)):
        folder.mkdir()
        for number in range(3):
            parquet.write_table(make_rows(400, seed=20 + number, scale=scale), folder / f"{number}.parquet")
    found = [
        assess_dataset(model_path, folder, tmp_path / f"{folder.name}-out", n_workers=1) for folder in (alike, moved)
    ]
    assert found[0].log_e_value < np.log(100) < found[1].log_e_value


def test_the_mean_of_e_values_does_not_depend_on_their_order():
    from onsphere.scale.dataset import _Totals

    def summarize(values):
        totals = _Totals(0)
        for value in values:
            totals.add({"rows": 1, "accepted": 1, "size": 0, "rejected": {}, "log_e_value": value})
        return totals.summarize({}).log_e_value

    assert summarize([1.0, 2.0, 700.0]) == summarize([700.0, 1.0, 2.0]) == pytest.approx(700 - np.log(3))
    assert summarize([None, None]) is None
    assert _Totals(0).share == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine"),
        ({"on_error": "cry"}, "on_error"),
        ({"n_workers": 0}, "n_workers"),
        ({"address": "ray://nowhere"}, "Expected no address with the engine local"),
    ],
)
def test_options_are_checked(model_path, source, tmp_path, options, message):
    with pytest.raises(InvalidInputError, match=message):
        assess_dataset(model_path, source, tmp_path / "out", **options)


def test_folders_are_checked(model_path, source, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="without any"):
        assess_dataset(model_path, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(InvalidInputError, match="Expected a folder that can be used"):
        assess_dataset(model_path, tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InvalidInputError, match="Expected a folder to write to"):
        assess_dataset(model_path, source, model_path / "out")
    with pytest.raises(InvalidInputError, match="Expected a folder that can be used: ftp"):
        assess_dataset(model_path, "ftp://somewhere/in", tmp_path / "out")


def test_answers_inside_the_folder_of_the_files_are_no_files_to_assess(model_path, source):
    for _ in range(2):
        assert assess_dataset(model_path, source, source / "out", n_workers=1).files == 4
    assert assess_dataset(model_path, source, source / "again", n_workers=1).files == 4
    for out in (source, source / "year=2024"):
        with pytest.raises(InvalidInputError, match="Expected another folder for the answers than one with files"):
            assess_dataset(model_path, source, out)
    shutil.rmtree(source / "out")
    shutil.rmtree(source / "again")
    assert assess_dataset(model_path, source, source.with_name("input"), n_workers=1).files == 4  # not inside "in"


def test_a_full_disk_ends_a_run_that_can_go_on(model_path, source, tmp_path, monkeypatch):
    """A limit on the size of files does what a full disk does."""
    usual, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, usual[1]))
    try:
        with pytest.raises(InvalidInputError, match=r"free space on the disk\. .* run this again to go on"):
            assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, handler)
    assert assess_dataset(model_path, source, tmp_path / "out", n_workers=1).rows == 150


def test_a_node_loads_the_model_that_it_is_sent_once_and_leaves_no_copy(model_path, source, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content = model_path.read_bytes()
    digest = f"{hashlib.sha256(content).hexdigest()}.onsphere"
    [file] = [file for file in Folder(source).list_files() if file.path.endswith("a.parquet")]
    answers = _name_answers(file, digest)
    job = Job(file, Folder(source), Folder(tmp_path / "out"), *answers, digest, None, pa.schema([]), ())
    assert str(job) == "year=2023/a.parquet"
    monkeypatch.setattr("onsphere.scale.worker._loaded", {})
    (tmp_path / f"onsphere-{digest}").write_bytes(b"a model that somebody planted")
    assert "Expected the model that this run began with" in assess_file(job, b"another")["error"]
    assert assess_file(job, content)["rows"] == 50
    assert assess_file(job, b"which is not read again")["rows"] == 50
    monkeypatch.setattr("onsphere.scale.worker._loaded", {})
    assert assess_file(job, content)["rows"] == 50  # as another process on this machine does
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("onsphere-")]


def test_a_model_without_a_threshold_accepts_and_rejects_nothing(table_fit, source, tmp_path):
    model = copy.deepcopy(table_fit.model)
    model.threshold_ = model.novelty_threshold_ = None
    model.save(tmp_path / "open.onsphere", summary=table_fit.summary())
    summary = assess_dataset(tmp_path / "open.onsphere", source, tmp_path / "out", n_workers=1)
    assert (summary.rows, summary.accepted, summary.rejected) == (150, 0, {})


# --- what a run trusts, and what it leaves alone ---


def test_options_that_came_to_nothing_do_not_keep_others_out(model_path, source, tmp_path):
    message = r"Expected the column\(s\) lott in year=2023/a\.parquet\. Got id, size, age, city, year\."
    with pytest.raises(InvalidInputError, match=message):
        assess_dataset(model_path, source, tmp_path / "out", keep=["lott"])
    assert assess_dataset(model_path, source, tmp_path / "out", keep=["id"], n_workers=1).rows == 150


def test_another_source_needs_another_folder(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    before = read_bytes(tmp_path / "out")
    with pytest.raises(InvalidInputError, match="begun with another source"):
        assess_dataset(model_path, source / "year=2023", tmp_path / "out", n_workers=1)
    assert read_bytes(tmp_path / "out") == before


def test_a_full_disk_ends_the_run_even_if_bad_files_are_skipped(model_path, source, tmp_path, monkeypatch):
    tried = []

    def fill(*arguments):
        tried.append(arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("onsphere.scale.worker._write_answers", fill)
        message = r"No space left on device\. .* 0 of 4 files are done and kept; make room, and run this again"
        with pytest.raises(InvalidInputError, match=message):
            assess_dataset(model_path, source, tmp_path / "out", n_workers=1, on_error="skip")
    assert len(tried) == 1
    assert assess_dataset(model_path, source, tmp_path / "out", n_workers=1).rows == 150


def test_one_process_loads_the_model_once(model_path, source, tmp_path, monkeypatch):
    loaded, load = [], assessor.open_deployed
    monkeypatch.setattr(assessor, "open_deployed", lambda path, content: loaded.append(path) or load(path, content))
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert loaded == [model_path]


def test_a_model_that_is_saved_again_under_its_name_is_loaded_again(table_fit, source, tmp_path):
    path, values = tmp_path / "model.onsphere", []
    for number in range(2):
        model = copy.deepcopy(table_fit.model)
        if number:
            model.threshold_ = model.novelty_threshold_ = None
        model.save(path, summary=table_fit.summary())
        values.append(assess_dataset(path, source, tmp_path / f"out-{number}", n_workers=1).accepted)
    assert values[0] > 0
    assert values[1] == 0


def test_a_damaged_record_or_answer_is_written_again(model_path, source, tmp_path):
    out = tmp_path / "out"
    summary = assess_dataset(model_path, source, out, n_workers=1)
    before = read_bytes(out)
    records = sorted((out / "_onsphere/files").iterdir())
    whole = json.loads(records[3].read_text())
    for record, text in zip(records, ("", "{}", "[]", json.dumps(whole | {"rejected": {"noise": "x"}})), strict=True):
        record.write_text(text)
    assert assess_dataset(model_path, source, out, n_workers=1) == summary
    assert read_bytes(out) == before
    next((out / "year=2023").iterdir()).write_text("x")
    assert assess_dataset(model_path, source, out, n_workers=1) == summary
    assert read_bytes(out) == before
    (out / "_onsphere/run.json").write_text("[1]")
    with pytest.raises(InvalidInputError, match=r"whose _onsphere/run\.json is damaged"):
        assess_dataset(model_path, source, out, n_workers=1)


def test_nothing_is_removed_but_what_a_run_wrote(model_path, source, tmp_path):
    out = tmp_path / "out"
    assess_dataset(model_path, source, out, n_workers=1)
    (out / "mine").mkdir()
    (out / "mine/.download.part").write_text("half")
    left = out / "mine/.a-0123456789abcdef.parquet.17-0.part"
    left.write_text("of a process that was killed")
    (tmp_path / "man").mkdir()
    (tmp_path / "man/a.parquet").write_text("mine")
    (out / "_onsphere/files/0123456789abcdef.json").write_text('{"output": "../man/a.parquet", "record": "../man"}')
    assert assess_dataset(model_path, source, out, n_workers=1).files == 4
    assert (tmp_path / "man/a.parquet").exists()
    assert (out / "mine/.download.part").exists()
    assert not left.exists()
    assert not (out / "_onsphere/files/0123456789abcdef.json").exists()


def test_a_run_that_stops_leaves_no_old_summary(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    (source / "year=2024/d.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInputError, match=r"d\.parquet"):
        assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert not (tmp_path / "out/_onsphere/summary.json").exists()


def test_pyarrow_has_its_threads_back(model_path, source, tmp_path):
    before = pa.cpu_count()
    pa.set_cpu_count(3)
    try:
        assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
        assert pa.cpu_count() == 3
    finally:
        pa.set_cpu_count(before)


# --- files that differ ---


@pytest.mark.parametrize("content", [b"PAR1 and then nothing", b"", b"other,columns\n1,2\n"])
def test_a_first_file_that_cannot_be_read_is_skipped(model_path, source, tmp_path, content):
    (source / "year=2023/a.parquet").unlink()
    (source / "year=2023/a.csv").write_bytes(content)
    summary = assess_dataset(model_path, source, tmp_path / "out", on_error="skip", n_workers=1)
    assert (summary.rows, list(summary.failures)) == (100, ["year=2023/a.csv"])
    with pytest.raises(InvalidInputError, match=r"year=2023/a\.csv"):
        assess_dataset(model_path, source, tmp_path / "stopped", n_workers=1)
    for path in source.rglob("*.parquet"):
        path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInputError, match="Expected"):
        assess_dataset(model_path, source, tmp_path / "none", on_error="skip", n_workers=1)


def test_whatever_one_file_holds_the_others_are_assessed(model_path, source, tmp_path):
    rows = make_rows(5)
    cities = pa.array([b"\xff\xfe"] * 5, pa.binary())
    parquet.write_table(rows.set_column(3, "city", cities), source / "year=2023/b.parquet")
    strange = os.fsencode(source) + b"/year=2024/\xff.csv"
    with open(strange, "wb") as file:
        file.write(b"nothing\n")
    summary = assess_dataset(model_path, source, tmp_path / "out", on_error="skip", n_workers=1)
    assert summary.files == 3
    assert sorted(summary.failures)[0] == "year=2023/b.parquet"
    assert len(summary.failures) == 2


def test_a_csv_file_with_a_header_alone_has_answers_without_rows(model_path, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_text("id,size,age,city\n")
    csv.write_csv(make_rows(5), source / "b.csv")
    summary = assess_dataset(model_path, source, tmp_path / "out", n_workers=1)
    assert (summary.files, summary.rows) == (2, 5)
    schemas = {parquet.read_schema(path).remove_metadata() for path in (tmp_path / "out").glob("*.parquet")}
    assert len(schemas) == 1


def test_a_key_without_cells_has_the_type_of_a_later_file(model_path, source, tmp_path):
    for path in ("year=2023/a.parquet", "year=2023/b.parquet"):
        rows = make_rows(5)
        parquet.write_table(rows.set_column(0, "id", pa.nulls(5)), source / path)
    assert assess_dataset(model_path, source, tmp_path / "out", n_workers=1).rows == 60
    assert to_frame(tmp_path / "out")["id"].notna().sum() == 50
    parquet.write_table(make_rows(5).set_column(0, "id", pa.nulls(5)), source / "year=2024/c.parquet")
    parquet.write_table(make_rows(5).set_column(0, "id", pa.nulls(5)), source / "year=2024/d.parquet")
    assert assess_dataset(model_path, source, tmp_path / "null", n_workers=1).rows == 20


@pytest.mark.parametrize(
    ("first", "later", "fits"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int64(), pa.string(), False),
        (pa.int64(), pa.bool_(), False),
        (pa.int64(), pa.timestamp("ns"), False),
        (pa.timestamp("ns"), pa.timestamp("us"), True),
        (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), False),
        (pa.string(), pa.dictionary(pa.int8(), pa.large_string()), True),
        (pa.float64(), pa.float32(), True),
        (pa.float32(), pa.float64(), False),
        (pa.date32(), pa.date32(), True),
        (pa.date32(), pa.null(), True),
    ],
)
def test_keys_are_never_changed_by_the_types_of_other_files(first, later, fits):
    assert _can_hold(first, later) == fits


def test_a_key_that_is_named_like_an_answer_is_kept_under_another_name(table_fit, source, tmp_path):
    frame = make_rows(300).to_pandas().rename(columns={"id": "reason"})
    found = fit_table(frame.assign(price=frame["size"]), ["price"], backbone="kernel", keys=["reason"])
    found.model.save(tmp_path / "model.onsphere", summary=found.summary())
    for path in source.rglob("*.parquet"):
        rows = parquet.read_table(path, partitioning=None)
        parquet.write_table(rows.rename_columns(["reason", *rows.column_names[1:]]), path)
    assess_dataset(tmp_path / "model.onsphere", source, tmp_path / "out", n_workers=1)
    answers = to_frame(tmp_path / "out")
    assert answers["key_reason"].tolist()[:2] == ["97-0", "97-1"]
    assert "97-0" not in set(answers["reason"])


def test_a_column_that_is_kept_of_folders_is_read_back_from_them(model_path, source, tmp_path):
    assess_dataset(model_path, source, tmp_path / "out", keep=["id", "year"], n_workers=1)
    assert sorted(set(pd.read_parquet(tmp_path / "out")["year"].astype(int))) == [2023, 2024]


def test_long_names_are_cut(model_path, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    parquet.write_table(make_rows(5), source / f"{'é' * 120}.parquet")
    assert assess_dataset(model_path, source, tmp_path / "out", n_workers=1).rows == 5


def test_a_link_to_a_file_that_is_gone_is_told(model_path, source, tmp_path):
    (source / "gone.parquet").symlink_to(tmp_path / "nowhere.parquet")
    found = assess_dataset(model_path, source, tmp_path / "out", n_workers=1, on_error="skip")
    assert found.files == 4
    assert "does not exist" in found.failures["gone.parquet"]


def test_what_a_worker_was_writing_is_removed_if_a_run_is_stopped(model_path, source, tmp_path):
    part = tmp_path / f"out/.a-{'0' * 16}.parquet.1-1.part"

    def stop(n_rows, share):
        part.write_bytes(b"half of the answers")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assess_dataset(model_path, source, tmp_path / "out", n_workers=1, on_progress=stop)
    assert not part.exists()
