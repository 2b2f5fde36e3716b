"""The service on a real Ray cluster, with a real PostgreSQL."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from types import SimpleNamespace
from unittest import mock

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from onsphere.cli import app
from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale.serving import _find_free_port, build_app, run_replicas
from onsphere.service import Settings
from tests.scale.conftest import make_rows
from tests.service.conftest import PATIENT, SLOW_MACHINE, postgres, query  # noqa: F401

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own

N_REQUESTS = 80


def make_request(number):
    return {"rows": make_rows(1, seed=number).to_pylist()}


def wait_until_ready(address):
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"{address}/healthz", timeout=60).is_success:
                return
        time.sleep(0.1)


def compare_with_plain_service(address, model_path, folder):
    settings = Settings(str(model_path), store=str(folder / "plain.sqlite"), **PATIENT)
    with ExitStack() as stack:
        # One thread, as Ray gives to a replica: the number of threads decides how sums are rounded.
        stack.enter_context(mock.patch.dict(os.environ, OMP_NUM_THREADS="1"))
        plain = build_app(settings.to_environment())
        client = stack.enter_context(TestClient(plain, base_url="http://127.0.0.1"))
        for body in (make_request(1), {"rows": make_rows(500, seed=2).to_pylist()}, {"rows": [{"size": "big"}]}):
            ours, theirs = (
                httpx.post(f"{address}/v1/assess", json=body, timeout=60),
                client.post("/v1/assess", json=body),
            )
            assert ours.status_code == theirs.status_code
            assert ours.json() == theirs.json()


def kill_a_replica_under_load(address, url):
    import ray

    acknowledged, numbers = [], iter(range(N_REQUESTS))

    def send():
        with httpx.Client(timeout=60) as client:
            for number in numbers:
                answer = None
                while answer is None or not (answer.is_success and answer.json()["recorded"]):  # then send it again
                    with suppress(httpx.TransportError):
                        answer = client.post(f"{address}/v1/assess?key=id", json=make_request(1_000 + number))
                acknowledged.append(f"{1_000 + number}-0")

    threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
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
    stored = {json.loads(key) for (key,) in query(url, "SELECT key FROM onsphere_answers")}
    assert len(acknowledged) == N_REQUESTS
    assert stored >= set(acknowledged)


def test_replicas_answer_as_the_plain_service_and_one_that_is_killed_loses_nothing(
    node,
    model_path,
    postgres,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """One start of the command, because it takes long; what is asked of it happens in a thread beside it."""
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    for name, value in SLOW_MACHINE.items():
        monkeypatch.setenv(name, value)
    port = _find_free_port("127.0.0.1")
    address, errors = f"http://127.0.0.1:{port}", []

    def ask_and_stop():
        try:
            wait_until_ready(address)
            compare_with_plain_service(address, model_path, tmp_path)
            kill_a_replica_under_load(address, postgres.url)
        except BaseException as error:
            errors.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask_and_stop, daemon=True).start()
    options = ["--engine", "ray", "--workers", "2", "--store", postgres.url, "--port", str(port)]
    result = CliRunner().invoke(app, ["serve", str(model_path), *options])
    assert result.exit_code == 0, result.output
    assert not errors, errors
    assert f"at {address}" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Expected a PostgreSQL database as the store"),
        ({"store": "postgresql://nobody@localhost/x", "host": "0.0.0.0"}, "Got no keys"),
        ({"store": "postgresql://nobody@localhost/x", "certfile": "a.pem"}, "a certificate, which Ray does not take"),
        ({"store": "postgresql://nobody@localhost/x"}, r"Got model\.onsphere, which does not exist"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(options, message):
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    with pytest.raises(InvalidInputError, match=message), run_replicas(Settings("model.onsphere", **options)):
        pass


class OtherServe:
    """Stands for Ray Serve where the application of somebody else runs."""

    def __init__(self, applications):
        self.applications, self.called = applications, []

    def status(self):
        return SimpleNamespace(proxies={}, applications=self.applications)

    def run(self, *_, **__):
        raise RuntimeError("Deploying application onsphere failed")

    def __getattr__(self, name):
        return lambda *arguments, **options: self.called.append(name) or (lambda *_: mock.MagicMock())


@pytest.mark.parametrize(("others", "ends"), [({}, ["delete", "shutdown"]), ({"theirs": 1}, ["delete"])])
def test_replicas_that_do_not_start_are_told_and_other_applications_stay(model_path, monkeypatch, others, ends):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    serve = OtherServe(others)
    monkeypatch.setattr(ray, "serve", serve)
    monkeypatch.setattr("onsphere.scale.serving.connect", lambda address: nullcontext())
    settings = Settings(str(model_path), store="postgresql://nobody@localhost/x")
    with pytest.raises(InvalidInputError, match="Expected replicas that start"), run_replicas(settings):
        pass
    assert serve.called[-len(ends) :] == ends
    assert ("shutdown" in serve.called) == ("shutdown" in ends)


def test_an_address_without_ray_is_refused(model_path):
    result = CliRunner().invoke(app, ["serve", str(model_path), "--address", "ray-head:6379"])
    assert result.exit_code == 2
    assert "Expected --engine ray with --address ray-head:6379" in result.stderr


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray\[serve\]"), run_replicas(Settings("model.onsphere")):
        pass
