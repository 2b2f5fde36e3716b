"""Small models, and services that answer on real sockets: in a thread of this process, or as processes of their own."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.linear_model import Ridge

from onsphere import AcceptShare, HCMClassifier, HCMRegressor, Novelty
from onsphere.export.deployed import open_deployed
from onsphere.service import Settings, create_app
from onsphere.service.metrics import JsonLines
from onsphere.service.server import TimedConfig, TimedServer, _listen
from onsphere.service.store import Record, Store, open_database
from onsphere.table import fit_table
from onsphere.table.columns import Column

ROW = {"size": 0.5, "rooms": 3, "shop": "a", "new": True, "day": "2024-03-01"}
# A busy machine may take long for what is quick elsewhere; tests of the limits themselves say their own.
PATIENT = {"store_timeout": 60.0, "trial_timeout": 300.0}
SLOW_MACHINE = {f"ONSPHERE_{name.upper()}": str(seconds) for name, seconds in PATIENT.items()}
FAR = {**ROW, "size": 9.0}  # which the model rejects
POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nowhere"))


def table(n_rows=160, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(n_rows) + 1000,
            "size": rng.normal(size=n_rows),
            "rooms": rng.integers(1, 6, n_rows).astype(float),
            "shop": rng.choice(["a", "b", "c"], n_rows),
            "new": rng.random(n_rows) > 0.5,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n_rows), unit="D"),
            "site": "x",
        }
    )
    frame["price"] = 3 * frame["size"] + frame.rooms + (frame.shop == "a") + rng.normal(size=n_rows) * 0.2
    return frame


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Paths of models by name."""
    folder = tmp_path_factory.mktemp("models")
    fit = fit_table(table(), ["price"], backbone="kernel")
    paths = {"table": fit.model.save(folder / "table.onsphere", summary={"data": "table.csv", **fit.summary()})}
    other = fit_table(table(seed=1), ["price"], backbone="kernel")
    paths["other"] = other.model.save(folder / "other.onsphere", summary={"data": "table.csv", **other.summary()})
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=200)
    ridge = HCMRegressor(Ridge(), calibration="split", random_state=0)
    rules = AcceptShare(0.9), Novelty(false_alarm=0.1)
    ridge.fit(X, y).set_threshold(rules[0], novelty=rules[1])
    paths["array"] = ridge.save(folder / "array.onsphere")
    both = pd.DataFrame({"north": y, "south": -y})
    several = HCMRegressor(Ridge(), calibration="split", random_state=0).fit(X, both)
    paths["several"] = several.set_threshold(rules[0], novelty=rules[1]).save(folder / "several.onsphere")
    labels = np.where(y > 0, "up", "down")
    classes = HCMClassifier(Ridge(), calibration="split", random_state=0).fit(
        pd.DataFrame(X, columns=["a", "b"]), labels
    )
    paths["classes"] = classes.set_threshold(rules[0], novelty=rules[1]).save(folder / "classes.onsphere")
    paths["plain"] = HCMRegressor(Ridge(), random_state=0).fit(X, y).save(folder / "plain.onsphere")
    return paths


@pytest.fixture(scope="session")
def fitted(models):
    from onsphere import load

    return load(models["table"])


@pytest.fixture(scope="session")
def facts(models):
    return open_deployed(models["table"]).facts


@pytest.fixture(scope="session")
def other_facts(models):
    return open_deployed(models["other"]).facts


@pytest.fixture(scope="session")
def text_facts(facts):
    """Of a table whose numbers, booleans and dates came as text."""
    columns = (
        Column("n", "number", written_as_text=True),
        Column("m", "number", written_as_text=True, mixed=True),
        Column("b", "boolean", written_as_text=True),
        Column("d", "date", date_format="%d.%m.%Y"),
        Column("e", "date", date_format="%d.%m.%Y", mixed=True),
    )
    return replace(facts, columns=columns)


def arrow(table, *, file=False, **options):
    """A table as the bytes of an Arrow stream or file."""
    out, open_writer = io.BytesIO(), pa.ipc.new_file if file else pa.ipc.new_stream
    with open_writer(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.fixture
def open_store():
    """Open a store of a URL; it is closed after the test."""
    with ExitStack() as stores:

        def open_store(url, keep=100, alpha=0.01, keep_answers=1_000):
            store = Store(open_database(url), alpha=alpha, keep=keep, keep_answers=keep_answers)
            stores.callback(store.close)
            return store

        yield open_store


def record(facts, uncertainty, request="r", **more):
    """A record of a request with these uncertainties, as novel as calibration rows unless it is said."""
    scores = np.atleast_1d(np.asarray(uncertainty, dtype=float))
    missed = None if facts.missed is None else np.resize(more.get("missed", facts.missed), len(scores))
    at, rejected = more.pop("at", time.time()), more.pop("rejected", [])
    more.pop("missed", None)
    started = time.perf_counter() - 0.01
    return Record(at, started, request, scores, missed, len(scores), rejected, facts=facts, **more)


def query(url, text):
    """Run a statement on a connection of its own."""
    engine = open_database(url)
    with engine.connect() as connection:
        result = connection.exec_driver_sql(text)
        rows = [tuple(row) for row in result] if result.returns_rows else []
        connection.commit()
    engine.dispose()
    return rows


class PostgresServer:
    """A private server on a free port."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"postgresql://onsphere@127.0.0.1:{self.port}/postgres"
        self.run("initdb", "-D", folder, "-U", "onsphere", "-A", "trust", "--no-sync")
        self.start()

    def run(self, name, *arguments):
        command = [str(POSTGRES / name), *map(str, arguments)]
        if os.getuid() == 0:  # the server does not run as root
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self.run("pg_ctl", "-D", self.folder, "-w", "-o", options, "start")

    def stop(self):
        self.run("pg_ctl", "-D", self.folder, "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres():
    if not (POSTGRES / "initdb").exists():
        pytest.skip("the binaries of PostgreSQL are not installed")
    with tempfile.TemporaryDirectory(prefix="onsphere-pg-") as folder:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
        server = PostgresServer(Path(folder) / "data")
        yield server
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    server = request.getfixturevalue("postgres")
    query(server.url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server.url


class Running:
    """A service in a thread of this process."""

    def __init__(self, settings):
        self.app = create_app(settings)
        self.service = self.app.state.service
        self.listener = _listen(settings.model_copy(update={"host": "127.0.0.1", "port": 0}))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = TimedServer(TimedConfig(self.app, settings))
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def __enter__(self):
        self._thread.start()
        until(lambda: self.server.started)
        self.http = httpx.Client(base_url=self.url, timeout=120, verify=False)
        return self

    def __exit__(self, *_):
        self.http.close()
        self.server.should_exit = True
        self._thread.join()

    def assess(self, *rows, **options):
        return self.http.post("/v1/assess", json={"rows": list(rows)}, **options)


def until(true, seconds=120.0):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


@pytest.fixture
def running(models, tmp_path):
    """Start a service; all settings can be given, and the model by its name."""
    started = []

    def start(model="table", **given):
        source = Path(models.get(model, model))
        path = tmp_path / f"served{len(started)}{source.suffix}"
        shutil.copy(source, path)
        service = Running(Settings(**{"model": str(path), "watch": 0.0, **PATIENT, **given}))
        started.append(service.__enter__())
        return service

    yield start
    for service in started:
        service.__exit__()


@pytest.fixture(scope="session")
def shared(models, tmp_path_factory):
    """A service for tests that change nothing."""
    store = tmp_path_factory.mktemp("shared") / "store.sqlite"
    with Running(Settings(str(models["table"]), watch=0.0, store=str(store), **PATIENT)) as service:
        yield service


@pytest.fixture
def logs(monkeypatch):
    """The lines that services in this process write, as dicts."""
    found, plain = [], JsonLines.format

    def kept(self, record):
        line = plain(self, record)
        found.append(json.loads(line))
        return line

    monkeypatch.setattr(JsonLines, "format", kept)
    return found


@contextmanager
def process(model, *options, env=None, expect_start=True):
    """A service as a process of its own; its address is in `url`."""
    command = [sys.executable, "-c", _START, str(model), json.dumps(options)]
    with tempfile.TemporaryFile("w+") as logs:  # and no pipe, which is full after some hundred requests
        run = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=logs,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **SLOW_MACHINE, **(env or {})},
            start_new_session=True,
        )
        run.read_logs = lambda: (logs.seek(0), logs.read())[1]
        run.http = None
        try:
            if expect_start:
                run.url = run.stdout.readline().split(" at ")[1].split(" ")[0].replace("0.0.0.0", "127.0.0.1")
                run.http = httpx.Client(base_url=run.url, timeout=120, verify=False)
                until(lambda: answers(run.http), seconds=900.0)
            yield run
        finally:
            if run.http is not None:
                run.http.close()
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.communicate()


def answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


# As `onsphere serve` does it.
_START = """
import json, sys
from onsphere.cli import app
from onsphere.cli.serve import serve
app.command()(serve)
sys.argv = ["onsphere", "serve", sys.argv[1], "--port", "0", *json.loads(sys.argv[2])]
if __name__ == "__main__":
    app()
"""


def pause(service):
    """Stop the process that answers small requests, and return what lets it go on."""
    number = service.service.served.live.small._process.pid
    os.kill(number, signal.SIGSTOP)
    return lambda: os.kill(number, signal.SIGCONT)


@pytest.fixture(scope="session")
def helpers():
    """Rows and functions that several files of tests use."""
    return SimpleNamespace(
        row=ROW,
        far=FAR,
        table=table,
        process=process,
        until=until,
        arrow=arrow,
        record=record,
        query=query,
        pause=pause,
    )
