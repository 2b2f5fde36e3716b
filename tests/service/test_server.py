"""Starting and stopping: in this process, and as `onsphere serve` starts it, with several workers and kill -9."""

import importlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner
from uvicorn.supervisors import multiprocess

from onsphere import InvalidInputError, MissingExtraError
from onsphere.service import Settings, hash_key, make_key, serve
from onsphere.service.metrics import Metrics

serve_module = sys.modules["onsphere.service.server"]


app_module = sys.modules["onsphere.service.app"]


@pytest.fixture
def model(models, tmp_path):
    return str(shutil.copy(models["table"], tmp_path / "model.onsphere"))


def test_it_starts_answers_with_a_key_and_stops(model, helpers):
    key = make_key()
    options = ("--host", "0.0.0.0", "--forwarded-allow-ips", "127.0.0.1", "--workers", "2")
    with helpers.process(model, *options, env={"ONSPHERE_API_KEYS": hash_key(key)}) as run:
        assert run.http.get("/v1/model").status_code == 401
        run.http.headers["x-api-key"] = key
        assert run.http.get("/v1/model").status_code == 403  # nobody says that the key came over TLS
        run.http.headers["x-forwarded-proto"] = "https"
        assert run.http.get("/v1/model").status_code == 200
        assert run.http.post("/v1/assess", json={"rows": [helpers.row]}).json()["recorded"] is True
        assert run.http.get("/readyz").json()["ready"] is True
        run.http.close()
        run.send_signal(signal.SIGTERM)
        assert run.wait(120) == 0
        assert "Traceback" not in run.read_logs()


def test_what_is_in_flight_is_answered_before_it_ends(running, helpers):
    service, answers = running(), []
    go_on = helpers.pause(service)
    thread = threading.Thread(target=lambda: answers.append(service.assess(helpers.row)))
    thread.start()
    helpers.until(lambda: service.service._n_working == 1)
    service.server.should_exit = True
    helpers.until(lambda: is_closed(service.port))
    go_on()
    thread.join()
    assert answers[0].json()["recorded"] is True


def test_a_stop_signal_to_all_its_processes_ends_it_while_the_model_is_loaded(model, helpers):
    with helpers.process(model, expect_start=False) as run:
        helpers.until(lambda: len(list_descendants(run.pid)) == 4)  # two of them hold the model
        children = list_descendants(run.pid)
        os.killpg(run.pid, signal.SIGTERM)
        assert run.wait(120) == -signal.SIGTERM
        assert run.read_logs() == ""
        helpers.until(lambda: not any(map(is_running, children)))


def test_a_stop_signal_to_all_its_processes_leaves_a_large_request_its_time(model, helpers):
    answers, body = [], {"rows": [helpers.row] * 500}
    with helpers.process(model) as run:
        child = list_descendants(run.pid)[-2]  # the last one holds the store
        os.kill(child, signal.SIGSTOP)
        thread = threading.Thread(target=lambda: answers.append(run.http.post("/v1/assess", json=body)))
        thread.start()
        helpers.until(lambda: count_in_flight(run.url) == 2)  # one of them asks for the count
        os.killpg(run.pid, signal.SIGTERM)
        helpers.until(lambda: is_closed(int(run.url.rpartition(":")[2])))
        time.sleep(1.0)  # longer than a process takes to notice that its parent is gone
        os.kill(child, signal.SIGCONT)
        thread.join()
        assert answers[0].json()["recorded"] is True
        assert run.wait(120) == 0
        helpers.until(lambda: not is_running(child))


def list_descendants(pid):
    """The processes that one has started, and those that they have started."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in list_descendants(child)]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"  # which has ended
    except FileNotFoundError:
        return False


def count_in_flight(url):
    text = httpx.get(f"{url}/metrics", timeout=120, verify=False).text
    return float(re.search(r"^onsphere_requests_in_flight (.*)$", text, re.MULTILINE)[1])


def is_closed(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return True
    return False


def test_a_port_in_use_is_reported(model):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidInputError, match="another program uses"),
    ):
        serve(Settings(model, port=taken.getsockname()[1]))


def test_an_error_at_the_start_is_one_sentence(tmp_path):
    from onsphere.cli import app

    run = CliRunner().invoke(app, ["serve", str(tmp_path / "none.onsphere"), "--port", "0"])
    assert run.exit_code == 2
    assert run.stderr.count("\n") == 1
    assert "does not exist" in run.stderr


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.onsphere", None, "does not exist"),
        ("broken.onsphere", b"broken", "cannot be read"),
        ("broken.onnx", b"broken", "onnxruntime cannot read"),
    ],
)
def test_a_file_that_is_no_model_is_reported(tmp_path, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=expected):
        serve(Settings(str(tmp_path / name), port=0))


def test_a_file_of_a_newer_version_is_reported(model, tmp_path):
    newer = tmp_path / "newer.onsphere"
    with zipfile.ZipFile(model) as old, zipfile.ZipFile(newer, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "manifest.json":
                text = re.sub(rb'"format": \d+', b'"format": 99', text)
            new.writestr(name, text)
    with pytest.raises(InvalidInputError, match="of format 99"):
        serve(Settings(str(newer), port=0))


def test_a_graph_without_our_metadata_is_reported(tmp_path):
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [None, 1])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, [None, 1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(content, tmp_path / "plain.onnx")
    with pytest.raises(InvalidInputError, match="metadata of onsphere"):
        serve(Settings(str(tmp_path / "plain.onnx"), port=0))


def test_other_machines_are_not_served_without_keys(model):
    with pytest.raises(InvalidInputError, match="API keys"):
        serve(Settings(model, host="0.0.0.0", port=0))
    with pytest.raises(InvalidInputError, match="Got the key alone"):
        serve(Settings(model, port=0, keyfile="key.pem"))
    with pytest.raises(InvalidInputError, match="Expected to listen on 203"):
        serve(Settings(model, host="203.0.113.1", port=0, open=True))
    with pytest.raises(InvalidInputError, match="mysql"):
        serve(Settings(model, port=0, store="mysql://x"))


def test_workers_share_one_alarm_reload_together_and_end_with_their_parent(model, models, helpers):
    with helpers.process(model, "--workers", "2") as run:
        seen = set()

        def ask():  # by a new connection, perhaps to another worker
            with httpx.Client(base_url=run.url, timeout=120, verify=False) as client:
                return client.post("/v1/assess", json={"rows": [helpers.far] * 15}).json()

        helpers.until(lambda: "error" not in ask())
        for _ in range(10):
            seen.add(ask()["model"])
        assert len(seen) == 1
        drift = [httpx.get(f"{run.url}/v1/live", timeout=120, verify=False).json()["drift"] for _ in range(6)]
        assert all(each["alarm"] for each in drift)
        assert len({each["alarmed_at"] for each in drift}) == 1
        text = httpx.get(f"{run.url}/metrics", timeout=120, verify=False).text
        assert re.search(r'onsphere_rows_total\{accepted="no"\} 165', text)
        shutil.copy(models["other"], model)
        run.send_signal(signal.SIGHUP)
        helpers.until(lambda: len({ask()["model"] for _ in range(6)} | seen) == 2 and ask()["model"] not in seen)
        helpers.until(lambda: not {ask()["model"] for _ in range(10)} & seen)
        run.kill()
        helpers.until(lambda: is_closed(int(run.url.rpartition(":")[2])))


def test_no_request_is_dropped_while_the_model_is_replaced(running, models, helpers):
    service, found, wrong, done = running(), [""], [], threading.Event()
    path = service.service.settings.model

    def ask():
        with httpx.Client(base_url=service.url, timeout=120, verify=False) as client:
            while not done.is_set():
                answer = client.post("/v1/assess", json={"rows": [helpers.row]})
                (found.append(answer.json()["model"]) if answer.status_code == 200 else wrong.append(answer.text))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for name in ("other", "table", "other"):
        shutil.copy(models[name], path + ".new")
        os.replace(path + ".new", path)
        new = service.http.post("/v1/reload").json()["sha256"]
        n_found = len(found)
        helpers.until(lambda new=new, n_found=n_found: len(found) > n_found + 10 and found[-1] == new)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(set(found)) == 3


def test_kill_9_loses_nothing_that_was_acknowledged(model, running, helpers):
    acknowledged, done = [], threading.Event()

    def ask(url):
        with httpx.Client(base_url=url, timeout=120, verify=False) as client:
            while not done.is_set():
                try:
                    answer = client.post("/v1/assess", json={"rows": [helpers.row]})
                except httpx.TransportError:
                    return
                if answer.json()["recorded"]:
                    acknowledged.append(answer.headers["x-request-id"])

    with helpers.process(model) as run:
        threads = [threading.Thread(target=ask, args=[run.url]) for _ in range(4)]
        for thread in threads:
            thread.start()
        helpers.until(lambda: len(acknowledged) > 40)
        run.kill()
        done.set()
        for thread in threads:
            thread.join()
    with sqlite3.connect(f"{model}.sqlite") as connection:
        kept = {name for (name,) in connection.execute("SELECT request FROM onsphere_assessments")}
        (n_rows,) = connection.execute("SELECT COUNT(*) FROM onsphere_assessments").fetchone()
    connection.close()
    assert set(acknowledged) <= kept
    service = running(model, store=f"{model}.sqlite")  # and the monitor goes on from there
    service.assess(helpers.row)
    assert service.http.get("/v1/live").json()["drift"]["rows_seen"] == n_rows + 1


def test_a_thousand_slow_connections_do_not_keep_others_out(model, helpers):
    with helpers.process(model, "--read-timeout", "3") as run:
        port = int(run.url.rpartition(":")[2])
        slow = []
        for _ in range(1000):
            slow.append(socket.create_connection(("127.0.0.1", port), timeout=120))
            slow[-1].sendall(b"POST /v1/assess HTTP/1.1\r\nHost: local")
        started = time.monotonic()
        assert run.http.post("/v1/assess", json={"rows": [helpers.row]}).status_code == 200
        closed = 0
        for connection in slow:
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
            connection.close()
        assert closed == 1000
        assert time.monotonic() - started < 100


def test_it_serves_and_reloads_until_it_is_stopped(models, tmp_path, helpers):
    path = tmp_path / "model.onsphere"
    path.write_bytes(models["table"].read_bytes())
    found = {}

    def use(address):
        def make_request():
            with httpx.Client(base_url=address, timeout=20, verify=False) as client:
                helpers.until(lambda: _answers(client))
                found["answer"] = client.post("/v1/assess", json={"rows": [helpers.row]}).json()
                path.write_bytes(models["other"].read_bytes())
                os.kill(os.getpid(), signal.SIGHUP)
                helpers.until(lambda: client.get("/v1/model").json()["sha256"] != found["answer"]["model"])
            os.kill(os.getpid(), signal.SIGTERM)

        found["thread"] = threading.Thread(target=make_request)
        found["thread"].start()

    before = signal.getsignal(signal.SIGTERM)
    serve(Settings(str(path), host="::1", port=0, watch=0.0), on_ready=use)
    found["thread"].join()
    assert found["answer"]["recorded"] is True
    assert signal.getsignal(signal.SIGTERM) is before
    helpers.until(lambda: "onsphere-end" not in [thread.name for thread in threading.enumerate()])  # this process lives


def _answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_workers_get_settings_and_counters_from_the_environment(models, monkeypatch, tmp_path):
    seen = {}

    class Fake:
        def __init__(self, config, sockets):
            seen["config"] = config

        def run(self):
            seen["app"] = app_module.create_app_from_environment()
            seen["folder"] = os.environ["PROMETHEUS_MULTIPROC_DIR"]
            seen["metrics"] = Metrics().write_text({"labels": None, "drift": None, "store": {"working": True}})

    monkeypatch.setattr(serve_module, "_Workers", Fake)
    monkeypatch.setenv("ONSPHERE_PORT", "1")
    settings = Settings(str(models["array"]), port=0, workers=2, store=str(tmp_path / "s.sqlite"))
    serve(settings)
    assert seen["app"].state.service.settings == settings
    assert seen["config"].workers == 2
    assert seen["config"].timeout_worker_healthcheck == 60  # uvicorn would kill workers that import slowly
    assert isinstance(seen["metrics"], bytes)
    assert os.environ["ONSPHERE_PORT"] == "1"
    assert "ONSPHERE_MODEL" not in os.environ
    assert not os.path.exists(seen["folder"])


def test_workers_get_the_hangup_signal(monkeypatch):
    from types import SimpleNamespace

    signals = []
    monkeypatch.setattr(os, "kill", lambda *arguments: signals.append(arguments))
    workers = serve_module._Workers.__new__(serve_module._Workers)
    workers.processes = [
        SimpleNamespace(pid=7, exitcode=None),
        SimpleNamespace(pid=8, exitcode=0),
        SimpleNamespace(pid=None, exitcode=None),
    ]
    workers.handle_hup()
    assert signals == [(7, signal.SIGHUP)]


def test_workers_of_uvicorn_are_ours_only_while_a_service_runs(models, monkeypatch):
    seen, plain = [], multiprocess.Process
    monkeypatch.setattr(multiprocess.Multiprocess, "run", lambda self: seen.append(multiprocess.Process))
    serve_module._Workers.__new__(serve_module._Workers).run()
    assert multiprocess.Process is plain
    monkeypatch.setattr(serve_module, "exit_with_parent", lambda: seen.append("watch"))
    monkeypatch.setattr(plain, "target", lambda self, sockets: seen.append(type(self._server)))
    config = serve_module.TimedConfig("app:create", Settings(str(models["array"]), workers=2))
    seen[0](config, []).target([])
    assert seen == [serve_module._Worker, "watch", serve_module.TimedServer]


def test_the_service_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\[serve\]"):
        importlib.reload(sys.modules["onsphere.service"])


def test_the_commands_pass_their_options_on(monkeypatch, models, tmp_path):
    import typer

    from onsphere.cli.serve import new_key, serve

    seen = []
    monkeypatch.setattr(
        sys.modules["onsphere.service"],
        "serve",
        lambda settings, on_ready: (seen.append(settings), on_ready("http://x:1")),
    )
    commands = typer.Typer()
    commands.command()(serve)
    commands.command()(new_key)
    keys = tmp_path / "keys"
    run = CliRunner().invoke(
        commands, ["serve", str(models["array"]), "--port", "7", "--keys-file", str(keys), "--open"]
    )
    assert run.exit_code == 0, run.output
    assert "http://x:1" in run.output
    assert (seen[0].port, seen[0].open, seen[0].keys_file, seen[0].keep) == (7, True, str(keys), 10_000)
    assert CliRunner().invoke(commands, ["serve", str(models["array"])]).exit_code == 0
    given = ["serve", "--trusted", "a.B,c.D", "--watch", "0", "--keep-answers", "5"]
    assert CliRunner().invoke(commands, given, env={"ONSPHERE_MODEL": "m.onnx"}).exit_code == 0
    last = seen[-1]
    assert (last.model, last.trusted, last.watch, last.keep_answers) == ("m.onnx", ("a.B", "c.D"), 0.0, 5)
    made = CliRunner().invoke(commands, ["new-key", "shop"])
    assert made.output.startswith("onsphere-")
    assert "shop sha256:" in made.output
    assert '"hash"' in CliRunner().invoke(commands, ["new-key", "--json"]).output
    for wrong in ("#1", "my shop", "a,b"):  # which the service would not take
        run = CliRunner().invoke(commands, ["new-key", wrong])
        assert run.exit_code != 0
        assert wrong in str(run.exception)


def test_a_process_that_does_not_end_in_time_is_ended(monkeypatch, models, tmp_path):
    ended = threading.Event()
    monkeypatch.setattr(serve_module, "_END_SECONDS", -0.9)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    server = serve_module.TimedServer(serve_module.TimedConfig(lambda: None, Settings(str(models["array"]), grace=0.0)))
    server.handle_exit(signal.SIGTERM, None)
    first = server._last_resort
    server.handle_exit(signal.SIGTERM, None)
    assert server._last_resort is first
    assert ended.wait(60)
    assert server.should_exit


def test_a_worker_that_is_killed_is_replaced_and_the_new_one_ends_with_its_parent(model, helpers):
    with helpers.process(model, "--workers", "2") as run:
        helpers.until(lambda: len(list_workers(run.pid)) == 2)
        before = list_workers(run.pid)
        os.kill(before[0], signal.SIGKILL)
        helpers.until(lambda: len(set(list_workers(run.pid)) - set(before)) == 1)
        helpers.until(lambda: len(list_workers(run.pid)) == 2)
        everyone = list_descendants(run.pid)
        run.kill()
        helpers.until(lambda: not any(map(is_running, everyone)))


def list_workers(pid):
    """The workers of a service: its children that have children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if list_descendants(int(child))]


def test_keys_are_taken_over_tls(running, tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    key, names = make_key(), ["-subj", "/CN=localhost", "-days", "1"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command, *names], cwd=tmp_path, check=True, capture_output=True)
    tls = {"certfile": str(tmp_path / "cert.pem"), "keyfile": str(tmp_path / "key.pem")}
    service = running("array", host="0.0.0.0", api_keys=(hash_key(key),), **tls)
    address = f"https://127.0.0.1:{service.port}/v1/model"
    assert httpx.get(address, headers={"x-api-key": key}, timeout=120, verify=False).status_code == 200
