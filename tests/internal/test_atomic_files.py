"""Atomic files: they are written completely or not at all."""

import os
import subprocess
import sys

import pytest

from onsphere import InvalidInputError
from onsphere._internal.atomic_files import check_writable, write_atomically


def read_files(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with write_atomically(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert read_files(tmp_path) == {"a.txt": "new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_only_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write():
        with write_atomically(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert read_files(tmp_path) == {"a.txt": "old"}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.txt", tmp_path / "there/a.txt"
    link.symlink_to(target)
    with write_atomically(link) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert read_files(tmp_path / "there") == {"a.txt": "new"}


def test_only_ordinary_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/full")
    unwritable = {tmp_path / "pipe": "not an ordinary", tmp_path / "link": "not an ordinary", tmp_path: "a folder"}
    for path, words in unwritable.items():
        with pytest.raises(InvalidInputError, match=words):
            check_writable(path)
        with pytest.raises(InvalidInputError, match=words), write_atomically(path):
            pass
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.parametrize("path", ["", "/", "/no/such/folder/a.txt", "a" * 300])
def test_a_path_that_cannot_be_written_is_an_error_before_the_work(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"Expected to write .*\. Nothing there was changed"):
        check_writable(path)
    assert list(tmp_path.iterdir()) == []


def test_a_check_changes_no_file(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    check_writable(tmp_path / "a.txt")
    check_writable(tmp_path / "b.txt")
    assert read_files(tmp_path) == {"a.txt": "old"}


def test_an_input_file_is_not_overwritten(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    check_writable(tmp_path / "b.txt", tmp_path / "a.txt")
    with pytest.raises(InvalidInputError, match="Expected an output file that is not also an input"):
        check_writable(tmp_path / "link.txt", tmp_path / "b.txt", tmp_path / "a.txt")


def test_an_error_of_the_caller_is_not_reported_as_a_failure_to_write(tmp_path):
    for error in (FileNotFoundError(2, "No such file", "other.txt"), OSError("some other kind")):
        with (
            pytest.raises(OSError, match=r"No such file|some other kind") as caught,
            write_atomically(tmp_path / "a.txt"),
        ):
            raise error
        assert caught.value is error
    with pytest.raises(InvalidInputError, match="Expected to write"), write_atomically(tmp_path / "no/a.txt") as part:
        part.write_text("new")
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_do_not_interfere(tmp_path):
    with write_atomically(tmp_path / "a.txt") as first, write_atomically(tmp_path / "a.txt") as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert read_files(tmp_path) == {"a.txt": "first"}


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A limit on the size of files stands in for a full disk."""
    (tmp_path / "a.txt").write_text("old")
    code = f"""
import resource, signal
from onsphere._internal.atomic_files import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with write_atomically({str(tmp_path / "a.txt")!r}) as part:
    part.write_bytes(bytes(5000))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Expected to write" in done.stderr
    assert read_files(tmp_path) == {"a.txt": "old"}


def test_missing_folders_are_made_if_that_is_wanted(tmp_path):
    with write_atomically(tmp_path / "new/folder/a.txt", folders=True) as part:
        part.write_text("new")
    assert read_files(tmp_path / "new/folder") == {"a.txt": "new"}
