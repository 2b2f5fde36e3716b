"""The service on a real Ray cluster, with a real PostgreSQL."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import httpx
import pytest
from fastapi.testclient import TestClient

from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale.serving import run_replicas
from onsphere.service import Settings
from tests.scale.conftest import make_rows
from tests.service.conftest import PATIENT, postgres, query  # noqa: F401

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own

N_REQUESTS = 120


def test_the_command_serves_until_a_signal_comes(cluster, model_path, postgres):  # noqa: F811
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    from typer.testing import CliRunner

    from onsphere.cli import app

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answers = []

    def ask_and_stop():
        while not answers:
            with suppress(httpx.TransportError):
                found = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60)
                answers.extend([found.json()] if found.is_success else [])
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask_and_stop, daemon=True).start()
    options = ["--engine", "ray", "--store", postgres.url, "--port", str(port)]
    result = CliRunner().invoke(app, ["serve", str(model_path), *options])
    assert result.exit_code == 0, result.output
    assert answers == [{"status": "ok"}]
    assert f"at http://127.0.0.1:{port}" in result.output


@pytest.fixture(scope="module")
def address(model_path, postgres, cluster):  # noqa: F811
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    settings = Settings(str(model_path), store=postgres.url, port=0, workers=2, **PATIENT)
    with run_replicas(settings) as found:
        yield found


def make_request(number):
    row = make_rows(1, seed=number).to_pylist()[0]
    return {"rows": [row]}


def test_answers_are_those_of_the_plain_service(address, model_path, tmp_path):
    from onsphere.service.app import create_app

    settings = Settings(str(model_path), store=str(tmp_path / "plain.sqlite"), **PATIENT)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as plain:
        for body in (make_request(1), {"rows": make_rows(500, seed=2).to_pylist()}, {"rows": [{"size": "big"}]}):
            ours, theirs = (
                httpx.post(f"{address}/v1/assess", json=body, timeout=60),
                plain.post("/v1/assess", json=body),
            )
            assert ours.status_code == theirs.status_code
            if ours.is_success:
                assert ours.json() == theirs.json()
            else:
                assert ours.json()["error"] == theirs.json()["error"]


def test_a_killed_replica_loses_nothing_that_was_acknowledged(address, postgres):  # noqa: F811
    import ray

    acknowledged, lock, numbers = [], threading.Lock(), iter(range(N_REQUESTS))

    def send():
        with httpx.Client(timeout=60) as client:
            while (number := next(numbers, None)) is not None:
                for _ in range(100):  # a request without an answer is sent again
                    answer = client.post(f"{address}/v1/assess?key=id", json=make_request(1_000 + number))
                    if answer.is_success and answer.json()["recorded"]:
                        break
                    time.sleep(0.1)
                with lock:
                    acknowledged.append(f"{1_000 + number}-0")

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < N_REQUESTS // 4:
        time.sleep(0.01)
    named = ray.util.list_named_actors(all_namespaces=True)
    replicas = [actor for actor in named if actor["name"].startswith("SERVE_REPLICA")]
    ray.kill(ray.get_actor(**replicas[0]))
    assert len(replicas) == 2
    assert len(acknowledged) < N_REQUESTS
    for thread in threads:
        thread.join()
    stored = {key for (key,) in query(postgres.url, "SELECT key FROM onsphere_answers")}
    assert len(acknowledged) == N_REQUESTS
    assert stored >= set(acknowledged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Expected a PostgreSQL database as the store"),
        ({"store": "postgresql://nobody@localhost/x", "host": "0.0.0.0"}, "Got no keys"),
        ({"store": "postgresql://nobody@localhost/x", "certfile": "a.pem"}, "a certificate, which Ray does not take"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(options, message):
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    with pytest.raises(InvalidInputError, match=message), run_replicas(Settings("model.onsphere", **options)):
        pass


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray\[serve\]"), run_replicas(Settings("model.onsphere")):
        pass
