"""The child process: what it does is run here in a thread, and what its parent does with a real one."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from onsphere import InvalidInputError
from onsphere.service import Settings, child
from onsphere.service.answers import RequestError
from onsphere.service.batching import PendingRequest
from onsphere.service.engine import load_engine
from onsphere.service.rows import JSON

SETTINGS = Settings("m.onsphere", max_rows=100)


@pytest.fixture
def talk(monkeypatch):
    """Run a child in a thread, and return what it sends: first of all None, or what is wrong with the model."""
    monkeypatch.setattr(child, "_limit_memory", lambda: None)  # which would hold for all tests
    started = []

    def talk(path, *messages, calibration=None):
        ours, theirs = multiprocessing.Pipe()
        thread = threading.Thread(target=child.run_child, args=(theirs, path, path.read_bytes(), SETTINGS))
        thread.start()
        started.append((ours, theirs, thread))
        found = [ours.recv()]
        for message in messages:
            ours.send((calibration, PendingRequest(None, message, JSON, JSON, 0.9, "r", time.perf_counter())))
            found.append(ours.recv())
        return found

    yield talk
    for ours, theirs, thread in started:
        ours.close()
        thread.join()
        theirs.close()


def test_it_answers_until_its_parent_is_gone(models, talk):
    body = json.dumps({"rows": [[0.5, 1.0], [0.1, 0.2]]}).encode()
    ready, reply, error = talk(models["array"], body, b"{")
    assert ready is None
    assert reply.record.facts is None
    assert len(json.loads(reply.body)) == 2
    assert isinstance(error, RequestError)


def test_it_takes_the_calibration_that_labels_have_changed(models, talk):
    other, body = load_engine(models["array"]).model, b'{"rows": [[0.5, 1.0]]}'
    plain, wide = (
        json.loads(talk(models["array"], body, calibration=given)[1].body)[0]
        for given in (None, other.update([[0.0, 0.0]] * 20, [9.0] * 20).calibration_)
    )
    assert wide["upper"] - wide["lower"] > plain["upper"] - plain["lower"]


def test_a_fault_is_told_as_one(models, talk, monkeypatch):
    plain = load_engine

    def break_later(*arguments, **options):
        engine = plain(*arguments, **options)
        found = engine.assess
        engine.assess = lambda values, coverage: found(values, coverage=coverage) if len(values["x0"]) < 2 else 1 / 0
        return engine

    monkeypatch.setattr(child, "load_engine", break_later)
    _, error = talk(models["array"], b'{"rows": [[1, 2], [3, 4]]}')
    assert "ZeroDivisionError" in str(error)


def test_a_file_that_cannot_be_loaded_or_fails_is_told(models, talk, tmp_path, monkeypatch):
    (tmp_path / "broken.onsphere").write_bytes(b"broken")
    (error,) = talk(tmp_path / "broken.onsphere")
    assert isinstance(error, InvalidInputError)
    monkeypatch.setattr(child, "make_trial_row", lambda facts: 1 / 0)
    (error,) = talk(models["array"])
    assert "fails on one row: division by zero" in str(error)


@pytest.mark.parametrize(
    ("parents", "are_alive"),
    [
        ([7, 7, 1], None),
        ([7, 7, 1], [True]),
        ([1, 1, 1], [True, False]),
    ],  # the last was killed while the process started
)
def test_a_process_ends_when_its_parent_is_gone(monkeypatch, parents, are_alive):
    found, ended = iter(parents), threading.Event()
    starter = are_alive and SimpleNamespace(is_alive=iter(are_alive).__next__)
    monkeypatch.setattr("onsphere._internal.processes.parent_process", lambda: starter)
    monkeypatch.setattr(os, "getppid", lambda: next(found))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    child.exit_with_parent()
    assert ended.wait(60)


def test_a_process_watches_its_parent(monkeypatch):
    seen = []
    monkeypatch.setattr(child, "exit_with_parent", lambda: seen.append("watch"))
    monkeypatch.setattr(child, "run_child", lambda *arguments: seen.append(arguments))
    child._run_process(1, 2)
    assert seen == ["watch", (1, 2)]


def test_a_file_that_is_being_loaded_is_not_loaded_again(models, tmp_path, monkeypatch):
    served = child.ServedModel(Settings(str(shutil.copy(models["array"], tmp_path)), trial_timeout=300.0))
    reached, go_on = threading.Event(), threading.Event()
    plain = child.read_content
    monkeypatch.setattr(child, "read_content", lambda path: (reached.set(), go_on.wait(60), plain(path))[2])
    thread = threading.Thread(target=served.reload)
    thread.start()
    reached.wait(60)
    with pytest.raises(InvalidInputError, match="which is being loaded"):
        served.reload()
    go_on.set()
    thread.join()
    assert served.reload() is None
    served.live.child.close()


def test_memory_has_a_limit(monkeypatch):
    limits = []
    monkeypatch.setattr(os, "nice", lambda by: by)
    monkeypatch.setattr(child.resource, "setrlimit", lambda which, limit: limits.append(limit))
    child._limit_memory()
    ((soft, hard),) = limits
    assert soft == hard > 2 * 2**30


def test_a_model_that_loads_in_the_child_alone_leaves_no_process(models, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(child, "load_engine", lambda *_, **__: 1 / 0)
    plain = child.Child.close
    monkeypatch.setattr(child.Child, "close", lambda self: (closed.append(self), plain(self)))
    with pytest.raises(ZeroDivisionError):
        child.ServedModel(Settings(str(models["array"]), trial_timeout=300.0))
    assert len(closed) == 1


def test_a_plain_script_may_start_a_service(models, tmp_path):
    """Without a guard around its main part, which a child process would run again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from fastapi.testclient import TestClient\n"
        "from onsphere.service import Settings, create_app\n"
        "app = create_app(Settings(sys.argv[1], trial_timeout=300.0))\n"
        "with TestClient(app, base_url='http://localhost') as client:\n"
        "    print(client.post('/v1/assess', json={'rows': [[0.5, 1.0]]}).status_code)\n"
    )
    model = shutil.copy(models["array"], tmp_path / "model.onsphere")
    done = subprocess.run([sys.executable, str(script), str(model)], capture_output=True, text=True, check=False)
    assert done.stdout == "200\n", done.stderr
