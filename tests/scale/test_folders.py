"""A filesystem that is not this disk: files are copied from it and to it."""

import os
import pickle

import pytest
from pyarrow import fs

from onsphere.errors import InvalidInputError
from onsphere.scale import assess_dataset
from onsphere.scale.folders import Folder
from tests.scale.conftest import read_bytes


@pytest.fixture
def elsewhere(monkeypatch):
    """Let addresses such as far:///tmp/in lead to a filesystem that is not the local one."""

    usual = vars(Folder)["_location"].func

    def find(folder):
        is_far = folder.place.startswith("far:///")
        far = fs.SubTreeFileSystem("/", fs.LocalFileSystem())
        return (far, folder.place.removeprefix("far:///")) if is_far else usual(folder)

    monkeypatch.setattr(Folder, "_location", property(find))


def test_files_elsewhere_are_assessed_as_those_on_this_disk(elsewhere, model_path, source, tmp_path):
    for name in ("far/year=2023", "far/year=2024", "far/_onsphere/files"):  # an object store needs no folders
        (tmp_path / name).mkdir(parents=True)
    far = assess_dataset(model_path, f"far://{source}", f"far://{tmp_path}/far", n_workers=1)
    near = assess_dataset(model_path, source, tmp_path / "near", n_workers=1)
    assert far == near
    answers = {name: content for name, content in read_bytes(tmp_path / "near").items() if name.endswith("parquet")}
    assert answers == {
        name: content for name, content in read_bytes(tmp_path / "far").items() if name.endswith("parquet")
    }
    (source / "year=2023/a.parquet").unlink()
    assert assess_dataset(model_path, f"far://{source}", f"far://{tmp_path}/far", n_workers=1).files == 3
    assert len(list((tmp_path / "far").rglob("*.parquet"))) == 3


def test_what_cannot_be_copied_is_said(elsewhere, tmp_path):
    with (
        pytest.raises(InvalidInputError, match="Expected a folder that can be used: far"),
        Folder(f"far://{tmp_path}").open_copy("nothing.csv"),
    ):
        pass


def test_links_lead_to_other_folders_but_not_in_circles(tmp_path):
    (tmp_path / "in/d.parquet").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("in/a.parquet", "in/d.parquet/p.csv", "other/b.csv"):
        (tmp_path / name).write_text("rows")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/other").symlink_to(tmp_path / "other")
    (tmp_path / "other/back").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in/pipe.csv")  # is no file
    (tmp_path / "in/gone.csv").symlink_to(tmp_path / "nowhere")  # leads to nothing, which is to be told later
    found = [file.path for file in Folder(tmp_path / "in").list_files()]
    assert found == ["a.parquet", "d.parquet/p.csv", "gone.csv", "other/b.csv"]


def test_an_ending_inside_a_name_makes_no_table(tmp_path):
    for name in ("a.csv", "a.csv.md5", "b.csv.bak", "c.CSV.gz", "d.tsv.zip", "e.parquet", "f.dat"):
        (tmp_path / name).write_text("rows")
    assert [file.path for file in Folder(tmp_path).list_files()] == ["a.csv", "c.CSV.gz", "d.tsv.zip", "e.parquet"]


def test_a_relative_place_is_the_same_for_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(Folder("in"))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).root == tmp_path / "in"


def test_a_folder_has_a_name():
    with pytest.raises(InvalidInputError, match="Got an empty one"):  # and not all of the working folder
        Folder("")


def test_a_missing_folder_is_named_without_a_number(tmp_path):
    with pytest.raises(InvalidInputError, match=rf"be used: {tmp_path}/gone\. Got: No such file or directory: "):
        Folder(tmp_path / "gone").list_inputs()


def test_removing_what_is_not_there_is_no_error(tmp_path):
    Folder(tmp_path).remove("nothing.csv")
